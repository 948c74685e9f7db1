"""What the commands share: their options, the console, and how numbers are written."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

    from spectrograd.results import Results

F = TypeVar("F", bound=Callable[..., Any])

paths_argument = click.argument("paths", nargs=-1, metavar="PATH...", required=True)
results_argument = click.argument(
    "results", nargs=-1, metavar="RESULTS...", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")


def cut_options(command: F) -> F:
    """Add the options that say how fused matrices are cut."""
    kv = click.option("--kv-heads", type=click.IntRange(1), help="Key/value heads, if fewer than query heads.")
    heads = click.option("--heads", type=click.IntRange(1), help="Query heads, where no config tells how a fused q, k, v is cut.")
    return heads(kv(command))


def make_console(quiet: bool = False) -> "Console":
    """Return a console on stderr: stdout carries only what a pipe should."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)


def open_all(paths: Iterable[Path]) -> "Results":
    """Return the tables of the results folders that the user named."""
    from spectrograd.results import open_results

    return open_results(*paths)


def format_bytes(size: float) -> str:
    """Return a size as people read it: `41.3 MB`."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"


def format_steps(steps: Iterable[int | None]) -> str:
    """Return steps as first, last and number: `0 … 10,000 (16)`."""
    known = sorted({step for step in steps if step is not None})
    if not known:
        return "none known"
    return f"{known[0]:,}" if len(known) == 1 else f"{known[0]:,} … {known[-1]:,} ({len(known)})"


def format_number(count: int, noun: str) -> str:
    """Return a number of things as people write it: `1 matrix`, `3,552 matrices`."""
    plural = "matrices" if noun == "matrix" else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def format_reasons(noun: str, reasons: Sequence[str], most: int = 6) -> str:
    """Return how many things have which reason, the most frequent first: `20 tensors: 18 × 1-D, 2 × tied`; empty for none."""
    ordered = Counter(sorted(reasons)).most_common()
    if not ordered:
        return ""
    listed = [reason if len(ordered) == 1 else f"{count:,} × {reason}" for reason, count in ordered[:most]]
    more = [f"{len(ordered) - most} more kinds"] if len(ordered) > most else []
    return f"{format_number(len(reasons), noun)}: {', '.join(listed + more)}"


def format_problems(problems: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return problems of checkpoints, each (run, checkpoint, text), as lines: `D8 step_5 and 3 more: …`, equal texts once."""
    where: dict[tuple[str, str], list[str]] = {}
    for run, checkpoint, text in problems:
        where.setdefault((run, text), []).append(checkpoint)
    return [
        f"{run} {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {text}" for (run, text), names in where.items()
    ]  # fmt: skip
