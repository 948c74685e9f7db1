"""`spectrograd scan`: what would be analysed, and what would not and why."""

import json
import math
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from spectrograd.commands.common import cut_options, format_bytes, format_problems, format_reasons, format_steps, paths_argument
from spectrograd.errors import CheckpointError

if TYPE_CHECKING:
    from spectrograd.records import CheckpointRef, Run
    from spectrograd.scan import Scan


@click.command()
@paths_argument
@cut_options
@click.option("--json", "as_json", is_flag=True, help="Print everything, with each tensor that gets no row and why.")
def scan(paths: tuple[str, ...], heads: int | None, kv_heads: int | None, as_json: bool) -> None:
    """Show what would be analysed, from headers alone.

    \b
    spectrograd scan runs/
    spectrograd scan baseline=out/a muon=out/b
    spectrograd scan runs/ --json | jq '.runs[].checkpoints[].skipped'
    """
    from spectrograd.scan import scan as find

    found = find(paths, heads=heads, kv_heads=kv_heads)
    if not any(run.checkpoints for run in found.runs):
        raise CheckpointError(
            f"cannot find a checkpoint in {', '.join(paths)}: {len(found.ignored)} files were passed over; "
            f"give a checkpoint, a run (a folder of checkpoints) or a folder of runs"
        )
    if as_json:
        json.dump(_describe(found), sys.stdout, indent=1)
        click.echo()
    else:
        _show(found)


def _show(found: "Scan") -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for run in found.runs:
        good = [checkpoint for checkpoint in run.checkpoints if not checkpoint.refused]
        console.print(Text.assemble((run.name, "bold"), f"  {run.path}"))
        for label, value in _facts(run, good):
            console.print(f"  {label:<12}{value}", markup=False)
        skipped = format_reasons("tensor", [skipped.reason for checkpoint in good[:1] for skipped in checkpoint.skipped])
        if skipped:
            console.print(f"  {'no row for':<12}{skipped} (in each checkpoint)", markup=False)
        reasons = [(c, text) for c in run.checkpoints for text in (*c.problems, *([f"refused: {c.refused}"] if c.refused else []))]
        for line in format_problems((run.name, checkpoint.name, text) for checkpoint, text in reasons):
            console.print(f"  {'problem':<12}{line}", markup=False)
    if found.ignored:
        console.print(f"passed over {format_reasons('file', [reason for _, reason in found.ignored])}", markup=False)


def _facts(run: "Run", good: list["CheckpointRef"]) -> list[tuple[str, str]]:
    if not good:
        return [("checkpoints", f"{len(run.checkpoints)}, all refused")]
    from spectrograd.records import format_count

    sizes = Counter((c.depth, c.width, c.num_params) for c in good)
    last = next(c for c in reversed(good) if (c.depth, c.width, c.num_params) == sizes.most_common(1)[0][0])
    kinds = sorted({checkpoint.step_kind or "no step" for checkpoint in good})
    seeds = sorted({checkpoint.seed for checkpoint in good if checkpoint.seed is not None})
    roles: dict[str, int] = {}
    for ref in last.matrices:
        roles[ref.role] = roles.get(ref.role, 0) + 1
    return [
        ("format", f"{' and '.join(sorted({c.format for c in good}))}, layout {' and '.join(sorted({c.layout for c in good}))}"),
        *((kind, format_steps(c.step for c in good if c.step_kind == kind)) for kind in kinds if kind != "no step"),
        *([("no step", ", ".join(c.name for c in good if c.step is None))] if "no step" in kinds else []),
        *([("seeds", f"{', '.join(map(str, seeds))}: one run, the seeds its replicates")] if len(seeds) > 1 else []),
        ("model", f"{last.depth or 0} layers, width {last.width or '?'}, {format_count(last.num_params)} parameters"),
        ("matrices", f"{len(last.matrices)}: {', '.join(f'{count} {role}' for role, count in roles.items())}"),
        ("dtype", ", ".join(sorted({ref.entry.dtype for checkpoint in good for ref in checkpoint.matrices}))),
        ("on disk", format_bytes(sum(file.stat().st_size for checkpoint in good for file in checkpoint.files))),
    ]


def _describe(found: "Scan") -> dict[str, Any]:
    """Return a scan as `--json` prints it."""
    return {
        "runs": [
            {"name": run.name, "path": str(run.path), "checkpoints": [_describe_checkpoint(c) for c in run.checkpoints]}
            for run in found.runs
        ],
        "ignored": [{"path": str(path), "reason": reason} for path, reason in found.ignored],
    }  # fmt: skip


def _describe_checkpoint(checkpoint: "CheckpointRef") -> dict[str, Any]:
    names = ("seed", "stage", "step", "step_kind", "epoch", "tokens", "format", "layout", "depth", "width", "num_params")
    return {
        "checkpoint": checkpoint.name,
        "path": str(checkpoint.path),
        "status": "refused" if checkpoint.refused else "done",
        "reason": checkpoint.refused,
        **{name: getattr(checkpoint, name) for name in names},
        "num_values": sum(math.prod(ref.shape) for ref in checkpoint.matrices),
        "matrices": [
            {"tensor": m.tensor, "stack": m.stack, "layer": m.layer, "expert": m.expert, "role": m.role, "shape": m.shape,
             "dtype": m.entry.dtype, "note": m.note}
            for m in checkpoint.matrices
        ],
        "skipped": [{"tensor": skipped.tensor, "reason": skipped.reason} for skipped in checkpoint.skipped],
        "problems": list(checkpoint.problems),
    }  # fmt: skip
