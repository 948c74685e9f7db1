"""Every reader gives back the bytes that were written, whatever the shape, the dtype and the layout in memory."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import write_safetensors, write_torch

from spectrograd.errors import CheckpointError
from spectrograd.readers import READERS, Reader

WRITE = {"safetensors": ("m.safetensors", write_safetensors), "torch": ("m.pt", write_torch)}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.uint8]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bytes at all (NaN and inf among them), turned and sliced now and then."""
    dtype = draw(st.sampled_from(DTYPES))
    rows, cols = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    size = rows * cols * dtype.itemsize
    flat = torch.frombuffer(bytearray(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    tensor = flat.view(dtype).reshape(rows, cols)
    return draw(st.sampled_from([tensor, tensor.T, tensor[:, ::2], tensor[1:], tensor[0]]))


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
@settings(max_examples=150, deadline=None)
@given(drawn=st.lists(tensors(), min_size=1, max_size=4))
def test_the_same_bytes(tmp_path_factory: pytest.TempPathFactory, reader: Reader, drawn: list[torch.Tensor]) -> None:
    name, write = WRITE[reader.NAME]
    written = {f"t{i}": tensor for i, tensor in enumerate(drawn)} | {"matrix": torch.ones(2, 2)}
    path = write(tmp_path_factory.mktemp("same") / name, written)
    assert {entry.key: entry.shape for entry in reader.entries(path)} == {key: tuple(tensor.shape) for key, tensor in written.items()}
    for key, tensor in written.items():
        found = reader.read(path, key)
        assert (found.dtype, found.shape, raw(found)) == (tensor.dtype, tensor.shape, raw(tensor))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_what_is_not_there(tmp_path: Path, reader: Reader) -> None:
    name, write = WRITE[reader.NAME]
    path = write(tmp_path / name, {"w": torch.eye(3)})
    with pytest.raises(CheckpointError, match=str(path)):
        reader.read(path, "v")
    path.unlink()
    for look in (reader.entries, reader.metadata, lambda gone: reader.read(gone, "w")):
        with pytest.raises(CheckpointError, match=str(path)):
            look(path)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_writing_into_a_tensor_leaves_the_file_alone(tmp_path: Path, reader: Reader) -> None:
    name, write = WRITE[reader.NAME]
    path = write(tmp_path / name, {"w": torch.eye(3)})
    before = path.read_bytes()
    reader.read(path, "w").mul_(5)
    assert path.read_bytes() == before
    assert torch.equal(reader.read(path, "w"), torch.eye(3))
