"""Files that torch did not write, and files that change between the look and the reading."""

import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from synthetic import write_torch

from spectrograd.errors import CheckpointError
from spectrograd.readers import torch_zip


def dumped(value: object) -> bytes:
    return pickle.dumps(value, 2)[2:-1]


def tensor(name: bytes, shape: tuple[int, ...] = (2, 2), stride: tuple[int, ...] = (2, 1), offset: int = 0, kind: str = "Float") -> bytes:
    """Return a pickle of a dict with one tensor, described as torch describes them."""
    storage = b"(" + dumped("storage") + f"ctorch\n{kind}Storage\n".encode() + dumped("0") + dumped("cpu") + dumped(4) + b"tQ"
    return (
        b"\x80\x02}" + name + b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + dumped(offset) + dumped(shape) + dumped(stride) + b"tRs."
    )


def write(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED, data: bytes = bytes(16)) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/data/0", data)
    return path


def test_a_tensor_described_by_hand_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", tensor(dumped("w")))
    assert torch.equal(torch_zip.read(path, "w"), torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((-2, 2), (2, 1), 0),
        ((2, 2), (-2, 1), 0),
        ((2, 2), (2, 1), -1),
        ((2, 2), (1,), 0),
        ((2**62, 2**62), (0, 0), 0),
        ((2**70, 2), (0, 0), 0),
    ],
)
def test_what_fits_no_tensor_is_refused_when_it_is_listed(
    tmp_path: Path, shape: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> None:
    path = write(tmp_path / "m.pt", tensor(dumped("w"), shape, stride, offset))
    with pytest.raises(CheckpointError, match=r"'w' fit no tensor"):
        torch_zip.entries(path)


@pytest.mark.parametrize(("shape", "offset"), [((3, 2), 0), ((2, 2), 1), ((2, 2), 10**30)])
def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path, shape: tuple[int, ...], offset: int) -> None:
    path = write(tmp_path / "m.pt", tensor(dumped("w"), shape, offset=offset))
    assert len(torch_zip.entries(path)) == 1
    with pytest.raises(CheckpointError, match=str(path)):
        torch_zip.read(path, "w")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", tensor(b"X\x03\0\0\0\xed\xa0\x80"))
    with pytest.raises(CheckpointError, match="is no name of a tensor"):
        torch_zip.entries(path)


def test_a_quantized_tensor_is_listed_and_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", tensor(dumped("w"), kind="QInt8"))
    assert [entry.dtype for entry in torch_zip.entries(path)] == [""]
    with pytest.raises(CheckpointError, match=str(path)):
        torch_zip.read(path, "w")


@pytest.mark.parametrize("shape", ["circle", "doubling", "deep"])
def test_dicts_nested_without_end(tmp_path: Path, shape: str) -> None:
    content: dict[str, object] = {}
    if shape == "circle":
        content["again"] = content
        stored = pickle.dumps({"model": content})
    elif shape == "doubling":
        for _ in range(60):
            content = {"a": content, "b": content}
        stored = pickle.dumps({"model": content})
    else:
        stored = b"\x80\x02}" + dumped("model") + (b"}" + dumped("a")) * 5000 + b"}" + b"s" * 5001 + b"."
    path = write(tmp_path / "m.pt", stored)
    try:
        assert torch_zip.entries(path) == []
    except CheckpointError as error:
        assert shape == "deep"
        assert str(path) in str(error)


def test_a_compressed_pickle_is_not_unpacked(tmp_path: Path) -> None:
    path = write(tmp_path / "m.pt", bytes(10**7), zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 10**5
    with pytest.raises(CheckpointError, match="compressed"):
        torch_zip.entries(path)


def test_no_such_tensor(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "m.pt", {"w": torch.eye(3)})
    with pytest.raises(CheckpointError, match="no such tensor"):
        torch_zip.read(path, "v")


def test_a_file_that_goes_or_shrinks_after_the_look(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "m.pt", {"w": torch.ones(100, 100)})
    assert len(torch_zip.entries(path)) == 1
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(CheckpointError, match=str(path)):
        torch_zip.read(path, "w")
    path.unlink()
    with pytest.raises(CheckpointError, match="No such file"):
        torch_zip.read(path, "w")


def test_the_same_path_with_other_content_is_read_again(tmp_path: Path) -> None:
    path = write_torch(tmp_path / "m.pt", {"w": torch.ones(2, 2)})
    torch_zip.entries(path)
    write_torch(path, {"w": torch.zeros(3, 3), "v": torch.ones(2, 2)})
    assert [entry.key for entry in torch_zip.entries(path)] == ["w", "v"]
    assert torch.equal(torch_zip.read(path, "w"), torch.zeros(3, 3))
