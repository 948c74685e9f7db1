import json
from pathlib import Path

from spectrograd.history import read_history
from spectrograd.records import CheckpointRef, Run


def _run(path: Path, *checkpoints: Path) -> Run:
    refs = [CheckpointRef(run="r", name=c.name, path=c, files=()) for c in checkpoints]
    return Run("r", path, tuple(refs))


def test_loss_csv(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("step,tokens,lr,loss,val_loss\n0,0,1e-5,5.5,5.6\n25,12800,2e-4,5.0,\n")
    first, second = read_history(_run(tmp_path))
    assert first == {
        "run": "r", "step": 0, "step_kind": "step", "source": "loss.csv", "epoch": None, "tokens": 0, "loss": 5.5, "val_loss": 5.6,
        "learning_rate": 1e-5,
    }  # fmt: skip
    assert (second["tokens"], second["val_loss"]) == (12800, None)


def test_the_last_trainer_state_has_the_whole_log(tmp_path: Path) -> None:
    log = [
        {"step": 10, "loss": 3.0, "learning_rate": 1e-4, "epoch": 0.5},
        {"step": 10, "eval_loss": 2.9, "epoch": 0.5},
        {"step": 20, "loss": 2.0},
    ]
    for n, entries in ((10, log[:2]), (20, log)):
        (tmp_path / f"checkpoint-{n}").mkdir()
        (tmp_path / f"checkpoint-{n}/trainer_state.json").write_text(json.dumps({"global_step": n, "log_history": entries}))
    rows = read_history(_run(tmp_path, tmp_path / "checkpoint-10", tmp_path / "checkpoint-20"))
    assert [(row["step"], row["loss"], row["val_loss"]) for row in rows] == [(10, 3.0, 2.9), (20, 2.0, None)]


def test_damaged_logs_give_no_rows(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "meta_000001.json").write_text("{")
    assert read_history(_run(tmp_path)) == []


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("step,loss\n1,nan\n2,inf\n3,x\n4,1.5\n")
    assert [row["step"] for row in read_history(_run(tmp_path))] in ([4], [])
