"""A folder → the weight files in it, grouped into units: one file, or the shards of one model."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from spectrograd.steps import is_unfinished, natural_key

WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
NOT_WEIGHTS = re.compile(
    r"^(optim|optimizer|scheduler|scaler|rng_state|random_states|training_args|state_\d|trainer_state|sampler|custom_checkpoint|tokenizer"
    r"|zero_pp_rank|bf16_zero_pp_rank)",
    re.IGNORECASE,
)
SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})$")


@dataclass(frozen=True, slots=True)
class Unit:
    """The files of one model in one folder. `stem` is the file name without shard number and suffix."""

    folder: Path
    stem: str
    files: tuple[Path, ...]
    refused: str = ""

    @property
    def sharded(self) -> bool:
        """Tell whether the model lies in several files."""
        return len(self.files) > 1


@dataclass(slots=True)
class Found:
    """What a walk has seen: the units of weights, and what was passed over with the reason."""

    units: list[Unit] = field(default_factory=list)
    ignored: list[tuple[Path, str]] = field(default_factory=list)


def find_units(root: Path) -> Found:
    """Return every unit of weights at or under a path. Links are followed once; hidden folders are not entered."""
    found = Found()
    if root.is_file():
        found.units += [unit for unit in _group(root.parent, [root]) if unit.files]
        return found
    inside = root.resolve()
    visited: set[Path] = set()
    for folder in _walk(root, inside, visited, found):
        files = []
        for item in sorted(_list(folder, found), key=lambda path: natural_key(path.name)):
            if item.suffix not in WEIGHT_SUFFIXES or item.name.startswith(".") or item.is_dir():
                continue
            if NOT_WEIGHTS.match(item.name):
                found.ignored.append((item, "no weights: optimizer, scheduler or random state"))
            elif item.is_symlink() and not item.exists():
                found.units.append(Unit(folder, item.stem, (item,), f"broken link to {item.readlink()}"))
            elif item.is_symlink() and item.resolve().is_relative_to(inside) and item.resolve().suffix in WEIGHT_SUFFIXES:
                found.ignored.append((item, f"a link to {item.resolve().relative_to(inside)}"))
            elif item.is_file():
                files.append(item)
            else:
                found.ignored.append((item, "not an ordinary file"))
        found.units += _group(folder, files)
    return found


def _list(folder: Path, found: Found) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        found.ignored.append((folder, f"cannot be listed: {error.strerror or error}"))
        return []


def _walk(folder: Path, inside: Path, visited: set[Path], found: Found) -> Iterator[Path]:
    """Yield a folder and those under it, in natural order, each real folder once."""
    real = folder.resolve()
    if real in visited:
        return
    visited.add(real)
    yield folder
    for item in sorted(_list(folder, found), key=lambda path: natural_key(path.name)):
        if item.name.startswith(".") or item.name in ("blobs", "__pycache__", "node_modules"):
            continue
        if item.is_symlink():
            if not item.exists() and item.suffix not in WEIGHT_SUFFIXES:
                found.units.append(Unit(item, "", (item,), f"broken link to {item.readlink()}"))
            if item.is_dir() and item.resolve().is_relative_to(inside):
                found.ignored.append((item, f"a link to {item.readlink()}"))
                continue
        if item.is_dir():
            if is_unfinished(item.name):
                found.ignored.append((item, "an unfinished save, by its name"))
            else:
                yield from _walk(item, inside, visited, found)


def _group(folder: Path, files: list[Path]) -> list[Unit]:
    """Return the units of a folder: shards together, checked against their index or the count in their names."""
    sharded: dict[tuple[str, str], list[Path]] = {}
    units: list[Unit] = []
    for file in files:
        if shard := SHARD.match(file.stem):
            sharded.setdefault((shard["stem"], file.suffix), []).append(file)
        else:
            units.append(Unit(folder, file.stem, (file,)))
    for (stem, suffix), present in sharded.items():
        units.append(Unit(folder, stem, tuple(present), _find_missing(folder, stem, suffix, present)))
    for index in sorted(folder.glob("*.index.json")):  # an index without any of its shards
        stem, dot, suffix = index.name.removesuffix(".index.json").rpartition(".")
        if f".{suffix}" in WEIGHT_SUFFIXES and all(unit.stem != stem for unit in units):
            units.append(Unit(folder, stem, (), _find_missing(folder, stem, f"{dot}{suffix}", [])))
    return units


def _find_missing(folder: Path, stem: str, suffix: str, present: list[Path]) -> str:
    """Return why a set of shards cannot be used: a file that its index or its names promise is missing. Else empty."""
    index = folder / f"{stem}{suffix}.index.json"
    if index.is_file():
        try:
            promised = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return f"damaged: {index.name} cannot be read; copy or save it again"
        outside = sorted(str(name) for name in promised if not isinstance(name, str) or Path(name).name != name)
        if outside:
            return f"refused: {index.name} names a shard outside its folder ({outside[0]})"
    else:
        shard = SHARD.match(present[0].stem)
        count = int(shard["count"]) if shard else 0
        promised = {f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in range(1, count + 1)}
    missing = sorted(promised - {file.name for file in present})
    return (
        f"incomplete, missing {', '.join(missing[:3])}{' and others' if len(missing) > 3 else ''}; copy the rest of it" if missing else ""
    )
