"""Checkpoint → matrices: each read when it is asked for, cut and turned as its reference says, never all at once."""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spectrograd.errors import CheckpointError
from spectrograd.readers import find_reader
from spectrograd.records import MatrixRef

if TYPE_CHECKING:
    import torch


def read_matrix(ref: MatrixRef) -> "torch.Tensor":
    """Return one matrix, [out, in], in its stored dtype, on the CPU; a view of the mapped file where it can be.

    Raises
    ------
    CheckpointError
        If the file cannot be read, or holds another shape than it announced.
    """
    import torch

    tensor = find_reader(ref.path).read(ref.path, ref.entry.key)
    if tuple(tensor.shape) != ref.entry.shape:
        raise CheckpointError(f"cannot read {ref.tensor} of {ref.path}: shape {tuple(tensor.shape)}, announced {ref.entry.shape}")
    matrix = tensor.T if ref.transposed else tensor
    if ref.rows is None:
        return matrix
    parts = [matrix[start:stop] for start, stop in ref.rows]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def stream_matrices(refs: Iterable[MatrixRef], most: int) -> Iterator[list[tuple[MatrixRef, "torch.Tensor"]]]:
    """Yield matrices in lists of at most `most` bytes each (or of one matrix that is larger)."""
    batch: list[tuple[MatrixRef, torch.Tensor]] = []
    size = 0
    for ref in refs:
        matrix = read_matrix(ref)
        if batch and size + matrix.nbytes > most:
            yield batch
            batch, size = [], 0
        batch.append((ref, matrix))
        size += matrix.nbytes
    if batch:
        yield batch


def hash_matrix(matrix: "torch.Tensor") -> str:
    """Return a hash of a matrix's dtype, shape and bytes: equal hashes mean equal weights."""
    import torch

    digest = hashlib.sha256(f"{matrix.dtype} {tuple(matrix.shape)}".encode())
    # one column that was cut or turned counts as contiguous with any stride, and torch does not view that as bytes
    plain = matrix.contiguous() if matrix.stride(-1) == 1 else matrix.clone(memory_format=torch.contiguous_format)
    digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def fingerprint(files: Iterable[Path], refs: Iterable[MatrixRef]) -> str:
    """Return a hash of what a recording depends on: names, sizes and times of the files, and how matrices are cut.

    Raises
    ------
    CheckpointError
        If a file has gone.
    """
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        try:
            status = path.stat()
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    for ref in refs:
        digest.update(f"{ref.tensor} {ref.stack} {ref.layer} {ref.expert} {ref.role} {ref.transposed} {ref.rows}\n".encode())
    return digest.hexdigest()
