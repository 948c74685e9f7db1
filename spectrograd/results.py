"""The results folder: recordings, tables, schemas, versions, lock.

A recording holds the singular values of one checkpoint and is written once, under a temporary name and then renamed.
The tables are reports on the recordings and can be made again from them.
"""

import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock

from spectrograd.errors import StorageError, TableError, UnknownNameError

SCHEMA_VERSION = "1"
SPECTRUM_VERSION = 1
"""Of the way singular values are computed: another number makes `analyze` record again."""

_PLACE = {
    "run": pa.string(),
    "seed": pa.int64(),
    "stage": pa.string(),
    "step": pa.int64(),
    "step_kind": pa.string(),
    "checkpoint": pa.string(),
}
_MATRIX = {
    "tensor": pa.string(), "stack": pa.string(), "layer": pa.int16(), "expert": pa.int16(), "role": pa.string(), "rows": pa.int64(),
    "cols": pa.int64(), "dtype": pa.string(), "depth": pa.int16(), "width": pa.int32(), "num_params": pa.int64(),
    "content_hash": pa.string(),
}  # fmt: skip
_SKIPPED = pa.list_(pa.struct({"tensor": pa.string(), "reason": pa.string()}))

RECORDING = pa.schema(
    {**{k: v for k, v in _PLACE.items() if k != "run"}, **_MATRIX, "singular_values": pa.list_(pa.float64()), "note": pa.string()}
)
CHECKPOINTS = pa.schema({
    "run": pa.string(), "seed": pa.int64(), "stage": pa.string(), "step": pa.int64(), "step_kind": pa.string(), "epoch": pa.float64(),
    "tokens": pa.int64(), "checkpoint": pa.string(), "format": pa.string(), "layout": pa.string(), "depth": pa.int16(), "width": pa.int32(),
    "num_params": pa.int64(), "num_matrices": pa.int64(), "status": pa.string(), "skipped": _SKIPPED, "problems": pa.list_(pa.string()),
    "fingerprint": pa.string(), "spectrum_version": pa.int64(),
})  # fmt: skip
GRADIENTS = pa.schema({
    **_PLACE, "stack": pa.string(), "depth": pa.int16(), "num_params": pa.int64(), "group": pa.string(), "metric": pa.string(),
    "bands": pa.string(), "early_mean": pa.float64(), "late_mean": pa.float64(), "gradient": pa.float64(), "ci_low": pa.float64(),
    "ci_high": pa.float64(), "num_early": pa.int16(), "num_late": pa.int16(), "note": pa.string(),
})  # fmt: skip
HISTORY = pa.schema({
    **{k: v for k, v in _PLACE.items() if k != "checkpoint"}, "epoch": pa.float64(), "tokens": pa.int64(), "loss": pa.float64(),
    "val_loss": pa.float64(), "learning_rate": pa.float64(), "source": pa.string(),
})  # fmt: skip


def spectra_schema(metrics: Iterable[str]) -> pa.Schema:
    """Return the schema of `spectra.parquet` with these metrics as its columns of numbers."""
    return pa.schema({**_PLACE, **_MATRIX, **dict.fromkeys(metrics, pa.float64()), "note": pa.string()})


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Return a table as pandas has it: whole numbers stay whole beside missing ones (nullable types), NaN is NaN."""
    whole = {pa.int16(): pd.Int16Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=whole.get, ignore_metadata=True)
    return frame


# ---------------------------------------------------------------- writing
def _write(path: Path, table: pa.Table, metadata: dict[str, str]) -> None:
    """Write a Parquet file whole or not at all."""
    described = {f"spectrograd.{key}": value for key, value in {"schema_version": SCHEMA_VERSION, **metadata}.items()}
    part = path.with_name(f".{path.name[:80]}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.replace_schema_metadata(described), part, compression="zstd")
        os.replace(part, path)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; free space or choose another results folder") from error
    finally:
        part.unlink(missing_ok=True)


def encode_name(name: str) -> str:
    """Return a label or a checkpoint's path as one file name, percent-encoded; none begins with `.` or `_`."""
    encoded = quote(name, safe=" =@+,()[]")
    return f"%{ord(encoded[0]):02X}{encoded[1:]}" if encoded[:1] in "._" else encoded


class ResultsFolder:
    """A results folder to write to. `open_results` reads one."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path) -> "ResultsFolder":
        """Return the folder, made if it does not exist.

        Raises
        ------
        StorageError
            If it cannot be made or written to.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / f".probe.{os.getpid()}.tmp"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise StorageError(f"cannot write results to {path}: {error.strerror or error}; choose another folder with -o") from error
        return cls(path)

    def lock(self) -> FileLock:
        """Return the lock under which the tables are remade."""
        return FileLock(self.path / ".lock")

    def recording_path(self, run: str, checkpoint: str) -> Path:
        """Return where the recording of a checkpoint lies, whether or not it exists."""
        return self.path / "singular_values" / f"run={encode_name(run)}" / f"{encode_name(checkpoint)}.parquet"

    def write_recording(
        self, run: str, checkpoint: str, rows: list[dict[str, Any]], ledger: dict[str, Any], provenance: dict[str, str]
    ) -> None:
        """Write the singular values of one checkpoint, with its row of the ledger in the file's metadata."""
        table = pa.Table.from_pylist(rows, schema=RECORDING)
        _write(self.recording_path(run, checkpoint), table, {"ledger": json.dumps(ledger, allow_nan=False), **provenance})

    def find_recordings(self) -> list[tuple[str, Path]]:
        """Return run label and path of every recording, in order of their names."""
        found = sorted((self.path / "singular_values").glob("run=*/*.parquet"))
        return [(unquote(path.parent.name.removeprefix("run=")), path) for path in found if not path.name.startswith(".")]

    def write_table(self, name: str, table: pa.Table, provenance: dict[str, str]) -> None:
        """Replace a table; call under the lock."""
        _write(self.path / f"{name}.parquet", table, provenance)

    def read_table(self, name: str, schema: pa.Schema | None = None) -> pa.Table | None:
        """Return an existing table that is of this version and readable, else None."""
        try:
            return read_table(self.path / f"{name}.parquet", schema)
        except TableError:
            return None


# ---------------------------------------------------------------- reading
def read_ledger(path: Path) -> dict[str, Any] | None:
    """Return the row of the ledger that a recording carries, or None where it cannot be read or is of another version."""
    try:
        metadata = pq.read_schema(path).metadata or {}
        if metadata.get(b"spectrograd.schema_version") != SCHEMA_VERSION.encode():
            return None
        ledger: dict[str, Any] = json.loads(metadata[b"spectrograd.ledger"])
    except (OSError, KeyError, ValueError):  # pyarrow's ArrowInvalid is a ValueError
        return None
    return ledger


def read_recording(path: Path) -> pa.Table:
    """Return a recording: the columns of `spectra.parquet` but run and metrics, and `singular_values`."""
    return read_table(path, RECORDING)


def read_table(path: Path, schema: pa.Schema | None = None) -> pa.Table:
    """Return a table of a results folder.

    Raises
    ------
    TableError
        If it is missing, unreadable, of another schema version, or its columns are not those of `schema`.
    """
    try:
        table = pq.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise TableError(f"cannot read {path}: no such file; run `spectrograd analyze` first") from error
    except (OSError, pa.ArrowException) as error:
        raise TableError(
            f"cannot read {path}: not a readable Parquet file ({error}); remake it with `spectrograd analyze -o {path.parent}`"
        ) from error
    metadata = table.schema.metadata or {}
    version = metadata.get(b"spectrograd.schema_version", SCHEMA_VERSION.encode()).decode()
    if version != SCHEMA_VERSION:
        raise TableError(
            f"cannot read {path}: schema version {version}, this spectrograd reads {SCHEMA_VERSION}; "
            f"analyse again into a new folder, or use the version of spectrograd that wrote it"
        )
    if schema is not None:
        wrong = [f"{f.name} ({f.type})" for f in schema if f.name not in table.column_names or table.schema.field(f.name).type != f.type]
        if wrong:
            raise TableError(
                f"cannot read {path}: expected columns missing or of another type: {', '.join(wrong)}; remake it with `spectrograd analyze`"
            )
    return table


class Results:
    """The tables of one or more results folders, read when first asked for.

    Labels that occur in several folders get the folder's name in front.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """One row per checkpoint, group and metric (`gradients.parquet`)."""
        return self._read("gradients", GRADIENTS)

    @cached_property
    def spectra(self) -> pd.DataFrame:
        """One row per checkpoint and matrix, with every metric (`spectra.parquet`)."""
        return self._read("spectra", spectra_schema(()))

    @cached_property
    def checkpoints(self) -> pd.DataFrame:
        """One row a checkpoint, refused ones too (`checkpoints.parquet`)."""
        return self._read("checkpoints", CHECKPOINTS)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Loss, learning rate and tokens by step (`history.parquet`)."""
        return self._read("history", HISTORY)

    def has(self, table: str) -> bool:
        """Tell whether every folder holds a table of this name."""
        return all((path / f"{table}.parquet").is_file() for path in self.paths)

    def singular_values(self, run: str, step: int | None = None) -> pd.DataFrame:
        """Return the recordings of a run, one row a matrix, the values descending in `singular_values`.

        Parameters
        ----------
        run : str
            Label of the run.
        step : int, optional
            Only the checkpoints at this step.

        Raises
        ------
        UnknownNameError
            If there is no such run, or it has no such step.
        """
        frames = []
        for path in self.paths:
            files = [file for name, file in ResultsFolder(path).find_recordings() if name == run]
            frames += [to_frame(read_recording(file)) for file in files]
        if not frames:
            raise UnknownNameError(f"cannot find run {run!r} in {', '.join(map(str, self.paths))}: no recordings of that name")
        frame = pd.concat(frames, ignore_index=True)
        if step is not None:
            steps = sorted(frame["step"].dropna().unique())
            frame = frame[frame["step"] == step]
            if frame.empty:
                raise UnknownNameError(f"cannot find step {step} of run {run!r}: it has the steps {', '.join(map(str, steps))}")
        frame.insert(0, "run", run)
        return frame.sort_values(["seed", "stage", "step", "layer", "tensor"], ignore_index=True)

    def _read(self, name: str, schema: pa.Schema) -> pd.DataFrame:
        frames = [to_frame(read_table(path / f"{name}.parquet", schema)) for path in self.paths]
        seen: set[str] = set()
        for path, frame in zip(self.paths, frames, strict=True):
            here = set(frame["run"].unique())
            twice = sorted(here & seen)
            if twice:
                frame["run"] = frame["run"].replace({label: f"{path.resolve().name}/{label}" for label in twice})
            seen |= here
        return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def open_results(*paths: str | os.PathLike[str]) -> Results:
    """Return the tables of one or more results folders.

    Raises
    ------
    TableError
        If a path is not a folder with at least one table in it.
    """
    folders = [Path(path) for path in paths]
    for folder in folders:
        if not folder.is_dir():
            what = "it is a file" if folder.exists() else "no such folder"
            raise TableError(f"cannot open results {folder}: {what}; give the folder that `spectrograd analyze -o` wrote")
        if not any((folder / f"{name}.parquet").is_file() for name in ("gradients", "spectra", "checkpoints")):
            raise TableError(f"cannot open results {folder}: it holds no tables; run `spectrograd analyze PATH -o {folder}` first")
    return Results(folders)
