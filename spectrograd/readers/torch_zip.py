"""torch.save files since torch 1.6: a zip of one pickle and one uncompressed member a storage. Nothing is executed."""

import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectrograd.errors import CheckpointError
from spectrograd.readers.stub_pickle import StoredTensor, load_stub_pickle
from spectrograd.records import Entry

if TYPE_CHECKING:
    import torch

NAME = "torch"
LARGEST_TENSOR = 2**48  # elements
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
# where the weights lie inside the pickle, in order of trust (None: at its top)
WEIGHT_MAPS = (None, "model", "state_dict", "module", "model_state_dict", "state.model", "params", "net")
NOT_WEIGHTS = {
    "optimizer", "optimizers", "optim", "optimizer_state", "optimizer_states", "optimizer_state_dict", "last_optimizer_state",
    "lr_scheduler",
    "lr_schedulers", "scheduler", "scaler", "rng_state", "callbacks", "loops", "args", "config", "hyper_parameters", "dataloader", "ema",
    "model_ema", "ema_state_dict",
}  # fmt: skip
STEP_KEYS = ("iter_num", "global_step", "step", "global_steps", "step_count", "iteration", "epoch")


def matches(path: Path) -> bool:
    """Tell by the file's ending and its first bytes."""
    if path.suffix not in SUFFIXES:
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def entries(path: Path) -> list[Entry]:
    """Return the tensors of the weight map, in the order of the file; `storage` shows which of them are tied.

    Raises
    ------
    CheckpointError
        If the file is truncated, damaged or hostile.
    """
    return [Entry(key, t.shape, t.dtype, f"{t.storage}:{t.offset}:{t.shape}:{t.stride}") for key, t in _load(path)[0].items()]


def metadata(path: Path) -> dict[str, Any]:
    """Return step, epoch and model configuration where the file holds them beside the weights."""
    return _load(path)[1]


def read(path: Path, key: str) -> "torch.Tensor":
    """Return one tensor, a view of the memory-mapped file, in its stored dtype."""
    import torch

    stored = _load(path)[0].get(key)
    if stored is None:
        raise CheckpointError(f"cannot read {key} of {path}: the file holds no such tensor")
    with _naming_damage(path):
        return _map(path, stored, getattr(torch, stored.dtype))


def _map(path: Path, stored: StoredTensor, dtype: "torch.dtype") -> "torch.Tensor":
    """Return a tensor as a view of its storage in the mapped file, checked not to reach over its end."""
    import torch

    if 0 in stored.shape:
        return torch.empty(stored.shape, dtype=dtype)
    start, size = _locate(path, stored.storage)
    count = size // dtype.itemsize
    last = stored.offset + sum((side - 1) * stride for side, stride in zip(stored.shape, stored.stride, strict=True))
    if last >= count or min(stored.stride, default=0) < 0 or stored.offset < 0:
        raise CheckpointError(f"cannot read {path}: a tensor reaches over the end of its storage; save the file again")
    if start % dtype.itemsize:  # torch writes storages aligned; other zip tools may not
        with path.open("rb") as file:
            file.seek(start)
            flat = torch.frombuffer(bytearray(file.read(size)), dtype=dtype)
    else:
        whole = torch.from_file(str(path), shared=False, size=start + count * dtype.itemsize, dtype=torch.uint8)
        flat = whole[start:].view(dtype)
    return flat.as_strided(stored.shape, stored.stride, flat.storage_offset() + stored.offset)


@contextmanager
def _naming_damage(path: Path) -> Iterator[None]:
    """Give whatever a damaged file makes zipfile or torch raise the one sentence that says so."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"cannot read {path}: the file is damaged ({type(error).__name__}); copy or save it again") from error


@lru_cache(maxsize=8)
def _load_at(path: Path, _mtime: int, _size: int) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    with _naming_damage(path), _open(path) as archive:
        members = set(archive.namelist())
        names = [name for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
        if len(names) != 1:
            raise CheckpointError(f"cannot read {path}: a zip file, but not one that torch.save wrote")
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):  # torch never does; a bomb would
            raise CheckpointError(f"cannot read {path}: its members are compressed; save it again with torch.save")
        root = names[0].removesuffix("data.pkl")
        if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
            raise CheckpointError(f"cannot read {path}: it was written on a big-endian machine, which is not supported")
        content = load_stub_pickle(archive.read(names[0]), str(path))
        if not isinstance(content, Mapping):
            raise CheckpointError(f"cannot read {path}: it holds no dict of tensors but another object; save model.state_dict()")
        weights = _find_weights(content)
    for key, tensor in weights.items():
        _check(path, key, tensor)
    missing = {t.storage for t in weights.values() if f"{root}data/{t.storage}" not in members and 0 not in t.shape}
    if missing:
        raise CheckpointError(f"cannot read {path}: {len(missing)} storages that its pickle names are not in the file; save it again")
    return weights, _find_facts(content)


def _check(path: Path, key: str, tensor: StoredTensor) -> None:
    """Refuse a tensor whose description no torch wrote, before anything is made of it."""
    numbers = (tensor.offset, *tensor.shape, *tensor.stride)
    if len(tensor.shape) != len(tensor.stride) or min(numbers) < 0 or math.prod(tensor.shape) > LARGEST_TENSOR:
        found = f"shape {tensor.shape} and stride {tensor.stride} of {key!r}"
        raise CheckpointError(f"cannot read {path}: {found} fit no tensor; save it again")
    if not key.isprintable():
        raise CheckpointError(f"cannot read {path}: {key!r} is no name of a tensor; save it again")


def _load(path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any]]:
    """Return weights and facts of a file; the last few files are remembered while they do not change."""
    try:
        status = path.stat()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    return _load_at(path, status.st_mtime_ns, status.st_size)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, struct.error) as error:
        raise CheckpointError(
            f"cannot read {path}: truncated zip, its central directory is missing; copy or save the file again"
        ) from error


def _locate(path: Path, storage: str) -> tuple[int, int]:
    """Return first byte and length of a storage in the file."""
    with _open(path) as archive:
        info = next(i for i in archive.infolist() if i.filename.split("/", 1)[-1] == f"data/{storage}")
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(30)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    return info.header_offset + 30 + name_length + extra_length, info.file_size


def _find_weights(content: Mapping[Any, Any]) -> dict[str, StoredTensor]:
    """Return name → tensor of the weight map: at the top if tensors lie there, else under the first known key."""
    for place in WEIGHT_MAPS:
        found: Any = content
        for key in place.split(".") if place else ():
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            flat = dict(_flatten(found, place is None, set()))
            if any(len(tensor.shape) >= 2 for tensor in flat.values()):
                return flat
    return {}


def _flatten(tree: Mapping[Any, Any], top: bool, seen: set[int], prefix: str = "") -> list[tuple[str, StoredTensor]]:
    """Return the tensors of nested dicts under dotted names; at the top of the file only those that lie there directly.

    A dict that is `seen` is not entered again: a pickle may nest dicts in themselves.
    """
    pairs: list[tuple[str, StoredTensor]] = []
    seen.add(id(tree))
    for key, value in tree.items():
        if isinstance(value, StoredTensor):
            pairs.append((f"{prefix}{key}", value))
        elif isinstance(value, Mapping) and not top and str(key) not in NOT_WEIGHTS and id(value) not in seen:
            pairs += _flatten(value, top, seen, f"{prefix}{key}.")
    return pairs


def _find_facts(content: Mapping[Any, Any]) -> dict[str, Any]:
    """Return steps and configurations at the top of the pickle, plain values only."""
    facts: dict[str, Any] = {key: content[key] for key in STEP_KEYS if isinstance(content.get(key), int)}
    for key in ("model_args", "model_config"):
        if isinstance(content.get(key), Mapping):
            facts[key] = {str(k): v for k, v in content[key].items() if isinstance(v, (int, float, str, bool))}
    return facts
