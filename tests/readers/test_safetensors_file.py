"""Headers that are wrong in ways the library would find only on reading, or that cost too much to look at."""

import json
import struct
import tracemalloc
from pathlib import Path

import pytest

from spectrograd.errors import CheckpointError
from spectrograd.readers import safetensors_file

W = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


def write(path: Path, header: object, size: int = 16) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))
    return path


@pytest.mark.timeout(20)  # the product of sixty thousand sides takes longer
@pytest.mark.parametrize(
    ("header", "size", "text"),
    [
        (b'{"w":{"dtype":"F32","shape":[1e400],"data_offsets":[0,16]}}', 16, "do not fit"),
        ({"w": W | {"shape": [True, 4]}}, 16, "do not fit"),
        ({"w": W | {"shape": "22"}}, 16, "do not fit"),
        ({"w": W | {"dtype": ["F32"]}}, 16, "properly"),
        ({"w": W, "v": {"dtype": "F32", "shape": [1], "data_offsets": [20, 24]}}, 24, "4 bytes belong to no tensor"),
        ({"v": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8, "4 bytes belong to no tensor"),
        ({"__metadata__": [1], "w": W}, 16, "__metadata__"),
        ({"__metadata__": {"step": 1}, "w": W}, 16, "__metadata__"),
        (b'{"\\ud800":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}', 16, "properly"),
        (b'{"w":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,16]}}', 16, "not JSON"),
        ({"w": W | {"shape": [2**62] * 60000}}, 16, "do not fit"),
    ],
)
def test_a_header_is_refused_with_a_sentence_and_at_once(tmp_path: Path, header: object, size: int, text: str) -> None:
    path = write(tmp_path / "model.safetensors", header, size)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=text) as caught:
        safetensors_file.entries(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(caught.value).startswith(f"cannot read {path}: ")
    assert peak < 100 * 2**20


def test_empty_tensors_take_no_place(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 4]}
    header = {"a": empty | {"data_offsets": [0, 0]}, "w": W, "z": empty | {"data_offsets": [16, 16]}}
    path = write(tmp_path / "model.safetensors", header)
    assert [entry.key for entry in safetensors_file.entries(path)] == ["a", "w", "z"]
    assert safetensors_file.read(path, "z").shape == (0, 4)


def test_a_cut_file_says_what_it_has_and_what_it_needs(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", {"w": W})
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match=f"it has {len(whole) - 5} bytes, its header needs {len(whole)}"):
        safetensors_file.entries(path)
