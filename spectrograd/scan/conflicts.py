"""Checkpoints of one run that contradict each other: several for one step, or matrices unlike those of the others."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from spectrograd.records import CheckpointRef
from spectrograd.steps import natural_key, parse_bare, parse_counter, parse_step

SUFFIXED = re.compile(r"(-v\d+|\(\d+\)|\.bak)$")


def preference(name: str, format: str, step: int) -> tuple[Any, ...]:
    """Return a sort key whose largest is the one to keep of several checkpoints for one step.

    A name that says the step goes before one that says another or none (`last.ckpt`), then safetensors before other
    formats, then a name without a suffix (`-v1`, `(1)`, `.bak`), then the last name.
    """
    path = PurePath(name.removesuffix(f"@{step}"))
    suffixed = any(SUFFIXED.search(text) for text in (path.name, path.stem))
    return _says(path, step), format.startswith("safetensors"), not suffixed, natural_key(name)


def _says(path: PurePath, step: int) -> bool:
    """Tell whether a part of a checkpoint's path names this step."""
    for part in path.parts:
        for text in {part, PurePath(part).stem}:
            named = parse_bare(text) or parse_step(text)
            if parse_counter(text) == step or (named is not None and named.step == step):
                return True
    return False


def settle_conflicts(checkpoints: Sequence[CheckpointRef]) -> list[CheckpointRef]:
    """Keep one checkpoint a step, which names the others as problems; refused ones all stay."""
    groups: dict[tuple[object, ...], list[CheckpointRef]] = {}
    for checkpoint in checkpoints:
        place = (checkpoint.seed, checkpoint.stage, checkpoint.step_kind, checkpoint.step)
        groups.setdefault(place if checkpoint.step is not None else (checkpoint.name,), []).append(checkpoint)
    kept = []
    for same in groups.values():
        same.sort(key=lambda c: (not c.refused, *preference(c.name, c.format, c.step or 0)))
        *others, best = same
        left_out = [f"{_tell(c, best)} is of the same step and was left out" for c in others if not c.refused]
        kept += [c for c in others if c.refused]
        kept.append(replace(best, problems=(*best.problems, *left_out)))
    return kept


def _tell(checkpoint: CheckpointRef, other: CheckpointRef) -> str:
    """Return a checkpoint's name, or that of its file where both lie in one folder."""
    return checkpoint.name if checkpoint.name != other.name or not checkpoint.files else checkpoint.files[0].name


def report_shapes(checkpoints: Sequence[CheckpointRef]) -> list[CheckpointRef]:
    """Return the checkpoints, those with a problem whose matrices are not those of most others of the run."""
    shapes = [{ref.tensor: ref.shape for ref in checkpoint.matrices} for checkpoint in checkpoints]
    counts = Counter(frozenset(own.items()) for own, checkpoint in zip(shapes, checkpoints, strict=True) if not checkpoint.refused)
    if len(counts) < 2:
        return list(checkpoints)
    usual = dict(counts.most_common(1)[0][0])
    result = []
    for checkpoint, own in zip(checkpoints, shapes, strict=True):
        differs = not checkpoint.refused and own != usual
        problem = f"unlike most checkpoints of this run: {_explain_difference(own, usual)}"
        result.append(replace(checkpoint, problems=(*checkpoint.problems, problem)) if differs else checkpoint)
    return result


def _explain_difference(own: dict[str, tuple[int, int]], usual: dict[str, tuple[int, int]]) -> str:
    reshaped = [name for name in own.keys() & usual.keys() if own[name] != usual[name]]
    parts = []
    for what, names in (("fewer", usual.keys() - own.keys()), ("more", own.keys() - usual.keys()), ("of another shape", reshaped)):
        if names:
            first = min(names, key=natural_key)
            detail = f": {own[first][0]}×{own[first][1]}, not {usual[first][0]}×{usual[first][1]}" if what == "of another shape" else ""
            parts.append(f"{len(names)} {'matrix' if len(names) == 1 else 'matrices'} {what} ({first}{detail})")
    return ", ".join(parts)
