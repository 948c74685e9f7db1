"""Pickles read without executing anything that they name.

An unpickler normally imports and calls whatever the file says. This one knows how torch writes tensors and a few plain
containers; every other class becomes an inert stub, and a pickle that names a function which opens, runs or imports
things is refused.
"""

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spectrograd.errors import CheckpointError

HOSTILE_MODULES = {
    "os", "posix", "nt", "subprocess", "sys", "io", "_io", "socket", "shutil", "importlib", "runpy", "pty", "ctypes", "webbrowser", "code",
    "codeop", "commands", "pip", "asyncio", "multiprocessing", "threading", "signal", "tempfile", "urllib", "http", "ftplib", "pickle",
    "_pickle", "marshal", "imp", "pdb", "bdb", "timeit", "cProfile", "profile", "trace", "operator", "types", "inspect",
}  # fmt: skip
HOSTILE_BUILTINS = {
    "eval", "exec", "execfile", "compile", "open", "file", "input", "raw_input", "__import__", "getattr", "setattr", "delattr", "apply",
    "breakpoint", "globals", "locals", "vars",
}  # fmt: skip
PLAIN_BUILTINS: dict[str, Callable[..., Any]] = {
    "set": set, "frozenset": frozenset, "list": list, "dict": dict, "tuple": tuple, "int": int, "float": float, "bool": bool, "str": str,
    "complex": complex, "slice": slice, "object": object,
}  # fmt: skip
STORAGE_DTYPES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16", "LongStorage": "int64",
    "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128", "UntypedStorage": "",
}  # fmt: skip
LARGEST_PICKLE = 200_000_000  # bytes: tensors lie outside the pickle, so even the largest models need far less


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a pickle describes it: where its storage lies and how to view it. Offset and stride in elements."""

    storage: str
    numel: int
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    numel: int
    dtype: str


class Stub:
    """Stands in for an object of a class that is not loaded: takes everything, does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __call__(self, *_: Any, **__: Any) -> "Stub":
        """Stand in for whatever an object of that class would return."""
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def append(self, value: Any) -> None:
        """Take a list item that the pickle appends."""

    def extend(self, values: Any) -> None:
        """Take list items that the pickle appends."""

    def add(self, value: Any) -> None:
        """Take a set item that the pickle adds."""


def load_stub_pickle(data: bytes, source: str) -> Any:
    """Return what a pickle holds, with tensors as `StoredTensor` and foreign objects as `Stub`.

    Raises
    ------
    CheckpointError
        If the pickle is damaged, too large, or names a function that opens, runs or imports.
    """
    if len(data) > LARGEST_PICKLE:
        raise CheckpointError(f"cannot read {source}: its pickle has {len(data)} bytes, more than any model needs")
    try:
        _check_memo(data)
        return _StubUnpickler(data, source).load()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle can raise anything at all, and none of it is ours
        raise CheckpointError(f"cannot read {source}: its pickle is damaged ({type(error).__name__}); save the file again") from error


def _check_memo(data: bytes) -> None:
    """Refuse a memo index that no honest pickle reaches: the unpickler makes room for all below it, gigabytes for five bytes."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > len(data):
            raise ValueError(f"memo index {argument}")


class _StubUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, source: str) -> None:
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.source = source

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a global: a plain container, a description of a tensor, or an inert stub."""
        if module in ("builtins", "__builtin__"):
            if name in PLAIN_BUILTINS:
                return PLAIN_BUILTINS[name]
            if name in HOSTILE_BUILTINS:
                raise self._hostile(module, name)
        if module.split(".")[0] in HOSTILE_MODULES:
            raise self._hostile(module, name)
        if module == "torch" and name in STORAGE_DTYPES:
            return STORAGE_DTYPES[name]
        if module == "torch.storage" and name in ("UntypedStorage", "TypedStorage"):
            return ""
        known = _KNOWN.get((module, name))
        if known is not None:
            return known
        if module == "torch" and name in _TORCH_DTYPES:
            return name
        return type(name, (Stub,), {"__module__": module})

    def persistent_load(self, pid: Any) -> _Storage:
        """Return the description of a storage that the pickle refers to."""
        kind, dtype, key, _, numel = pid
        if kind != "storage":
            raise CheckpointError(f"cannot read {self.source}: its pickle refers to {kind!r}, not to a storage")
        return _Storage(str(key), int(numel), dtype if isinstance(dtype, str) else "")

    def _hostile(self, module: str, name: str) -> CheckpointError:
        return CheckpointError(f"refused {self.source}: its pickle calls {module}.{name}; weights need no such thing, nothing was executed")


def _rebuild_bytes(*arguments: Any) -> "bytes | Stub":
    """Return bytes of bytes or text; a number, which would mean that many zeros, and whatever else becomes a stub."""
    return bytes(*arguments) if arguments and isinstance(arguments[0], (str, bytes)) else Stub()


def _rebuild(storage: _Storage, offset: int, shape: Any, stride: Any, *_: Any) -> StoredTensor:
    return StoredTensor(storage.key, storage.numel, storage.dtype, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _rebuild_v3(storage: _Storage, offset: int, shape: Any, stride: Any, _grad: Any, _hooks: Any, dtype: str, *_: Any) -> StoredTensor:
    return StoredTensor(storage.key, storage.numel, dtype, int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _rebuild_parameter(tensor: Any, *_: Any) -> Any:
    return tensor


_KNOWN: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("builtins", "bytes"): _rebuild_bytes,
    ("__builtin__", "bytes"): _rebuild_bytes,
    ("builtins", "bytearray"): _rebuild_bytes,
    ("__builtin__", "bytearray"): _rebuild_bytes,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_v3,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
}
_TORCH_DTYPES = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
    "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128",
}  # fmt: skip
