from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectrograd.errors import StorageError, TableError, UnknownNameError
from spectrograd.results import CHECKPOINTS, GRADIENTS, RECORDING, ResultsFolder, encode_name, open_results, read_ledger, read_recording

ROW = {
    "seed": None, "stage": None, "step": 5, "step_kind": "step", "checkpoint": "step_5", "tensor": "h.0.w", "stack": None, "layer": 0,
    "expert": None, "role": "q", "rows": 4, "cols": 3, "dtype": "float32", "depth": 1, "width": 3, "num_params": 12, "content_hash": "ab",
    "singular_values": [3.0, 2.0, 0.1], "note": "",
}  # fmt: skip


def _gradients(path: Path, run: str = "a", value: float = 1.0) -> Path:
    row = dict.fromkeys(GRADIENTS.names) | {"run": run, "step": 1, "group": "all", "metric": "stable_rank", "gradient": value}
    path.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([row], schema=GRADIENTS), path / "gradients.parquet")
    return path


def test_a_recording_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path / "r")
    folder.write_recording("D8", "step_5", [ROW], {"checkpoint": "step_5", "fingerprint": "f"}, {"device": "cpu"})
    [(run, path)] = folder.find_recordings()
    assert run == "D8"
    assert path == tmp_path / "r/singular_values/run=D8/step_5.parquet"
    assert read_recording(path).to_pylist() == [ROW]
    assert read_recording(path).schema.remove_metadata() == RECORDING
    assert read_ledger(path) == {"checkpoint": "step_5", "fingerprint": "f"}
    assert not list((tmp_path / "r").rglob("*.tmp"))


def test_recordings_read_as_one_hive_table(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path)
    for run in ("D8", "org/name 100%"):
        folder.write_recording(run, "a/b", [ROW], {"checkpoint": "a/b"}, {})
    frame = pd.read_parquet(tmp_path / "singular_values")
    assert sorted(frame["run"].unique()) == ["D8", "org/name 100%"]
    assert {run for run, _ in folder.find_recordings()} == {"D8", "org/name 100%"}


@given(st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable() and t.isascii()))
def test_names_become_one_plain_file_name(name: str) -> None:
    encoded = encode_name(name)
    assert "/" not in encoded
    assert encoded[0] not in "._"
    assert encode_name(name + "x") != encoded


def test_a_kill_between_writing_and_renaming_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ResultsFolder.create(tmp_path)
    folder.write_recording("a", "c", [ROW], {"checkpoint": "c"}, {})

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", die)
    with pytest.raises(KeyboardInterrupt):
        folder.write_recording("a", "c", [ROW | {"step": 9}], {"checkpoint": "c"}, {})
    [(_, path)] = folder.find_recordings()
    assert read_recording(path).to_pylist() == [ROW]


def test_a_table_of_another_schema_version_is_refused_by_name(tmp_path: Path) -> None:
    path = _gradients(tmp_path) / "gradients.parquet"
    table = pq.read_table(path).replace_schema_metadata({"spectrograd.schema_version": "99"})
    pq.write_table(table, path)
    with pytest.raises(TableError, match=r"gradients\.parquet: schema version 99, this spectrograd reads 1"):
        _ = open_results(tmp_path).gradients


def test_a_table_without_version_is_taken_if_its_columns_fit(tmp_path: Path) -> None:
    path = _gradients(tmp_path) / "gradients.parquet"
    assert open_results(tmp_path).gradients["gradient"].tolist() == [1.0]
    table = pq.read_table(path)
    pq.write_table(table.set_column(3, "step", table["step"].cast(pa.string())), path)
    with pytest.raises(TableError, match=r"step \(int64\)"):
        _ = open_results(tmp_path).gradients


@pytest.mark.parametrize("content", [b"", b"PAR1", b"not a table at all"])
def test_a_damaged_table_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gradients.parquet").write_bytes(content)
    with pytest.raises(TableError, match=r"gradients\.parquet: not a readable Parquet file"):
        _ = open_results(tmp_path).gradients


def test_what_is_no_results_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, text in (("file", "it is a file"), ("none", "no such folder"), ("empty", "it holds no tables")):
        with pytest.raises(TableError, match=text):
            open_results(tmp_path / name)
    with pytest.raises(StorageError, match="choose another folder"):
        ResultsFolder.create(tmp_path / "file" / "below")


def test_equal_labels_of_two_folders_stay_apart(tmp_path: Path) -> None:
    both = open_results(_gradients(tmp_path / "x", value=1.0), _gradients(tmp_path / "y", value=2.0))
    assert dict(zip(both.gradients["run"], both.gradients["gradient"], strict=True)) == {"a": 1.0, "y/a": 2.0}


def test_whole_numbers_stay_whole_beside_missing_ones(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path)
    rows = [{"run": "a", "step": 1, "checkpoint": "x"}, {"run": "a", "step": None, "checkpoint": "y"}]
    folder.write_table("checkpoints", pa.Table.from_pylist(rows, schema=CHECKPOINTS), {})
    frame = open_results(tmp_path).checkpoints
    assert str(frame["step"].dtype) == "Int64"
    assert frame["step"].isna().tolist() == [False, True]


def test_singular_values_of_a_run_and_step(tmp_path: Path) -> None:
    folder = ResultsFolder.create(tmp_path)
    _gradients(tmp_path)
    for step in (5, 10):
        folder.write_recording("a", f"step_{step}", [ROW | {"step": step}], {"checkpoint": f"step_{step}"}, {})
    results = open_results(tmp_path)
    assert len(results.singular_values("a")) == 2
    assert np.array_equal(results.singular_values("a", step=10)["singular_values"][0], [3.0, 2.0, 0.1])
    with pytest.raises(UnknownNameError, match="no recordings of that name"):
        results.singular_values("b")
    with pytest.raises(UnknownNameError, match="steps 5, 10"):
        results.singular_values("a", step=7)
