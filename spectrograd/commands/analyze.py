"""`spectrograd analyze`: weights → Parquet tables."""

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spectrograd.commands.common import (
    cut_options,
    format_bytes,
    format_number,
    format_problems,
    format_reasons,
    make_console,
    quiet_option,
)

if TYPE_CHECKING:
    from rich.console import Console

    from spectrograd.pipeline import Analysis
    from spectrograd.records import CheckpointRef

EXIT_SOME_REFUSED, EXIT_ALL_REFUSED = 3, 1


def _read_shard(_: click.Context, __: click.Parameter, text: str) -> tuple[int, int]:
    try:
        number, count = (int(part) for part in text.split("/"))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not of the form i/n, such as 2/8") from None
    if not 1 <= number <= count:
        raise click.BadParameter(f"{text!r}: the first number goes from 1 to the second")
    return number, count


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("-o", "--output", "results", required=True, metavar="RESULTS", type=click.Path(path_type=Path), help="Results folder.")
@click.option("--device", default="auto", show_default=True, metavar="auto|cpu|cuda[:n]", help="Where to compute.")
@click.option("--workers", type=click.IntRange(1), help="Threads on the CPU.  [default: one a processor]")
@click.option("--steps", default="", metavar="SPEC", help="Which steps: 0:10000:25 or 0,50,100 or log:40.")
@click.option("--include", multiple=True, metavar="GLOB", help="Only tensors of this name, such as '*.attn.*'.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No tensors of this name.")
@cut_options
@click.option("--bands", default="thirds", show_default=True, metavar="thirds|halves|quarters|K", help="Layers that are early and late.")
@click.option("--shard", default="1/1", metavar="i/n", callback=_read_shard, help="Part i of n processes that share RESULTS.")
@click.option("--force", is_flag=True, help="Record again what is already recorded.")
@quiet_option
@click.pass_context
def analyze(ctx: click.Context, /, paths: tuple[str, ...], results: Path, quiet: bool, **options: Any) -> None:
    """Record singular values and make the tables.

    \b
    spectrograd analyze runs/ -o results/
    spectrograd analyze baseline=out/a muon=out/b -o results/ --steps log:40
    spectrograd analyze -o results/           make the tables again

    What is already recorded and has not changed is not done again, so the same command goes on
    after an interruption and takes in new checkpoints.
    """
    if results.exists() and not results.is_dir():
        raise click.UsageError(f"cannot write results to {results}: it is a file; give a folder with -o")
    from spectrograd.pipeline import Selection, run_analysis

    console = make_console(quiet)
    names = ("steps", "include", "exclude", "heads", "kv_heads", "shard")
    selection = Selection(**{name: options[name] for name in names})
    with _Display(console) as display, _sigterm_as_ctrl_c():
        rest = {name: options[name] for name in ("device", "workers", "bands", "force")}
        analysis = run_analysis(paths, results, selection, progress=display, **rest)
    _summarize(console, analysis)
    if analysis.refused:
        for checkpoint in analysis.refused:
            click.echo(f"refused {checkpoint.path}: {checkpoint.refused}", err=True)
        ctx.exit(EXIT_SOME_REFUSED if analysis.recorded or analysis.current else EXIT_ALL_REFUSED)


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Stop as on Ctrl-C, tables made, when a job scheduler ends the time of the job."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _summarize(console: "Console", analysis: "Analysis") -> None:
    def say(label: str, text: str) -> None:
        console.print(f"{label:<12}{text}", markup=False)

    usable = [*analysis.recorded, *analysis.current]
    matrices = sum(len(checkpoint.matrices) for checkpoint in analysis.recorded)
    done = f"{format_number(len(analysis.recorded), 'checkpoint')}, {format_number(matrices, 'matrix')}"
    if analysis.recorded or analysis.current or analysis.refused:
        say("recorded", f"{done} in {analysis.seconds:.1f} s on {analysis.device}")
    else:
        say("remade", f"tables of {format_number(analysis.findings.num_checkpoints, 'checkpoint')} in {analysis.seconds:.1f} s")
    if analysis.current:
        say("up to date", f"{format_number(len(analysis.current), 'checkpoint')}, recorded earlier")
    if skipped := format_reasons("tensor", [skipped.reason for checkpoint in usable for skipped in checkpoint.skipped]):
        say("no row for", skipped)
    if unusable := analysis.findings.unusable:
        say("no numbers", f"for {format_number(len(unusable), 'matrix')}: {', '.join(_some(unusable, 3))}")
    problems = [(checkpoint.run, checkpoint.name, problem) for checkpoint in usable for problem in checkpoint.problems]
    for line in _some(format_problems(dict.fromkeys([*problems, *analysis.findings.problems])), 8, "in checkpoints.parquet"):
        say("problem", line)
    if unplaced := [checkpoint.name for checkpoint in usable if checkpoint.step is None]:
        say("no step", f"{', '.join(_some(unplaced, 5))}: in the tables, not in the curves")
    if analysis.refused:
        say("refused", f"{format_number(len(analysis.refused), 'checkpoint')}, named below")
    say("tables", f"{analysis.results}/spectra.parquet, gradients.parquet, history.parquet, checkpoints.parquet")
    say("next", f"spectrograd plot {analysis.results} -o figures/")


def _some(items: Sequence[str], most: int, where: str = "") -> list[str]:
    """Return the first of many items, and how many more there are."""
    if len(items) <= most:
        return list(items)
    return [*items[:most], " ".join(filter(None, (f"{len(items) - most:,} more", where)))]


class _Display:
    """Progress: a bar for a person at a terminal, a line now and then for a log file."""

    LINE_EVERY = 30.0  # seconds

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("matrices"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal or console.quiet,
        )
        self.task = self.bar.add_task("scanning", total=None)
        self.checkpoints, self.total, self.done, self.matrices = 0, 0, 0, 0
        self.begin = self.said = time.monotonic()

    def __enter__(self) -> "_Display":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def start(self, checkpoints: int, matrices: int, bytes_to_read: int) -> None:
        """Take what there is to do."""
        self.checkpoints, self.total = checkpoints, matrices
        if checkpoints:
            what = f"{format_number(checkpoints, 'checkpoint')}, {format_number(matrices, 'matrix')}"
            self.console.print(f"reading     {what}, {format_bytes(bytes_to_read)}", markup=False)
        self.bar.update(self.task, total=matrices, description=f"checkpoint 0/{checkpoints}")

    def advance(self) -> None:
        """Take that one matrix is done."""
        self.matrices += 1
        self.bar.advance(self.task)

    def tell(self, text: str) -> None:
        """Take what is being done, where it is not matrices."""
        self.bar.update(self.task, description=text)

    def finish(self, checkpoint: "CheckpointRef") -> None:
        """Take that a checkpoint is done or refused."""
        self.done += 1
        self.bar.update(self.task, description=f"checkpoint {self.done}/{self.checkpoints}")
        now = time.monotonic()
        if self.bar.disable and now - self.said >= self.LINE_EVERY and self.matrices:
            left = (now - self.begin) / self.matrices * (self.total - self.matrices)
            line = f"            {self.done}/{self.checkpoints} checkpoints, about {left / 60:.0f} min left"
            self.console.print(line, markup=False)
            self.said = now
