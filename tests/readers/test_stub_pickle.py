"""Pickles of a few bytes that would cost gigabytes, and objects that would change what comes after them."""

import collections
import pickle
import tracemalloc

import pytest

from spectrograd.errors import CheckpointError
from spectrograd.readers.stub_pickle import StoredTensor, Stub, load_stub_pickle


def dumped(value: object) -> bytes:
    """Return the opcodes that push a value."""
    return pickle.dumps(value, 2)[2:-1]


def call(name: str, *arguments: object) -> bytes:
    """Return the opcodes that call a global of `builtins`."""
    return f"cbuiltins\n{name}\n".encode() + dumped(arguments) + b"R"


@pytest.mark.parametrize(
    "opcodes",
    [
        b"Nr\xff\xff\xff\x05",
        b"Np99999999\n",
        call("bytearray", 500_000_000),
        call("bytes", 500_000_000),
        b"cbuiltins\nlist\n" + call("range", 50_000_000) + b"\x85R",
        b"\x96" + (2**40).to_bytes(8, "little"),
        b"\x8e" + (2**40).to_bytes(8, "little"),
    ],
    ids=["memo", "text memo", "bytearray", "bytes", "range", "long bytearray", "long bytes"],
)
def test_a_few_bytes_cost_little_memory(opcodes: bytes) -> None:
    tracemalloc.start()
    try:
        load_stub_pickle(b"\x80\x05" + opcodes + b".", "bomb.pt")
    except CheckpointError as error:
        assert str(error).startswith("cannot read bomb.pt: its pickle is damaged")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab"), b"", bytearray()])
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_bytes_stay_or_become_inert(value: bytes, protocol: int) -> None:
    found = load_stub_pickle(pickle.dumps({"x": value}, protocol), "x")["x"]
    assert found == value or isinstance(found, Stub)


def test_a_class_is_named_but_not_loaded() -> None:
    found = load_stub_pickle(pickle.dumps(collections.Counter("ab")), "x")
    assert type(found).__module__ == "collections"
    assert type(found).__name__ == "Counter"
    assert isinstance(found, Stub)
    assert type(found) is not collections.Counter


def test_a_name_inside_our_own_package_is_a_stub_too() -> None:
    hostile = b"\x80\x02cspectrograd.readers.stub_pickle\nload_stub_pickle\n" + dumped((b"x", "y")) + b"R."
    assert isinstance(load_stub_pickle(hostile, "x"), Stub)


def test_a_dotted_name_does_not_reach_through_a_module() -> None:
    found = load_stub_pickle(b"\x80\x04" + dumped("collections") + dumped("abc.sys.modules") + b"\x93.", "x")
    assert issubclass(found, Stub)


def test_state_set_on_what_stands_for_torch_changes_no_later_file() -> None:
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n"
    load_stub_pickle(b"\x80\x02" + rebuild + dumped((None, {"__defaults__": (1, 2, 3)})) + b"b.", "hostile")
    storage = b"(" + dumped("storage") + b"ctorch\nFloatStorage\n" + dumped("0") + dumped("cpu") + dumped(4) + b"tQ"
    good = b"\x80\x02" + rebuild + b"(" + storage + dumped(0) + dumped((2, 2)) + dumped((2, 1)) + b"tR."
    assert load_stub_pickle(good, "good") == StoredTensor("0", 4, "float32", 0, (2, 2), (2, 1))
