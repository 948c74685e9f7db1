"""The walls between the rooms: who may import whom, and which library each room owns (DESIGN's table)."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "spectrograd"
CHAIN = ("errors", "records", "steps", "naming", "readers", "scan", "load", "spectra", "metrics", "results", "history", "gradients")
TO_GRADIENTS = set(CHAIN)

# room: the rooms that it may import besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "steps": {"errors", "records"},
    "naming": {"errors", "records", "steps"},
    "readers": {"errors", "records"},
    "scan": {"errors", "records", "steps", "naming", "readers"},
    "load": {"errors", "records", "readers", "naming"},
    "spectra": {"errors", "records"},
    "metrics": {"errors", "records"},
    "results": {"errors", "records"},
    "history": {"errors", "records", "steps"},
    "gradients": {"errors", "records", "results"},
    "dynamics": {"errors", "records", "results", "gradients"},
    "summaries": {"errors", "records", "results", "gradients", "dynamics"},
    "figures": {"errors", "records", "results", "gradients", "dynamics"},
    "pipeline": TO_GRADIENTS,
    "commands": {*TO_GRADIENTS, "dynamics", "summaries", "figures", "pipeline", "__version__"},
    "cli": {"errors", "commands", "__version__"},
    "__main__": {"cli"},
    "__init__": {"errors", "figures", "pipeline", "results", "scan"},
}

# library: the rooms that may import it, anywhere in their code
OWNERS: dict[str, set[str]] = {
    "torch": {"readers", "load", "spectra", "pipeline"},
    "safetensors": {"readers"},
    "pyarrow": {"results", "pipeline"},
    "filelock": {"results"},
    "matplotlib": {"figures"},
    "scipy": {"gradients", "dynamics", "summaries"},
    "click": {"cli", "commands"},
    "rich": {"cli", "commands"},
    "threadpoolctl": {"spectra", "pipeline"},
}

# what may not be imported when a module is imported, only inside its functions
LAZY: dict[str, set[str]] = {
    "torch": set(OWNERS["torch"]),
    "matplotlib": {"commands", "cli"},
    "pandas": {"cli", "commands"},
    "numpy": {"cli", "commands"},
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(tree: ast.AST, top_level: bool = False) -> set[str]:
    """Return the dotted names that the code imports; with `top_level` only those outside functions and TYPE_CHECKING."""
    found: set[str] = set()
    for node in tree.body if top_level and isinstance(tree, ast.Module) else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_import_only_what_the_design_allows(path: Path) -> None:
    room = _room(path)
    names = _imports(ast.parse(path.read_text("utf-8")))
    ours = {name.split(".")[1] for name in names if name.startswith("spectrograd.")}
    assert ours - MAY_IMPORT[room] - {room} == set()
    libraries = {name.split(".")[0] for name in names}
    foreign = {library for library in libraries & set(OWNERS) if room not in OWNERS[library]}
    assert foreign == set()
    eager = {name.split(".")[0] for name in _imports(ast.parse(path.read_text("utf-8")), top_level=True)}
    assert {library for library in eager & set(LAZY) if room in LAZY[library]} == set()


def test_every_room_of_the_design_is_listed() -> None:
    assert {_room(path) for path in _modules()} == set(MAY_IMPORT)


def test_modules_stay_short() -> None:
    long = {str(path.relative_to(PACKAGE)): n for path in _modules() if (n := len(path.read_text("utf-8").splitlines())) > 320}
    assert long == {}


@pytest.mark.parametrize(
    ("code", "forbidden"),
    [
        ("import spectrograd.cli", {"torch", "pandas", "numpy", "matplotlib"}),
        ("from spectrograd.cli import main; main(['--help'], standalone_mode=False)", {"torch", "pandas", "numpy", "matplotlib"}),
        (
            "import spectrograd.figures, spectrograd.summaries, spectrograd.commands.plot, spectrograd.commands.compare",
            {"torch", "safetensors"},
        ),
        ("import spectrograd.scan", {"torch", "pandas", "matplotlib"}),
    ],
)
def test_gifts_of_the_walls(code: str, forbidden: set[str]) -> None:
    script = f"import sys\n{code}\nprint(sorted({forbidden!r} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
