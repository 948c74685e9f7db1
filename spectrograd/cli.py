"""The click group. A command's module is imported when it is called; what computes is imported inside the commands."""

import difflib
import sys
from importlib import import_module
from typing import Any

import click

from spectrograd import __version__
from spectrograd.errors import CheckpointError, SpectrogradError, StorageError, TableError

_COMMANDS = ("scan", "analyze", "plot", "compare")
EXIT_NOTHING, EXIT_USAGE, EXIT_MACHINE, EXIT_INTERRUPTED = 1, 2, 4, 130


def _exit_code(error: SpectrogradError) -> int:
    """Return the exit code that scripts rely on."""
    if isinstance(error, StorageError):
        return EXIT_MACHINE
    return EXIT_NOTHING if isinstance(error, (CheckpointError, TableError)) else EXIT_USAGE


class _Group(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"spectrograd.commands.{cmd_name}"), cmd_name)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if near := difflib.get_close_matches(args[0], _COMMANDS, 1):
                raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SpectrogradError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(_exit_code(error))
        except KeyboardInterrupt:
            click.echo("Interrupted. Finished checkpoints are kept and in the tables; run the same command again to go on.", err=True)
            ctx.exit(EXIT_INTERRUPTED)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="spectrograd")
def main() -> None:
    """See how the singular-value spectra of a transformer's weights change over training.

    \b
    spectrograd scan runs/                       what would be analysed
    spectrograd analyze runs/ -o results/        weights → Parquet tables
    spectrograd plot results/ -o figures/        tables → line charts
    spectrograd compare results/                 model sizes side by side

    runs/ is a checkpoint, a run (a folder of checkpoints) or a folder of runs, in
    safetensors or torch.save files, as trainers leave them. No model is loaded, no
    code in a file is run.
    """
    for stream in (sys.stdout, sys.stderr):  # a terminal or log that knows no σ or − gets a question mark, not a traceback
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
