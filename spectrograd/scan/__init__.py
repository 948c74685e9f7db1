"""Paths → runs → checkpoints, from headers, sidecars and names alone: no weights are read."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spectrograd.errors import CheckpointError, UnknownNameError
from spectrograd.naming import name_matrices
from spectrograd.readers import READERS, UNKNOWN_FORMAT, describe_foreign
from spectrograd.records import CheckpointRef, Run, Skipped
from spectrograd.scan.conflicts import report_shapes, settle_conflicts
from spectrograd.scan.facts import LARGEST_STEP, describe_error, read_facts
from spectrograd.scan.find import Unit, find_units
from spectrograd.steps import (
    NamedStep,
    decide_counters,
    is_alias,
    natural_key,
    parse_bare,
    parse_counter,
    parse_seed_folder,
    parse_step,
    says_nothing,
)

MODEL_LIKE = re.compile(r"model|ckpt|checkpoint|weight|consolidated|adapter|lora|final|last|best|latest|main|release", re.IGNORECASE)
DEEPEST = 4  # folders between the weights and the folder that names their step


@dataclass(frozen=True, slots=True)
class Scan:
    """What lies under some paths: runs with their checkpoints, and what was passed over with the reason."""

    runs: tuple[Run, ...]
    ignored: tuple[tuple[Path, str], ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a unit stands: its run's folder and label, its own path within it, and what its names say."""

    folder: Path
    path: Path
    parts: tuple[str, ...]
    named: NamedStep | None
    seed: int | None


def scan(
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, heads: int | None = None, kv_heads: int | None = None
) -> Scan:
    """Return the runs under one or more paths, each a checkpoint, a run, or a folder of runs.

    Parameters
    ----------
    paths : path or sequence of paths
        `LABEL=PATH` names a run; an existing path that contains `=` is a path.
    heads, kv_heads : int, optional
        Numbers of query and of key/value heads, where neither a configuration nor the shapes tell how a fused q, k, v
        matrix is cut.

    Raises
    ------
    CheckpointError
        If a path does not exist.
    UnknownNameError
        If two paths are given the same label.
    """
    given = [_split_label(os.fspath(text)) for text in ([paths] if isinstance(paths, (str, os.PathLike)) else paths)]
    for label in {label for label, _ in given if label}:
        if len(same := [str(path) for other, path in given if other == label]) > 1:
            raise UnknownNameError(f"cannot name {len(same)} runs {label!r}: {', '.join(same)}; give each a label of its own")
    runs: list[Run] = []
    labelled: set[int] = set()
    ignored: list[tuple[Path, str]] = []
    earlier: set[Path] = set()
    for label, root in given:
        found = find_units(root)
        ignored += found.ignored
        places: dict[tuple[Path, tuple[str, ...]], list[tuple[_Place, Unit]]] = {}
        for unit in found.units:
            place = _place(unit, root)
            if reason := _pass_over(unit, place, root, earlier):
                ignored.append((place.path, reason))
                continue
            places.setdefault((place.folder, place.parts), []).append((place, unit))
        earlier |= {Path(os.path.realpath(file)) for unit in found.units for file in unit.files}
        for number, ((folder, parts), members) in enumerate(places.items()):
            if label and number == 0:
                labelled.add(len(runs))
            name = (label if number == 0 or not label else f"{label}/{folder.name}") or _name_run(folder, parts)
            runs.append(_make_run(name, folder, members, heads, kv_heads))
    return Scan(tuple(sorted(_tell_apart(runs, labelled), key=lambda run: natural_key(run.name))), tuple(ignored))


def _pass_over(unit: Unit, place: _Place, root: Path, earlier: set[Path]) -> str:
    """Return why a unit is no checkpoint of its own: an earlier path has it, or it is some program's data. Else empty."""
    if unit.files and Path(os.path.realpath(unit.files[0])) in earlier:
        return "given twice"
    lone = len(unit.files) == 1 and not unit.refused and unit.files[0] != root
    if lone and place.named is None and not MODEL_LIKE.search(unit.stem):
        [file] = unit.files
        if not any(reader.matches(file) for reader in READERS) and describe_foreign(file) == UNKNOWN_FORMAT:
            return f"no weights, by its name: {UNKNOWN_FORMAT}"
    return ""


def _split_label(text: str) -> tuple[str, Path]:
    label, equals, rest = text.partition("=")
    if equals and not Path(text).exists():
        path, name = Path(rest), label
    else:
        path, name = Path(text), ""
    if not path.exists():
        raise CheckpointError(f"cannot read {path}: no such file or folder")
    return name, path


def _place(unit: Unit, root: Path) -> _Place:
    """Decide which folder is the run's: that of the files where their names hold a step, else above the step's folder."""
    own = _parse_name(unit.stem) if unit.stem else None
    if own is not None:
        return _with_seed(unit.folder, unit.files[0] if len(unit.files) == 1 else unit.folder / unit.stem, (), own)
    folder = unit.folder
    if unit.stem == "model" or unit.sharded or unit.refused or not root.is_file():
        for depth, candidate in enumerate([folder, *folder.parents][:DEEPEST]):
            named = _parse_folder(candidate.name)
            if named is not None:
                below = folder.relative_to(candidate).parts
                return _with_seed(candidate.parent, folder, tuple(part for part in below if not says_nothing(part)), named)
            if candidate == root or depth + 1 == DEEPEST:
                break
    path = unit.folder / f"{unit.stem}{unit.files[0].suffix}" if unit.files else folder
    return _with_seed(folder, path, (), None)


def _parse_name(name: str) -> NamedStep | None:
    """Return what a name says of a step; a save counter is a step until its siblings have decided."""
    counter = parse_counter(name)
    return parse_step(name) or (NamedStep(step=counter, kind="step") if counter is not None else None)


def _parse_folder(name: str) -> NamedStep | None:
    """Return what the name of a folder that holds a checkpoint says; there a bare number is a step."""
    return parse_bare(name) or _parse_name(name) or (NamedStep() if is_alias(name) else None)


def _with_seed(folder: Path, path: Path, parts: tuple[str, ...], named: NamedStep | None) -> _Place:
    """Take a folder `seed-0` of a run for what it is: the same run, another seed."""
    resolved = folder if folder.name else folder.resolve()
    seed = parse_seed_folder(resolved.name)
    if seed is not None:
        return _Place(resolved.parent, path, parts, named, seed)
    return _Place(folder, path, parts, named, named.seed if named else None)


def _name_run(folder: Path, parts: tuple[str, ...]) -> str:
    """Return the label of a run: its folder's name, or the one above where that says nothing."""
    real = Path(os.path.realpath(folder))  # Path.resolve raises where links lead in a circle
    above = [name for name in (p.name for p in (real, *real.parents)) if name and not says_nothing(name)]
    return "/".join((above[0] if above else "run", *parts))


def _explain_nothing(skipped: Sequence[Skipped]) -> str:
    """Return why no tensor of a checkpoint is a weight matrix."""
    most = [f"{count} × {reason}" for reason, count in Counter(tensor.reason for tensor in skipped).most_common(2)]
    return "no weight matrices in it" + (f" ({', '.join(most)})" if most else "")


def _tell_apart(runs: list[Run], labelled: set[int]) -> list[Run]:
    """Give equal names the shortest path that distinguishes them; a label that the user gave stays as it is."""
    result = list(runs)
    for name in {run.name for run in runs}:
        same = [i for i, run in enumerate(runs) if run.name == name]
        if len(same) < 2:
            continue
        others = {run.name for i, run in enumerate(runs) if i not in same or i in labelled}
        paths = {i: Path(os.path.realpath(runs[i].path)).parts for i in same if i not in labelled}
        for length in range(1, max(map(len, paths.values())) + 1):
            names = {i: "/".join(path[-length:]).lstrip("/") for i, path in paths.items()}
            if len(set(names.values()) - others) == len(paths):
                break
        else:  # several runs in one folder
            names = {i: f"{name} ({order + 1})" for order, i in enumerate(paths)}
        for i, label in names.items():
            result[i] = Run(label, runs[i].path, tuple(replace(checkpoint, run=label) for checkpoint in runs[i].checkpoints))
    return result


def _make_run(name: str, folder: Path, members: Iterable[tuple[_Place, Unit]], heads: int | None, kv_heads: int | None) -> Run:
    checkpoints = [_read_checkpoint(name, folder, place, unit, heads, kv_heads) for place, unit in members]
    counters = [
        checkpoint for checkpoint in checkpoints if parse_counter(checkpoint.path.stem) is not None and checkpoint.layout == "names"
    ]
    if counters:
        kind = decide_counters([checkpoint.path.stem for checkpoint in counters])
        checkpoints = [replace(c, step_kind=kind) if c in counters else c for c in checkpoints]
    layouts = [replace(c, layout="step folders" if c.path.is_dir() else "files") if c.layout == "names" else c for c in checkpoints]
    settled = sorted(settle_conflicts(layouts), key=lambda c: (c.sort_key[:-1], natural_key(c.name)))
    return Run(name, folder, tuple(report_shapes(settled)))


def _read_checkpoint(run: str, folder: Path, place: _Place, unit: Unit, heads: int | None, kv_heads: int | None) -> CheckpointRef:
    """Return one checkpoint with its matrices, or refused with the reason."""
    named = place.named or NamedStep()
    if max(named.step or 0, named.tokens or 0) > LARGEST_STEP:
        named = NamedStep(seed=named.seed)
    path = place.path.relative_to(folder).as_posix() if place.path.is_relative_to(folder) else place.path.name
    base = CheckpointRef(
        run=run, name=path, path=place.path, files=unit.files, seed=place.seed, stage=named.stage, step=named.step, step_kind=named.kind,
        epoch=named.epoch, tokens=named.tokens, layout="names", refused=unit.refused,
    )  # fmt: skip
    if unit.refused:
        return base
    try:
        facts = read_facts(unit, folder)
        naming = name_matrices(facts.entries, facts.config, heads=heads, kv_heads=kv_heads)
    except CheckpointError as error:
        culprit = next((file for file in unit.files if str(file) in str(error)), unit.files[0])
        return replace(base, refused=describe_error(error, culprit))
    problems = list(naming.problems)
    if facts.step is not None and named.kind == "step" and named.step != facts.step:
        problems.append(f"its name says step {named.step}, {facts.source} says {facts.step}; the latter is taken")
    known = facts.step is not None
    if known and named.step is None:  # `ckpt.pt` will be overwritten: what was recorded of it at another step stays
        path = f"{path}@{facts.step}"
    return replace(
        base, name=path, step=facts.step if known else named.step, step_kind=facts.step_kind if known else named.kind,
        epoch=facts.epoch if facts.epoch is not None else named.epoch, format=facts.format,
        layout=facts.layout if facts.layout not in ("files", "shards") else "names", depth=naming.depth, width=naming.width,
        num_params=naming.num_params, matrices=naming.matrices, skipped=naming.skipped, problems=tuple(problems), config=facts.config,
        refused="" if naming.matrices else _explain_nothing(naming.skipped),
    )  # fmt: skip
