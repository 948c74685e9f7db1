"""Which part of what lies on disk is analysed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from spectrograd.records import Run
from spectrograd.scan import Scan
from spectrograd.steps import select_steps


@dataclass(frozen=True, slots=True)
class Selection:
    """Which part of what lies on disk is analysed, and how ambiguous matrices are cut."""

    steps: str = ""
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    heads: int | None = None
    kv_heads: int | None = None
    shard: tuple[int, int] = (1, 1)


def select(found: Scan, selection: Selection) -> list[Run]:
    """Return the runs with the checkpoints and matrices that a selection keeps."""
    runs = []
    for run in found.runs:
        steps = [checkpoint.step for checkpoint in run.checkpoints if checkpoint.step is not None]
        wanted = select_steps(selection.steps, steps) if selection.steps else None
        kept = [c for c in run.checkpoints if wanted is None or c.step in wanted]
        if selection.include or selection.exclude:
            kept = [replace(c, matrices=tuple(ref for ref in c.matrices if _takes(ref.tensor, selection))) for c in kept]
            kept = [c for c in kept if c.matrices or c.refused]
        runs.append(Run(run.name, run.path, tuple(kept)))
    return runs


def explain_nothing(paths: Sequence[str | os.PathLike[str]], found: Scan, selection: Selection) -> str:
    """Return why nothing is left to analyse, and what to do."""
    where = ", ".join(os.fspath(path) for path in paths)
    steps = sorted({c.step for run in found.runs for c in run.checkpoints if c.step is not None})
    if any(run.checkpoints for run in found.runs):
        what = f"--steps {selection.steps}" if selection.steps else "--include and --exclude"
        return f"cannot find a checkpoint in {where}: {what} leaves none of the steps {_list_steps(steps)}; choose others"
    passed = f" ({len(found.ignored)} files passed over, e.g. {found.ignored[0][0].name}: {found.ignored[0][1]})" if found.ignored else ""
    return (
        f"cannot find a checkpoint in {where}: no .safetensors, .pt, .pth, .bin or .ckpt file with weights{passed}; "
        f"give a checkpoint, a run (a folder of checkpoints) or a folder of runs"
    )


def _list_steps(steps: Sequence[int]) -> str:
    if len(steps) <= 6:
        return ", ".join(map(str, steps)) or "(none has a step)"
    return f"{steps[0]}, {steps[1]}, … {steps[-1]} ({len(steps)})"


def _takes(tensor: str, selection: Selection) -> bool:
    included = not selection.include or any(fnmatchcase(tensor, pattern) for pattern in selection.include)
    return included and not any(fnmatchcase(tensor, pattern) for pattern in selection.exclude)
