"""safetensors: a JSON header, then the bytes. The library checks the header; we widen nothing and copy nothing.

The header is read here and not through the library so that a scan touches no weights and a damaged file gets a sentence
that says what is wrong with it.
"""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectrograd.errors import CheckpointError
from spectrograd.records import Entry

if TYPE_CHECKING:
    import torch

NAME = "safetensors"
MOST_SIDES = 64  # more than torch takes; without a limit the product of a hostile shape takes minutes
LARGEST_HEADER = 100_000_000  # bytes; the library's own limit
DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "BOOL": "bool", "C64": "complex64", "F8_E8M0": "float8_e8m0", "F4": "float4",
}  # fmt: skip
BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "U16": 16, "U32": 32, "U64": 64, "C64": 64, "F4": 4}


def matches(path: Path) -> bool:
    """Tell whether the file's name ends in `.safetensors`."""
    return path.suffix == ".safetensors"


def entries(path: Path) -> list[Entry]:
    """Return the tensors that the header announces.

    Raises
    ------
    CheckpointError
        If the header is damaged, or its tensors do not fill the file exactly.
    """
    return [Entry(key, tuple(value["shape"]), DTYPES[value["dtype"]]) for key, value in _read_header(path).items() if key != "__metadata__"]


def metadata(path: Path) -> dict[str, Any]:
    """Return the header's `__metadata__`: text by name."""
    found: dict[str, Any] = _read_header(path).get("__metadata__", {})
    return found


def read(path: Path, key: str) -> "torch.Tensor":
    """Return one tensor, memory-mapped, in its stored dtype."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensor: torch.Tensor = file.get_tensor(key)
            return tensor
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"cannot read {key} of {path}: {error}") from error


def _read_header(path: Path) -> dict[str, Any]:
    """Return the header, checked: every tensor lies inside the file, none overlaps, none is missing bytes."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            if len(start) < 8:
                raise CheckpointError(_damage(path, "the file is empty" if not start else f"too short, {size} bytes hold no header"))
            length = int.from_bytes(start, "little")
            if length > min(size - 8, LARGEST_HEADER):
                raise CheckpointError(_foreign(path, start, f"truncated: the header announces {length} bytes, the file has {size}"))
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    header = _parse(path, text)
    spans = [_span(path, key, value) for key, value in header.items() if key != "__metadata__"]
    need, data = max((stop for _, stop in spans), default=0), size - 8 - length
    if need > data:
        raise CheckpointError(_damage(path, f"truncated: it has {size} bytes, its header needs {8 + length + need}"))
    if data > need:
        raise CheckpointError(_damage(path, f"{data - need} bytes follow its last tensor"))
    reached = 0
    for first, stop in sorted(spans):
        if first != reached:
            what = "its tensors overlap" if first < reached else f"{first - reached} bytes belong to no tensor"
            raise CheckpointError(_damage(path, what))
        reached = stop
    return header


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise CheckpointError(_damage(path, "its header names a tensor twice"))
        return dict(pairs)

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=refuse_twice)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(_foreign(path, text, "its header is not JSON")) from error
    if not isinstance(header, dict):
        raise CheckpointError(_damage(path, "its header is no table of tensors"))
    texts = header.get("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(value, str) for value in texts.values()):
        raise CheckpointError(_damage(path, "its __metadata__ is no table of texts"))
    return header


def _span(path: Path, key: str, value: Any) -> tuple[int, int]:
    """Return first and last byte of a tensor's data, checked against its shape and dtype."""
    try:
        shape, (start, stop), dtype = value["shape"], value["data_offsets"], value["dtype"]
        sound = len(shape) <= MOST_SIDES and all(type(side) is int and side >= 0 for side in (*shape, start, stop))
        bits = BITS.get(dtype, 8) * math.prod(shape) if sound else -1
        key.encode()  # half a surrogate pair is no text, and no table can hold it
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(_damage(path, f"its header does not describe {key!r} properly")) from error
    if dtype not in DTYPES:
        raise CheckpointError(_damage(path, f"the dtype {dtype!r} of {key!r} is not known"))
    if not sound or bits % 8 or stop - start != bits // 8:
        raise CheckpointError(_damage(path, f"shape and position of {key!r} do not fit together"))
    return start, stop


def _damage(path: Path, what: str) -> str:
    return f"cannot read {path}: {what}; copy or save the file again"


def _foreign(path: Path, head: bytes, otherwise: str) -> str:
    """Return the sentence on a file that has this name but may not be safetensors at all."""
    from spectrograd.readers import describe_foreign

    if head[:1] in (b"v", b"<"):
        return f"cannot read {path}: {describe_foreign(path)}"
    return _damage(path, otherwise)
