"""The chain from paths to tables; the only room that knows all of it."""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import spectrograd
from spectrograd.errors import CheckpointError, SpectrumError, StorageError, TableError
from spectrograd.gradients import parse_bands
from spectrograd.load import fingerprint
from spectrograd.metrics import measure_spectrum
from spectrograd.pipeline.record import record_checkpoint
from spectrograd.pipeline.selection import Selection, explain_nothing, select
from spectrograd.pipeline.tables import Findings, make_tables
from spectrograd.records import PRECISIONS, CheckpointRef
from spectrograd.results import SPECTRUM_VERSION, Results, ResultsFolder, open_results, read_ledger
from spectrograd.scan import Scan, scan
from spectrograd.spectra import compute_spectrum

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

PathLike = str | os.PathLike[str]
TABLES_EVERY = 120.0
"""Seconds of a long analysis after which the tables are remade."""


class Progress(Protocol):
    """What `analyze` tells while it works."""

    def start(self, checkpoints: int, matrices: int, bytes_to_read: int) -> None:
        """Take what there is to do."""
        ...

    def advance(self) -> None:
        """Take that one matrix is done."""
        ...

    def finish(self, checkpoint: CheckpointRef) -> None:
        """Take that a checkpoint is done or refused."""
        ...

    def tell(self, text: str) -> None:
        """Take what is being done, where it is not matrices."""
        ...


@dataclass(slots=True)
class Analysis:
    """What an analysis did, for its summary."""

    results: Path
    scan: Scan
    recorded: list[CheckpointRef] = field(default_factory=list)
    current: list[CheckpointRef] = field(default_factory=list)
    refused: list[CheckpointRef] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    seconds: float = 0.0
    device: str = "cpu"


def analyze(
    paths: PathLike | Sequence[PathLike],
    results: PathLike,
    *,
    device: str = "auto",
    workers: int | None = None,
    steps: str = "",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    heads: int | None = None,
    kv_heads: int | None = None,
    bands: str = "thirds",
    force: bool = False,
) -> Results:
    """Record the singular values of every weight matrix and make the tables; return them.

    Parameters
    ----------
    paths : path or sequence of paths
        Checkpoints, runs (folders of checkpoints) or folders of runs; `LABEL=PATH` names a run.
    results : path
        Folder for recordings and tables. What it already holds and has not changed on disk is not done again.
    device : str
        `auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:n`. Changes speed alone.
    workers : int, optional
        Threads that decompose matrices on the CPU; default: one for each processor. Changes speed alone.
    steps : str
        Which steps: `0:10000:25`, `0,50,100` or `log:40`; default all.
    include, exclude : sequences of str
        Patterns (`*.attn.*`) of the tensors to take or leave.
    heads, kv_heads : int, optional
        See `scan`.
    bands : str
        Layers that count as early and late: `thirds`, `halves`, `quarters` or a number of layers.
    force : bool
        Record again what is already recorded.

    Raises
    ------
    CheckpointError
        If no checkpoint is found, or every one is refused.
    StorageError
        If the results cannot be written.
    """
    selection = Selection(steps, include, exclude, heads, kv_heads)
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    analysis = run_analysis(given, Path(results), selection, device=device, workers=workers, bands=bands, force=force)
    if not analysis.recorded and not analysis.current:
        first = analysis.refused[0]
        others = f"; {len(analysis.refused)} checkpoints refused in all" if len(analysis.refused) > 1 else ""
        raise CheckpointError(f"cannot analyse {first.path}: {first.refused}{others}")
    return open_results(results)


def run_analysis(
    paths: Sequence[PathLike],
    results: Path,
    selection: Selection,
    *,
    device: str = "auto",
    workers: int | None = None,
    bands: str = "thirds",
    force: bool = False,
    progress: Progress | None = None,
) -> Analysis:
    """Do what `analyze` does and return what was done; no paths: remake the tables alone."""
    parse_bands(bands)
    if not paths and not (results / "singular_values").is_dir():
        raise TableError(f"cannot remake the tables of {results}: it holds no recordings; give the PATH of checkpoints to analyse")
    begin = time.monotonic()
    folder = ResultsFolder.create(results)
    found = scan(paths, heads=selection.heads, kv_heads=selection.kv_heads) if paths else Scan((), ())
    chosen = select(found, selection)
    if paths and not any(run.checkpoints for run in chosen):
        raise CheckpointError(explain_nothing(paths, found, selection))
    analysis = Analysis(results, found, device=choose_device(device) if paths else "cpu")
    provenance = _describe(analysis.device)
    part, parts = selection.shard
    ready = [checkpoint for run in chosen for checkpoint in run.checkpoints][part - 1 :: parts]
    analysis.refused += [checkpoint for checkpoint in ready if checkpoint.refused]
    todo: list[CheckpointRef] = []
    for checkpoint in (c for c in ready if not c.refused):
        (todo if force or not _is_current(checkpoint, folder) else analysis.current).append(checkpoint)
    size = sum(ref.shape[0] * ref.shape[1] * _itemsize(ref.entry.dtype) for c in todo for ref in c.matrices)
    _check_space(results, todo)
    if progress is not None:
        progress.start(len(todo), sum(len(c.matrices) for c in todo), size)
    made = time.monotonic()
    try:
        with _threads(workers) as pool:
            for checkpoint in todo:
                try:
                    record_checkpoint(checkpoint, folder, pool, analysis.device, provenance, progress.advance if progress else _nothing)
                    analysis.recorded.append(checkpoint)
                except (CheckpointError, SpectrumError) as error:
                    checkpoint = replace(checkpoint, refused=str(error))
                    analysis.refused.append(checkpoint)
                if progress is not None:
                    progress.finish(checkpoint)
                if time.monotonic() - made > TABLES_EVERY:
                    make_tables(folder, chosen, analysis.refused, bands, provenance)
                    made = time.monotonic()
    finally:  # on Ctrl-C too: what was finished is in the tables
        if progress is not None:
            progress.tell("making the tables")
        analysis.findings = make_tables(folder, chosen, analysis.refused, bands, provenance)
    analysis.seconds = time.monotonic() - begin
    return analysis


def measure(weight: "ArrayLike") -> dict[str, float]:
    """Return every metric of one weight matrix by name; NaN where a metric is undefined.

    Parameters
    ----------
    weight : array_like or torch.Tensor, shape (rows, cols)
        Any floating dtype, bfloat16 and float16 tensors included, on any device; whole numbers are taken as float64.
        The dtype decides the noise floor.

    Raises
    ------
    SpectrumError
        If it is not a matrix of real numbers.

    Examples
    --------
    >>> import numpy as np, spectrograd
    >>> spectrograd.measure(np.eye(64))["stable_rank"]
    64.0
    """
    matrix: Any = weight.detach().cpu() if hasattr(weight, "detach") else weight
    dtype = str(getattr(matrix, "dtype", "")).removeprefix("torch.")
    if dtype not in PRECISIONS:
        try:
            matrix, dtype = np.asarray(matrix).astype(np.float64, casting="same_kind"), "float64"
        except (TypeError, ValueError, RuntimeError) as error:  # complex, text, ragged lists
            kind = " of ".join(filter(None, (type(weight).__name__, dtype)))
            raise SpectrumError(f"cannot measure {kind}: give a matrix of real numbers") from error
    spectrum, _ = compute_spectrum(matrix, dtype)
    return measure_spectrum(spectrum)[0]


def choose_device(device: str) -> str:
    """Return the device that `auto` means here, or the one given.

    Raises
    ------
    SpectrumError
        If a GPU is asked for and there is none.
    """
    if device == "cpu":
        return device
    import torch

    if torch.cuda.is_available():
        return "cuda" if device == "auto" else device
    if device != "auto":
        raise SpectrumError(f"cannot use device {device}: torch {torch.__version__} sees no GPU; use --device cpu")
    return "cpu"


def _is_current(checkpoint: CheckpointRef, folder: ResultsFolder) -> bool:
    """Tell whether a recording of exactly these files, cut this way and computed this way, exists."""
    ledger = read_ledger(folder.recording_path(checkpoint.run, checkpoint.name))
    if ledger is None or ledger["spectrum_version"] != SPECTRUM_VERSION:
        return False
    try:
        return bool(ledger["fingerprint"] == fingerprint(checkpoint.files, checkpoint.matrices))
    except CheckpointError:
        return False


def _check_space(results: Path, todo: Sequence[CheckpointRef]) -> None:
    need = sum(8 * min(ref.shape) + 400 for c in todo for ref in c.matrices)
    free = shutil.disk_usage(results).free
    if need > free:
        raise StorageError(
            f"cannot write results to {results}: about {need:,} bytes are needed, {free:,} are free; free space or use --steps"
        )


@contextmanager
def _threads(workers: int | None) -> Iterator[ThreadPoolExecutor]:
    """Give worker threads with one BLAS thread each: faster than one worker with many, and the same sums everywhere."""
    from threadpoolctl import threadpool_limits

    count = workers or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else workers or os.cpu_count() or 1
    with threadpool_limits(1), ThreadPoolExecutor(count) as pool:
        yield pool


def _describe(device: str) -> dict[str, str]:
    """Return what the metadata of each file says of its making."""
    torch = sys.modules.get("torch")
    versions = {"spectrograd": spectrograd.__version__, "python": sys.version.split()[0], "numpy": np.__version__}
    return {
        **{f"version.{name}": version for name, version in versions.items()},
        **({"version.torch": str(torch.__version__)} if torch else {}),
        "device": device,
        "command": " ".join(sys.argv),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _itemsize(dtype: str) -> int:
    return {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}.get(dtype, 1)


def _nothing() -> None:
    pass


__all__ = ["Analysis", "Progress", "Selection", "analyze", "choose_device", "measure", "run_analysis", "select"]
