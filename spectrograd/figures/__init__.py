"""Pictures of tables. A figure is a module that is listed in `FIGURES`; it shows nothing and saves nothing."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from matplotlib.figure import Figure

from spectrograd.errors import StorageError, UnknownNameError
from spectrograd.figures import dissociation, gradient
from spectrograd.figures.curves import NothingToDrawError, Options
from spectrograd.figures.style import FILES, SIZES, rc, settings
from spectrograd.results import Results

__all__ = ["FIGURES", "FORMATS", "FigureModule", "NothingToDrawError", "Options", "draw", "get_figure", "save"]

FORMATS = ("png", "svg", "pdf")


class FigureModule(Protocol):
    """What a module of this room provides."""

    NAME: str
    """As `--figure` has it."""
    NEEDS: Mapping[str, tuple[str, ...]]
    """Tables of a results folder, and the columns of each that the figure reads."""

    def draw(self, results: Results, options: Options) -> Figure:
        """Return the figure."""
        ...


FIGURES: tuple[FigureModule, ...] = (gradient, dissociation)


def get_figure(name: str) -> FigureModule:
    """Return the figure of this name.

    Raises
    ------
    UnknownNameError
        If there is none.
    """
    known = {figure.NAME: figure for figure in FIGURES}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UnknownNameError(f"cannot draw figure {name!r}: no such figure; {hint}")
    return known[name]


def draw(name: str, results: Results, **options: Any) -> Figure:
    """Return a figure of these results; `options` are the fields of `Options`.

    Raises
    ------
    UnknownNameError
        If there is no such figure, or the tables lack the metric or the group.
    NothingToDrawError
        If the tables hold nothing that it could show.
    """
    figure, chosen = get_figure(name), Options(**options)
    with settings(rc(SIZES[chosen.size])):
        return figure.draw(results, chosen)


def save(figure: Figure, path: Path) -> None:
    """Write a figure as PNG (300 dpi), SVG (text stays text) or PDF, by the path's suffix; equal figures give equal bytes.

    Title and caption go into the file's metadata, where a screen reader finds them.

    Raises
    ------
    StorageError
        If the file cannot be written.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ValueError(f"the suffix must be one of {', '.join(FORMATS)}, not {path.suffix!r}")
    words = {text.get_gid(): " ".join(text.get_text().split()) for text in figure.texts}
    title, caption = words.get("title", ""), words.get("caption", "")
    metadata: dict[str, dict[str, str | None]] = {
        "png": {"Title": title, "Description": caption, "Software": "spectrograd"},
        "svg": {"Title": title, "Description": caption, "Creator": "spectrograd", "Date": None},
        "pdf": {"Title": title, "Subject": caption, "Creator": "spectrograd", "Producer": None, "CreationDate": None},
    }
    try:
        with settings(FILES):
            figure.savefig(path, format=suffix, dpi=300, metadata=metadata[suffix])
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}; choose another folder with -o") from error
