"""One checkpoint → its recording: read, decompose, write."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from spectrograd.errors import CheckpointError
from spectrograd.load import fingerprint, hash_matrix, read_matrix, stream_matrices
from spectrograd.records import CheckpointRef, MatrixRef, Spectrum, join_notes
from spectrograd.results import SPECTRUM_VERSION, ResultsFolder
from spectrograd.spectra import compute_spectra, compute_spectrum

if TYPE_CHECKING:
    import torch

GPU_BATCH = 1 << 28
"""Bytes of weights that are sent to a GPU at a time."""

Computed = tuple[MatrixRef, Spectrum, str, str]


def make_ledger(checkpoint: CheckpointRef, mark: str) -> dict[str, Any]:
    """Return the row of `checkpoints.parquet`, but for the run: a recording does not know its run's name."""
    return {
        "seed": checkpoint.seed, "stage": checkpoint.stage, "step": checkpoint.step, "step_kind": checkpoint.step_kind,
        "epoch": checkpoint.epoch, "tokens": checkpoint.tokens, "checkpoint": checkpoint.name, "format": checkpoint.format,
        "layout": checkpoint.layout, "depth": checkpoint.depth, "width": checkpoint.width, "num_params": checkpoint.num_params,
        "num_matrices": len(checkpoint.matrices), "status": "refused" if checkpoint.refused else "done",
        "skipped": [asdict(skipped) for skipped in checkpoint.skipped],
        "problems": [*checkpoint.problems, *([checkpoint.refused] if checkpoint.refused else [])],
        "fingerprint": mark, "spectrum_version": SPECTRUM_VERSION,
    }  # fmt: skip


def record_checkpoint(
    checkpoint: CheckpointRef, folder: ResultsFolder, pool: Executor, device: str, provenance: dict[str, str], advance: Callable[[], None]
) -> None:
    """Decompose every matrix of a checkpoint and write its recording.

    Raises
    ------
    CheckpointError
        If a file of it cannot be read, or changed while it was read. Nothing is written then.
    """
    mark = fingerprint(checkpoint.files, checkpoint.matrices)
    largest_first = sorted(checkpoint.matrices, key=lambda ref: -ref.shape[0] * ref.shape[1])
    done: dict[str, Computed] = {}
    for computed in _on_cpu(largest_first, pool) if device == "cpu" else _on_gpu(largest_first, device):
        done[computed[0].tensor] = computed
        advance()
    if fingerprint(checkpoint.files, checkpoint.matrices) != mark:
        raise CheckpointError(f"cannot use {checkpoint.path}: it changed while it was read; analyse it again when it is complete")
    rows = [_make_row(checkpoint, *done[ref.tensor]) for ref in checkpoint.matrices]
    folder.write_recording(checkpoint.run, checkpoint.name, rows, make_ledger(checkpoint, mark), provenance)


def _on_cpu(refs: list[MatrixRef], pool: Executor) -> Iterator[Computed]:
    futures = [pool.submit(_compute_one, ref) for ref in refs]
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _compute_one(ref: MatrixRef) -> Computed:
    matrix = read_matrix(ref)
    return (ref, *compute_spectrum(matrix, ref.entry.dtype), hash_matrix(matrix))


def _on_gpu(refs: list[MatrixRef], device: str) -> Iterator[Computed]:
    for batch in stream_matrices(refs, GPU_BATCH):
        pairs: list[tuple[torch.Tensor, str]] = [(matrix, ref.entry.dtype) for ref, matrix in batch]
        for (ref, matrix), (spectrum, note) in zip(batch, compute_spectra(pairs, device), strict=True):
            yield ref, spectrum, note, hash_matrix(matrix)


def _make_row(checkpoint: CheckpointRef, ref: MatrixRef, spectrum: Spectrum, note: str, digest: str) -> dict[str, Any]:
    return {
        "seed": checkpoint.seed, "stage": checkpoint.stage, "step": checkpoint.step, "step_kind": checkpoint.step_kind,
        "checkpoint": checkpoint.name, "tensor": ref.tensor, "stack": ref.stack, "layer": ref.layer, "expert": ref.expert, "role": ref.role,
        "rows": spectrum.rows, "cols": spectrum.cols, "dtype": ref.entry.dtype, "depth": checkpoint.depth, "width": checkpoint.width,
        "num_params": checkpoint.num_params, "content_hash": digest, "singular_values": spectrum.singular_values,
        "note": join_notes(ref.note, note),
    }  # fmt: skip
