"""Entries → drafts of matrices, and what is passed over with its reason."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from spectrograd.naming import tables
from spectrograd.naming.roles import NameInfo, canonical_name, find_container, read_name
from spectrograd.records import PRECISIONS, Entry, Skipped

# 2-D roles are those of a stack's blocks; only these say something of the model's width
_UNSIZED = ("other", "embed", "unembed", "pos")


@dataclass(slots=True)
class Draft:
    """A 2-D tensor on its way to one or several matrices: its role may still change with its shape."""

    entry: Entry
    path: Path
    info: NameInfo
    role: str
    transposed: bool = False
    stack: str | None = None
    layer: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the [out, in] matrix, by what is known of its orientation."""
        m, n = self.entry.shape[::-1] if self.transposed else self.entry.shape
        return m, n

    @property
    def is_kernel(self) -> bool:
        """Whether the name says that it is stored [in, out], as JAX and Keras do."""
        return self.info.name.endswith(".kernel")

    @property
    def is_sized(self) -> bool:
        """Whether the role says which side of the matrix is the model's width."""
        return self.role not in _UNSIZED


@dataclass(slots=True)
class Collected:
    """The drafts of a checkpoint, what is passed over, the number of parameters and what is wrong with the names."""

    drafts: list[Draft] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    num_params: int = 0


def collect(entries: Mapping[Path, Sequence[Entry]]) -> Collected:
    """Return a draft for each 2-D weight, and the reason for each tensor that is none."""
    found = Collected()
    unique = _drop_repeated(entries, found)
    names = {name for name, _, _ in unique}
    container = tables.LAYER if any(tables.LAYER.search(name) for name in names) else find_container(names) or tables.LAYER
    has_plain = any(not _is_foreign(name) and not tables.AVERAGE.search(name) for name in names)
    drafts = []
    storages: set[tuple[Path, str]] = set()
    for name, path, entry in unique:
        info = read_name(entry.key, container)
        reason = _foreign_reason(name, has_plain)
        if not reason and "float" in entry.dtype and (entry.storage is None or (path, entry.storage) not in storages):
            found.num_params += prod(entry.shape)
            if entry.storage is not None:
                storages.add((path, entry.storage))
        reason = reason or _dtype_reason(entry, name, names) or _shape_reason(entry, info)
        if reason:
            found.skipped.append(Skipped(name, reason))
        else:
            drafts.append(Draft(entry, path, info, info.role or "other"))
    found.drafts = _drop_tied(drafts, found)
    return found


def _drop_repeated(entries: Mapping[Path, Sequence[Entry]], found: Collected) -> list[tuple[str, Path, Entry]]:
    first: dict[str, str] = {}
    unique = []
    for path, entry in ((path, entry) for path, listed in entries.items() for entry in listed):
        name = canonical_name(entry.key)
        if name in first:
            found.problems.append(f"{entry.key} of {path.name} is passed over: {first[name]} has the same name without its wrappers")
            found.skipped.append(Skipped(entry.key, f"same name as {first[name]}"))
        else:
            first[name] = entry.key
            unique.append((name, path, entry))
    return unique


def _drop_tied(drafts: Iterable[Draft], found: Collected) -> list[Draft]:
    """Return the drafts without those that lie in the bytes of another; of an embedding and a head the embedding stays."""
    kept: dict[tuple[Path, str], Draft] = {}
    for draft in drafts:
        owner = (draft.path, draft.entry.storage or f"\0{draft.info.name}")
        tied = kept.setdefault(owner, draft)
        if tied is not draft:
            if draft.role == "embed" and tied.role != "embed":
                kept[owner], tied, draft = draft, draft, tied
            found.skipped.append(Skipped(draft.info.name, f"tied to {tied.info.name}"))
    return list(kept.values())


def _is_foreign(name: str) -> bool:
    return any(pattern.search(name) for pattern in (tables.OPTIMIZER, tables.BUFFER, tables.QUANTISED))


def _foreign_reason(name: str, has_plain: bool) -> str:
    """Return why a tensor is no parameter of the model, by its name."""
    if tables.OPTIMIZER.search(name):
        return "optimizer state"
    if tables.BUFFER.search(name):
        return "buffer (mask, frequencies, statistics)"
    if tables.QUANTISED.search(name):
        return "scale or table of a quantised tensor"
    if has_plain and tables.AVERAGE.search(name):
        return "average (EMA) of the weights: a variant of the checkpoint"
    return ""


def _dtype_reason(entry: Entry, name: str, names: set[str]) -> str:
    if len(entry.shape) and not prod(entry.shape):
        return "empty: ZeRO-3 placeholder?"
    if "float" not in entry.dtype and "complex" not in entry.dtype:
        return "integer or boolean (mask, buffer or quantised)"
    if len(entry.shape) < 2:
        return ""
    if entry.dtype not in PRECISIONS:
        return f"dtype {entry.dtype} is not analysed"
    if entry.dtype.startswith("float8"):
        scaled = names & {f"{name}_scale_inv", f"{name}_scale", f"{name.removesuffix('.weight')}.scale"}
        return "float8 with a scale beside it: scaled tensors are not read yet" if scaled else "float8 without a scale"
    return ""


def _shape_reason(entry: Entry, info: NameInfo) -> str:
    dims = len(entry.shape)
    if dims < 2:
        return "1-D" if dims else "scalar"
    if tables.REPARAMETRISED.search(info.name):
        return "part of a reparametrised weight (weight_norm, spectral_norm, pruning), not the weight itself"
    if info.lora:
        return "LoRA factor: products are not read yet"
    if info.role is None:
        return "norm"
    if dims == 3 and info.role not in _UNSIZED:
        return f"3-D {list(entry.shape)}: stacked tensors are not read yet"
    if dims > 2:
        return f"not a weight matrix: {dims}-D {list(entry.shape)}"
    if tables.MERGED_EXPERTS.search(info.tail):
        return f"experts merged along the rows {list(entry.shape)}: stacked tensors are not read yet"
    return ""
