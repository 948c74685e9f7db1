"""`spectrograd compare`: model sizes side by side."""

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spectrograd.commands.common import make_console, open_all, quiet_option, results_argument

if TYPE_CHECKING:
    import pandas as pd


@click.command()
@results_argument
@click.option(
    "--group", default="all", show_default=True, metavar="NAME", help="Matrices: a role (q, mlp_up, …), qk, vo, attn, mlp or all."
)
@click.option("--format", "style", default="table", show_default=True, type=click.Choice(["table", "csv", "json", "markdown"]))
@click.option(
    "-o", "--output", "file", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Write there, not to the terminal."
)
@click.option(
    "--figure", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="Draw the picture too (.png, .svg or .pdf)."
)
@quiet_option
def compare(results: tuple[Path, ...], group: str, style: str, file: Path | None, figure: Path | None, quiet: bool) -> None:
    """Set runs side by side: gradients of stable rank and alpha_rank, and when they turn.

    \b
    spectrograd compare results/
    spectrograd compare results/ --format json | jq '.[].crossings'
    spectrograd compare a/ b/ --format markdown -o table.md --figure gradient.pdf

    Raw SR gradients grow with the width of a model: a Gaussian n×n matrix has stable rank n/4.
    Across sizes compare signs and steps, or plot --metric stable_rank_relative.
    """
    from spectrograd.errors import StorageError
    from spectrograd.summaries import summarize_runs, to_display, to_records

    tables = open_all(results)
    summary = summarize_runs(tables, group=group)
    if style == "json":
        text = json.dumps(to_records(summary), indent=1, ensure_ascii=False) + "\n"
    elif style == "csv":
        text = _write_csv(summary)
    elif style == "markdown":
        text = _write_markdown(to_display(summary))
    else:
        text = _write_table(to_display(summary), width=None if file is None else 100)
    if file is not None:
        try:
            file.write_text(text, "utf-8")
        except OSError as error:
            raise StorageError(f"cannot write {file}: {error.strerror or error}; choose another place with -o") from error
    else:
        click.echo(text, nl=False)
    if style == "table":
        console = make_console(quiet)
        console.print("Raw SR gradients grow with width; across sizes compare signs and steps, or stable_rank_relative.", markup=False)
    if figure is not None:
        from spectrograd.figures import draw, save

        save(draw("gradient", tables, group=group), figure)


def _write_csv(summary: "pd.DataFrame") -> str:
    flat = summary.copy()
    flat["crossings"] = [json.dumps(crossings) for crossings in flat["crossings"]]
    if "sr_crossing_between" in flat:
        flat["sr_crossing_between"] = [json.dumps(pair) if pair else "" for pair in flat["sr_crossing_between"]]
    buffer = io.StringIO()
    flat.to_csv(buffer, index=False, quoting=csv.QUOTE_MINIMAL)
    return buffer.getvalue()


def _write_markdown(shown: "pd.DataFrame") -> str:
    rows = [list(shown.columns), ["---"] * len(shown.columns), *shown.to_numpy().tolist()]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def _write_table(shown: "pd.DataFrame", width: int | None) -> str:
    """Return a table with a column for each run, so that three runs fit into 80 columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    first, *rest = shown.columns
    table.add_column("")
    for name in shown[first]:
        table.add_column(Text(name), justify="right")
    for column in rest:
        if any(shown[column]):
            table.add_row(*map(Text, (column, *shown[column])))
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
