import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from synthetic import write_safetensors

from spectrograd.errors import CheckpointError
from spectrograd.load import fingerprint, hash_matrix, read_matrix, stream_matrices
from spectrograd.records import Entry, MatrixRef


def make_ref(path: Path, key: str = "w", shape: tuple[int, ...] = (6, 4), **changes: object) -> MatrixRef:
    return replace(MatrixRef(tensor=key, entry=Entry(key, shape, "float32"), path=path, role="q"), **changes)


@pytest.fixture
def weight(rng: np.random.Generator) -> torch.Tensor:
    return torch.tensor(rng.standard_normal((6, 4)), dtype=torch.float32)


@pytest.fixture
def path(tmp_path: Path, weight: torch.Tensor) -> Path:
    return write_safetensors(tmp_path / "m.safetensors", {"w": weight, **{f"w{i}": weight + i for i in range(5)}})


def test_a_matrix_is_cut_and_turned_as_its_reference_says(path: Path, weight: torch.Tensor) -> None:
    cases = [
        (make_ref(path), weight),
        (make_ref(path, transposed=True), weight.T),
        (make_ref(path, rows=((2, 4),)), weight[2:4]),
        (make_ref(path, rows=((0, 1), (4, 6))), weight[[0, 4, 5]]),
        (make_ref(path, transposed=True, rows=((1, 2), (3, 4))), weight.T[[1, 3]]),
    ]
    for ref, expected in cases:
        found = read_matrix(ref)
        assert torch.equal(found, expected)
        assert ref.shape == tuple(found.shape)


def test_a_shape_that_changed_since_the_scan_is_refused(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read w of .*: shape \(6, 4\), announced \(4, 6\)"):
        read_matrix(make_ref(path, shape=(4, 6)))


@pytest.mark.parametrize(("most", "sizes"), [(96, [1] * 5), (200, [2, 2, 1]), (10**6, [5]), (1, [1] * 5)])
def test_lists_hold_at_most_so_many_bytes_or_one_matrix(path: Path, weight: torch.Tensor, most: int, sizes: list[int]) -> None:
    refs = [make_ref(path, f"w{i}") for i in range(5)]
    lists = list(stream_matrices(refs, most))
    assert [len(batch) for batch in lists] == sizes
    together = [pair for batch in lists for pair in batch]
    assert [ref for ref, _ in together] == refs
    assert all(torch.equal(matrix, weight + i) for i, (_, matrix) in enumerate(together))


def test_nothing_is_read_before_it_is_asked_for(path: Path) -> None:
    stream = stream_matrices([make_ref(path, "w0"), make_ref(path, "w1"), make_ref(path, "gone")], 1)
    assert next(stream)[0][0].tensor == "w0"
    with pytest.raises(CheckpointError, match="gone"):
        list(stream)
    assert list(stream_matrices([], 1)) == []


def test_equal_hashes_mean_equal_dtype_shape_and_bytes(weight: torch.Tensor) -> None:
    assert hash_matrix(weight) == hash_matrix(weight.clone()) == hash_matrix(weight.T.contiguous().T)
    changed = weight.clone()
    changed[5, 3] += 1e-3
    others = [changed, weight.T, weight.reshape(4, 6), weight.double(), weight.view(torch.int32), -weight]
    assert len({hash_matrix(matrix) for matrix in (weight, *others)}) == 1 + len(others)
    assert hash_matrix(torch.zeros(2, 2, dtype=torch.bfloat16)) != hash_matrix(torch.zeros(2, 2, dtype=torch.float16))


@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (6, 1), (2, 3)])
def test_the_hash_does_not_see_how_a_matrix_lies_in_memory(rng: np.random.Generator, shape: tuple[int, int]) -> None:
    plain = torch.tensor(rng.standard_normal(shape))
    wide = torch.tensor(np.repeat(plain.numpy(), 3, axis=1))
    for same in (wide[:, ::3], plain.T.contiguous().T, plain.T.clone(memory_format=torch.contiguous_format).T):
        assert hash_matrix(same) == hash_matrix(plain)


def test_a_fingerprint_changes_with_files_and_cuts(path: Path) -> None:
    ref = make_ref(path)
    first = fingerprint([path], [ref])
    assert fingerprint([path], [ref]) == first
    recut = [
        replace(ref, transposed=True), replace(ref, rows=((0, 2),)), replace(ref, layer=3), replace(ref, role="k"),
        replace(ref, stack="decoder"), replace(ref, expert=1), replace(ref, tensor="v"),
    ]  # fmt: skip
    assert len({first, *(fingerprint([path], [other]) for other in recut)}) == 1 + len(recut)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    later = fingerprint([path], [ref])
    moved = path.rename(path.with_name("n.safetensors"))
    assert len({first, later, fingerprint([moved], [ref])}) == 3
    with pytest.raises(CheckpointError, match=str(path)):
        fingerprint([path], [ref])
