"""One battery over all readers, then the hazards of each format."""

import argparse
import io
import json
import os
import pickle
import struct
import subprocess
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from spectrograd.errors import CheckpointError
from spectrograd.readers import READERS, Reader, find_reader, safetensors_file, torch_zip
from spectrograd.readers.stub_pickle import Stub, load_stub_pickle

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.uint8,
    torch.bool,
]
Writer = Callable[[dict[str, torch.Tensor], Path], None]
WRITERS: dict[str, tuple[str, Writer]] = {"safetensors": (".safetensors", save_file), "torch": (".pt", torch.save)}


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    drawn = {str(dtype): torch.randint(0, 2, (5, 7), generator=generator).to(dtype) for dtype in DTYPES}
    return drawn | {
        "a.weight": torch.randn(33, 17, generator=generator),
        "vector": torch.arange(4.0),
        "scalar": torch.tensor(2.0),
        "empty": torch.zeros(0, 4),
    }


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.contiguous().view(torch.uint8).equal(b.contiguous().view(torch.uint8))


# ---------------------------------------------------------------- the battery
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
class TestEveryReader:
    @pytest.fixture
    def path(self, reader: Reader, tmp_path: Path) -> Path:
        suffix, write = WRITERS[reader.NAME]
        write(tensors(), tmp_path / f"model{suffix}")
        return tmp_path / f"model{suffix}"

    def test_knows_its_files(self, reader: Reader, path: Path) -> None:
        assert find_reader(path) is reader
        assert [other for other in READERS if other.matches(path)] == [reader]

    def test_announces_every_tensor(self, reader: Reader, path: Path) -> None:
        announced = {entry.key: (entry.shape, entry.dtype) for entry in reader.entries(path)}
        assert announced == {key: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for key, t in tensors().items()}

    def test_gives_the_bytes_that_were_written(self, reader: Reader, path: Path) -> None:
        for key, tensor in tensors().items():
            found = reader.read(path, key)
            assert found.shape == tensor.shape
            if tensor.ndim and tensor.numel():
                assert same_bytes(found, tensor), key

    def test_metadata_holds_plain_values(self, reader: Reader, path: Path) -> None:
        json.dumps(reader.metadata(path))

    @pytest.mark.parametrize("keep", [0, 3, 30, 200, -1])
    def test_a_cut_file_is_refused_by_name(self, reader: Reader, path: Path, keep: int) -> None:
        path.write_bytes(path.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=path.name):
            find_reader(path).entries(path)

    def test_entries_read_no_weights(self, reader: Reader, tmp_path: Path) -> None:
        suffix, write = WRITERS[reader.NAME]
        write({"w": torch.zeros(4000, 4000)}, tmp_path / f"large{suffix}")
        tracemalloc.start()
        reader.entries(tmp_path / f"large{suffix}")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 4e6


# ---------------------------------------------------------------- safetensors
def header(content: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def span(start: int, stop: int, shape: tuple[int, ...] = (2, 2), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


HOSTILE = {
    "length beyond all": (header({"w": span(0, 16)}, bytes(16), length=2**63 - 1), "truncated"),
    "length beyond the file": (header({"w": span(0, 16)}, bytes(16), length=10**6), "truncated"),
    "overlap": (header({"w": span(0, 16), "v": span(0, 16)}, bytes(16)), "overlap"),
    "named twice": (
        header(b'{"w":' + json.dumps(span(0, 16)).encode() + b',"w":' + json.dumps(span(0, 16)).encode() + b"}", bytes(16)),
        "twice",
    ),
    "huge shape": (header({"w": span(0, 16, (2**20, 2**20))}, bytes(16)), "do not fit"),
    "overflowing shape": (header({"w": span(0, 16, (2**32, 2**32))}, bytes(16)), "do not fit"),
    "negative offset": (header({"w": span(-16, 0)}, bytes(16)), "do not fit"),
    "unknown dtype": (header({"w": span(0, 16, dtype="F9_X")}, bytes(16)), "F9_X"),
    "nested": (header(b'{"w":' + b"[" * 20000 + b"]" * 20000 + b"}"), "not JSON|properly"),
    "no text": (header(b'{"\xff\xfe":1}', bytes(4)), "not JSON"),
    "trailing bytes": (header({"w": span(0, 16)}, bytes(19)), "3 bytes follow"),
    "missing data": (header({"w": span(0, 16)}, bytes(12)), "truncated"),
    "list": (header(b"[1, 2]"), "no table"),
    "no shape": (header({"w": {"dtype": "F32"}}), "properly"),
    "git lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"ab" * 32 + b"\nsize 548105171\n",
        "Git LFS pointer for 548105171 bytes",
    ),
    "html": (b"<!DOCTYPE html><html><body>404 Not Found</body></html>\n", "HTML page"),
    "short": (b"12345", "too short"),
    "empty": (b"", "empty"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_or_hostile_safetensors_file_gets_a_sentence(tmp_path: Path, name: str) -> None:
    content, text = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=text) as caught:
        safetensors_file.entries(path)
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()
    assert str(caught.value).startswith(f"cannot read {path}: ")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_as_safetensors(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        safetensors_file.entries(path)


def test_safetensors_metadata(tmp_path: Path) -> None:
    save_file({"w": torch.eye(2)}, tmp_path / "m.safetensors", metadata={"format": "pt", "step": "100"})
    assert safetensors_file.metadata(tmp_path / "m.safetensors") == {"format": "pt", "step": "100"}


# ---------------------------------------------------------------- torch
def test_the_weight_map_inside_a_container(tmp_path: Path) -> None:
    optimizer = {"state": {0: {"exp_avg": torch.randn(4, 4)}}, "param_groups": [{"params": [0]}]}
    weights = {"h.0.w": torch.randn(4, 4), "nested": {"v": torch.randn(2, 2)}}
    for key in ("model", "state_dict", "module", "model_state_dict"):
        torch.save({key: weights, "optimizer": optimizer, "iter_num": 2500, "model_args": {"n_layer": 3, "f": print}}, tmp_path / "ckpt.pt")
        assert [entry.key for entry in torch_zip.entries(tmp_path / "ckpt.pt")] == ["h.0.w", "nested.v"]
        assert torch_zip.metadata(tmp_path / "ckpt.pt") == {"iter_num": 2500, "model_args": {"n_layer": 3}}
        assert same_bytes(torch_zip.read(tmp_path / "ckpt.pt", "nested.v"), weights["nested"]["v"])


def test_views_of_one_storage(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    saved = {
        "whole": base,
        "turned": base.T,
        "row": base[2:3],
        "column": base[:, 1:3],
        "tied": base,
        "parameter": torch.nn.Parameter(base.clone()),
    }
    torch.save(saved, tmp_path / "m.pt")
    storages = {entry.key: entry.storage for entry in torch_zip.entries(tmp_path / "m.pt")}
    assert storages["whole"] == storages["tied"]
    assert len(set(storages.values())) == 5
    for key, tensor in saved.items():
        assert torch.equal(torch_zip.read(tmp_path / "m.pt", key), tensor.detach()), key


def test_a_file_that_another_zip_tool_repacked_is_read_or_refused(tmp_path: Path) -> None:
    weights = {"w": torch.randn(5, 5)}
    torch.save(weights, tmp_path / "m.pt")
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "m.pt") as source, zipfile.ZipFile(tmp_path / "n.pt", "w", compression) as target:
            for name in source.namelist():
                target.writestr(f"x{name}", source.read(name))
        if compression == zipfile.ZIP_STORED:
            assert torch.equal(torch_zip.read(tmp_path / "n.pt", "w"), weights["w"])
        else:
            with pytest.raises(CheckpointError, match="compressed"):
                torch_zip.read(tmp_path / "n.pt", "w")
        (tmp_path / "n.pt").unlink()


def test_what_else_ends_in_pt(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(CheckpointError, match="not one that torch"):
        torch_zip.entries(tmp_path / "m.pt")
    torch.save({"w": torch.eye(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match=r"before 1\.6"):
        find_reader(tmp_path / "old.pt")


# ---------------------------------------------------------------- pickles
class Calls:
    """An object whose unpickling calls something."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


class TrainingArguments:
    """Stands for a class of some trainer."""

    def __init__(self) -> None:
        self.learning_rate = 3e-4


@pytest.mark.parametrize(
    "attack",
    [
        lambda canary: Calls(open, canary, "w"),
        lambda canary: Calls(os.system, f"touch {canary}"),
        lambda canary: Calls(subprocess.call, ["touch", canary]),
        lambda canary: Calls(exec, f"open({canary!r}, 'w')"),
        lambda canary: Calls(eval, f"open({canary!r}, 'w')"),
        lambda canary: Calls(getattr, Path(canary), "touch"),
        lambda canary: Calls(__import__, "os"),
        lambda canary: Calls(Path.touch, Path(canary)),
    ],
)
@pytest.mark.parametrize("place", ["beside", "inside"])
def test_nothing_in_a_pickle_is_executed(tmp_path: Path, attack: Callable[[str], object], place: str) -> None:
    canary = str(tmp_path / "PWNED")
    hostile = attack(canary)
    weights: dict[str, object] = {"w": torch.eye(3)}
    torch.save({"model": weights, "x": hostile} if place == "beside" else {"model": weights | {"x": hostile}}, tmp_path / "m.pt")
    try:
        assert [entry.key for entry in torch_zip.entries(tmp_path / "m.pt")] == ["w"]
    except CheckpointError as error:
        assert "nothing was executed" in str(error)
    assert not Path(canary).exists()


@pytest.mark.parametrize("function", [open, os.system, exec, eval, getattr, __import__, subprocess.Popen])
def test_a_pickle_that_calls_the_system_is_refused_by_name(function: Callable[..., object]) -> None:
    with pytest.raises(CheckpointError, match=r"its pickle calls \w+\.\w+"):
        load_stub_pickle(pickle.dumps(Calls(function, "x")), "file.pt")


def test_foreign_classes_become_inert(tmp_path: Path) -> None:
    extras = {
        "args": argparse.Namespace(lr=1e-3), "best": np.float64(3.25), "array": np.arange(3), "path": Path("/x"),
        "arguments": TrainingArguments(), "set": {1, 2}, "size": torch.Size([2]), "dtype": torch.float16, "range": range(3), "complex": 1j,
    }  # fmt: skip
    torch.save({"model": {"w": torch.eye(3)}, "global_step": 7, **extras}, tmp_path / "m.pt")
    assert torch_zip.metadata(tmp_path / "m.pt") == {"global_step": 7}
    assert torch.equal(torch_zip.read(tmp_path / "m.pt", "w"), torch.eye(3))
    assert isinstance(load_stub_pickle(pickle.dumps(TrainingArguments()), "x"), Stub)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_as_a_pickle(content: bytes) -> None:
    for data in (content, pickle.dumps({"a": [1, 2.0, "x"], "b": (None, True)})[:-1] + content):
        try:
            load_stub_pickle(data, "fuzz")
        except CheckpointError:
            pass


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_flipped_byte_in_a_checkpoint(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    torch.save({"model": {"w": torch.eye(3), "v": torch.ones(2, 2)}, "step": 3}, buffer)
    content = bytearray(buffer.getvalue())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("flip") / "m.pt"
    path.write_bytes(content)
    try:
        reader = find_reader(path)
        for entry in reader.entries(path):
            reader.read(path, entry.key)
    except CheckpointError:
        pass
