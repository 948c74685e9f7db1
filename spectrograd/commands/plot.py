"""`spectrograd plot`: tables → line charts."""

from pathlib import Path

import click

from spectrograd.commands.common import make_console, open_all, quiet_option, results_argument


@click.command()
@results_argument
@click.option(
    "-o",
    "--output",
    "folder",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the pictures.",
)
@click.option(
    "--figure",
    "figures",
    multiple=True,
    default=("all",),
    metavar="NAME|all",
    help="gradient, dissociation or all; repeatable.  [default: all]",
)
@click.option("--metric", metavar="COLUMN", help="Metric of the gradient figure, a column of spectra.parquet.  [default: stable_rank]")
@click.option(
    "--group", default="all", show_default=True, metavar="NAME", help="Matrices: a role (q, mlp_up, …), qk, vo, attn, mlp or all."
)
@click.option(
    "--format", "formats", multiple=True, default=("png",), type=click.Choice(["png", "svg", "pdf"]), help="Repeatable.  [default: png]"
)
@click.option(
    "--size",
    default="double",
    show_default=True,
    type=click.Choice(["single", "double", "slide"]),
    help="Column widths of a paper, or a slide.",
)
@click.option(
    "--x", "x", default="linear", show_default=True, type=click.Choice(["linear", "log", "tokens"]), help="Step axis; log keeps step 0."
)
@quiet_option
def plot(
    results: tuple[Path, ...],
    folder: Path,
    figures: tuple[str, ...],
    metric: str | None,
    group: str,
    formats: tuple[str, ...],
    size: str,
    x: str,
    quiet: bool,
) -> None:
    """Draw the line charts; print the path of each picture.

    \b
    spectrograd plot results/ -o figures/
    spectrograd plot results/ -o figures/ --figure gradient --metric alpha_rank --group qk
    spectrograd plot a/ b/ -o figures/ --x log --format pdf --size single
    """
    from spectrograd.errors import StorageError
    from spectrograd.figures import FIGURES, NothingToDrawError, draw, get_figure, save

    console = make_console(quiet)
    names = [figure.NAME for figure in FIGURES] if "all" in figures else [get_figure(name).NAME for name in figures]
    tables = open_all(results)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror or error}; choose another folder with -o") from error
    for name in names:
        try:
            figure = draw(name, tables, metric=metric, group=group, size=size, x=x)
        except NothingToDrawError as error:
            console.print(f"{name}: {error}", markup=False)
            continue
        marks = [name, *([metric] if metric and name == "gradient" else []), *([group] if group != "all" else [])]
        for ending in formats:
            path = folder / f"{'_'.join(marks)}.{ending}"
            save(figure, path)
            click.echo(path)
