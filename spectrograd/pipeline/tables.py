"""Recordings → the four tables. Rows that are still right are taken over, so a new checkpoint costs its own rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spectrograd.gradients import compute_gradients
from spectrograd.history import read_history
from spectrograd.metrics import COLUMNS, METRICS_VERSION, measure_spectrum
from spectrograd.pipeline.record import make_ledger
from spectrograd.records import CheckpointRef, Run, Spectrum, join_notes, parse_precision
from spectrograd.results import CHECKPOINTS, GRADIENTS, HISTORY, ResultsFolder, read_ledger, read_recording, spectra_schema, to_frame
from spectrograd.scan.conflicts import preference

ORDER = [(name, "ascending") for name in ("run", "seed", "stage", "step", "checkpoint", "stack", "layer", "expert", "tensor")]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Findings:
    """What the tables show that nobody could know before: `unusable` matrices have no numbers, `problems` are of checkpoints."""

    num_checkpoints: int = 0
    unusable: tuple[str, ...] = ()
    problems: tuple[tuple[str, str, str], ...] = ()


def make_tables(
    folder: ResultsFolder, runs: Sequence[Run], refused: Iterable[CheckpointRef], bands: str, provenance: dict[str, str]
) -> Findings:
    """Remake the tables of a results folder from its recordings, under its lock.

    Of several recordings for one step, which later files may bring, one gets rows: see `scan.conflicts.preference`.

    Parameters
    ----------
    folder : ResultsFolder
        Holds the recordings, which are not changed.
    runs : sequence of Run
        Those scanned just now: their logs are read, and refusals of earlier analyses of them are forgotten.
    refused : iterable of CheckpointRef
        Checkpoints that get a row in the ledger alone.
    bands : str
        See `gradients.compute_gradients`.
    provenance : dict
        Written into each file's metadata.
    """
    with folder.lock():
        old_ledger = folder.read_table("checkpoints", CHECKPOINTS)
        recordings = {}
        seen_now = {(run.name, checkpoint.name): checkpoint.problems for run in runs for checkpoint in run.checkpoints}
        for run, path in folder.find_recordings():
            if (row := read_ledger(path)) is not None:
                key = run, str(row["checkpoint"])
                recordings[key] = (path, {"run": run, **row, "problems": list(seen_now.get(key, row["problems"]))})
        left_out = _settle(recordings)
        ledger = [row for _, row in recordings.values()]
        ledger += _refusals(refused, old_ledger, runs, set(recordings))
        versions = {"metrics_version": str(METRICS_VERSION), **provenance}
        spectra = _make_spectra(folder, recordings, _still_right(old_ledger, recordings))
        history = _make_history(folder, runs, {str(row["run"]) for row in ledger})
        frame = compute_gradients(to_frame(spectra), list(COLUMNS), bands)
        gradients = pa.Table.from_pandas(frame, schema=GRADIENTS, preserve_index=False)
        problems = [*left_out, *_find_repeated(spectra)]
        for (run, checkpoint), problem in problems:
            known = recordings[run, checkpoint][1]["problems"]
            known += [] if problem in known else [problem]
        folder.write_table("spectra", spectra, versions)
        folder.write_table("gradients", gradients, versions)
        folder.write_table("history", history, provenance)
        folder.write_table("checkpoints", _sort(pa.Table.from_pylist(ledger, schema=CHECKPOINTS)), provenance)
    return Findings(len(recordings), _find_unusable(spectra), tuple((*key, problem) for key, problem in problems))


def _settle(recordings: dict[Key, tuple[Any, dict[str, Any]]]) -> list[tuple[Key, str]]:
    """Take out all but one of the recordings for one step, and return the problems of those that stay."""
    places: dict[tuple[Any, ...], list[Key]] = {}
    for key, (_, row) in recordings.items():
        if row["step"] is not None:
            places.setdefault(tuple(row[name] for name in ("run", "seed", "stage", "step_kind", "step")), []).append(key)
    problems = []
    for (*_, step), keys in places.items():
        *others, best = sorted(keys, key=lambda key: preference(key[1], recordings[key][1]["format"], step))
        for other in others:
            del recordings[other]
            problems.append((best, f"{other[1]} is of the same step and was left out"))
    return problems


def _find_unusable(spectra: pa.Table) -> tuple[str, ...]:
    bad = spectra.filter(pc.is_nan(spectra["spectral_norm"]))
    columns = [bad[name].to_pylist() for name in ("run", "checkpoint", "tensor", "note")]
    return tuple(f"{run} {checkpoint} {tensor} ({note})" for run, checkpoint, tensor, note in zip(*columns, strict=True))


def _find_repeated(spectra: pa.Table) -> list[tuple[Key, str]]:
    """Return what is wrong with checkpoints all of whose matrices equal those of another step of the same training."""
    contents: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    columns = [spectra[name].to_pylist() for name in ("run", "seed", "stage", "checkpoint", "tensor", "content_hash")]
    for *place, tensor, digest in zip(*columns, strict=True):
        contents.setdefault(tuple(place), []).append((tensor, digest))
    first: dict[tuple[Any, ...], str] = {}
    repeated = []
    for (*training, checkpoint), weights in contents.items():
        earlier = first.setdefault((*training, *weights), checkpoint)
        if earlier != checkpoint:
            repeated.append(((str(training[0]), checkpoint), f"the same weights as {earlier}"))
    return repeated


def _refusals(refused: Iterable[CheckpointRef], old: pa.Table | None, runs: Sequence[Run], recorded: set[Key]) -> list[dict[str, Any]]:
    """Return the ledger rows of refused checkpoints: of this scan, and earlier ones of runs that were not scanned now."""
    rows = [{"run": checkpoint.run, **make_ledger(checkpoint, "")} for checkpoint in refused]
    here = {run.name for run in runs}
    others = {run for run, _ in recorded}
    for row in old.to_pylist() if old is not None else []:
        if row["status"] == "refused" and row["run"] in others - here and (row["run"], row["checkpoint"]) not in recorded:
            rows.append(row)
    return [row for row in rows if (row["run"], row["checkpoint"]) not in recorded or row["run"] in here]


def _still_right(old: pa.Table | None, recordings: dict[Key, tuple[Any, dict[str, Any]]]) -> set[Key]:
    """Return the checkpoints whose recording is the one that the old tables were made from."""
    if old is None:
        return set()
    before = {(row["run"], row["checkpoint"]): row for row in old.to_pylist() if row["status"] == "done"}
    compared = ("fingerprint", "spectrum_version", "step", "seed", "stage")
    return {
        key for key, (_, row) in recordings.items() if key in before and all(before[key][name] == row[name] for name in compared)
    }  # fmt: skip


def _make_spectra(folder: ResultsFolder, recordings: dict[Key, tuple[Any, dict[str, Any]]], right: set[Key]) -> pa.Table:
    schema = spectra_schema(COLUMNS)
    old = folder.read_table("spectra", schema)
    if old is not None and (old.schema.metadata or {}).get(b"spectrograd.metrics_version") != str(METRICS_VERSION).encode():
        old = None
    parts, kept = [], set()
    if old is not None and old.schema.names == schema.names:
        keys = list(zip(old["run"].to_pylist(), old["checkpoint"].to_pylist(), strict=True))
        parts.append(old.filter(pa.array([key in right for key in keys], type=pa.bool_())))
        kept = set(keys) & right
    parts += [_measure_recording(run, path, schema) for (run, checkpoint), (path, _) in recordings.items() if (run, checkpoint) not in kept]
    return _sort(pa.concat_tables([part.replace_schema_metadata(None) for part in parts]) if parts else schema.empty_table())


def _measure_recording(run: str, path: Any, schema: pa.Schema) -> pa.Table:
    """Return the rows of `spectra.parquet` for one recording."""
    recording = read_recording(path)
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    notes = []
    place = [recording[name].to_pylist() for name in ("rows", "cols", "dtype", "note")]
    for values, rows, cols, dtype, note in zip(recording["singular_values"], *place, strict=True):
        sigma = np.asarray(values.values.to_numpy(), dtype=np.float64)
        measured, remark = measure_spectrum(Spectrum(sigma, rows, cols, dtype, parse_precision(dtype, note)))
        notes.append(join_notes(note, "" if note.startswith("zero") else remark))
        for name, value in measured.items():
            columns[name].append(value)
    arrays = {"run": [run] * len(recording), **columns, "note": notes}
    return pa.table(
        [pa.array(arrays[f.name], type=f.type) if f.name in arrays else recording[f.name].combine_chunks() for f in schema], schema=schema
    )


def _make_history(folder: ResultsFolder, runs: Sequence[Run], known: set[str]) -> pa.Table:
    """Return the logs of the runs scanned now, and the earlier ones of runs that were not."""
    rows = [row for run in runs for row in read_history(run) if run.name in known]
    table = pa.Table.from_pylist(rows, schema=HISTORY)
    old = folder.read_table("history", HISTORY)
    if old is not None:
        others = pa.array(sorted(known - {run.name for run in runs}), type=pa.string())
        table = pa.concat_tables([table, old.filter(pc.is_in(old["run"], others)).replace_schema_metadata(None)])
    return _sort(table)


def _sort(table: pa.Table) -> pa.Table:
    order = [key for key in ORDER if key[0] in table.column_names]
    return table.take(pc.sort_indices(table, sort_keys=order)) if len(table) else table
