"""How the singular-value spectra of a transformer's weights change over training.

Each public name is loaded on first use, so that `spectrograd --help` needs neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from spectrograd.errors import SpectrogradError as SpectrogradError
    from spectrograd.figures import draw as draw
    from spectrograd.pipeline import analyze as analyze
    from spectrograd.pipeline import measure as measure
    from spectrograd.results import Results as Results
    from spectrograd.results import open_results as open_results
    from spectrograd.scan import scan as scan

_HOME = {
    "SpectrogradError": "errors",
    "Results": "results",
    "analyze": "pipeline",
    "draw": "figures",
    "measure": "pipeline",
    "open_results": "results",
    "scan": "scan",
}

__all__ = ["Results", "SpectrogradError", "__version__", "analyze", "draw", "measure", "open_results", "scan"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'spectrograd' has no attribute {name!r}")
    return getattr(import_module(f"spectrograd.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
