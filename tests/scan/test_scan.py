import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from synthetic import diagonal, write_run

from spectrograd.errors import CheckpointError
from spectrograd.records import Run
from spectrograd.scan import Scan, scan

WEIGHTS = {f"transformer.h.{i}.mlp.c_fc.weight": diagonal(i + 1) for i in range(3)}


def write(path: Path, weights: dict[str, torch.Tensor] = WEIGHTS, **metadata: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        save_file(weights, path, metadata=metadata or None)
    else:
        torch.save(weights, path)


def run_of(found: Scan) -> Run:
    [run] = found.runs
    return run


def steps(run: Run) -> list[tuple[int | None, str | None]]:
    return [(checkpoint.step, checkpoint.step_kind) for checkpoint in run.checkpoints]


# ---------------------------------------------------------------- steps and layouts
def test_numeric_order_whatever_names_and_times_say(tmp_path: Path) -> None:
    for run, names in (("a", ["step_500", "step_2500", "step_9000", "step_10000"]), ("b", ["020000", "100000", "0900000", "handpicked"])):
        for n, name in enumerate(names):
            write(tmp_path / run / name / "model.safetensors")
            os.utime(tmp_path / run / name / "model.safetensors", (2e9 - n, 2e9 - n))
    found = {run.name: run for run in scan(tmp_path).runs}
    assert steps(found["a"]) == [(500, "step"), (2500, "step"), (9000, "step"), (10000, "step")]
    assert [step for run in found.values() for step, _ in steps(run) if run.name == "b"] == [20000, 100000, 900000]
    handpicked = [run for run in found.values() if any(c.step is None for c in run.checkpoints)]
    assert len(handpicked) == 1


def test_hugging_face_trainer(tmp_path: Path) -> None:
    for n in (100, 1000):
        write(tmp_path / f"gpt/checkpoint-{n}/model.safetensors")
        for other in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
            write(tmp_path / f"gpt/checkpoint-{n}" / other, {"x": torch.eye(2)})
        (tmp_path / f"gpt/checkpoint-{n}/trainer_state.json").write_text(json.dumps({"global_step": n, "epoch": n / 100}))
    write(tmp_path / "gpt/model.safetensors")
    found = scan(tmp_path / "gpt")
    run = run_of(found)
    assert run.name == "gpt"
    assert steps(run) == [(100, "step"), (1000, "step"), (None, None)]
    assert [checkpoint.epoch for checkpoint in run.checkpoints[:2]] == [1.0, 10.0]
    assert run.checkpoints[0].layout == "HF Trainer"
    assert len(found.ignored) == 8


def test_the_sidecar_beats_the_name_and_the_difference_is_told(tmp_path: Path) -> None:
    write(tmp_path / "r/checkpoint-5/model.safetensors")
    (tmp_path / "r/checkpoint-5/trainer_state.json").write_text(json.dumps({"global_step": 50}))
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert checkpoint.step == 50
    assert "its name says step 5, trainer_state.json says 50" in checkpoint.problems[0]


def test_the_header_has_the_step(tmp_path: Path) -> None:
    write(tmp_path / "r/final.safetensors", step="1234")
    assert steps(run_of(scan(tmp_path / "r"))) == [(1234, "step")]


def test_nanogpt(tmp_path: Path) -> None:
    (tmp_path / "out-shakespeare").mkdir()
    torch.save(
        {
            "model": WEIGHTS,
            "optimizer": {"state": {0: {"exp_avg": torch.eye(4)}}},
            "iter_num": 2500,
            "model_args": {"n_layer": 3, "n_head": 2},
        },
        tmp_path / "out-shakespeare/ckpt.pt",
    )
    run = run_of(scan(tmp_path / "out-shakespeare"))
    assert (run.name, steps(run), run.checkpoints[0].layout) == ("out-shakespeare", [(2500, "step")], "nanoGPT")
    assert len(run.checkpoints[0].matrices) == 3


def test_nanochat(tmp_path: Path) -> None:
    folder = tmp_path / "base_checkpoints/d3"
    for n in (500, 2500):
        write(folder / f"model_{n:06d}.pt")
        write(folder / f"optim_{n:06d}_rank0.pt", {"x": torch.eye(2)})
        (folder / f"meta_{n:06d}.json").write_text(json.dumps({"step": n, "model_config": {"n_layer": 3, "n_head": 2}}))
    run = run_of(scan(tmp_path))
    assert (run.name, steps(run), run.checkpoints[0].layout) == ("d3", [(500, "step"), (2500, "step")], "nanochat")
    assert run.checkpoints[0].name == "model_000500.pt"


def test_files_with_steps_in_their_names(tmp_path: Path) -> None:
    for n in (1, 20, 100):
        write(tmp_path / f"r/step_{n}.pt")
    assert steps(run_of(scan(tmp_path / "r"))) == [(1, "step"), (20, "step"), (100, "step")]


@pytest.mark.parametrize(("numbers", "kind"), [((0, 1, 2, 3), "ordinal"), ((1000, 2000, 3000), "step"), ((7, 8, 9), "ordinal")])
def test_counters_and_steps(tmp_path: Path, numbers: tuple[int, ...], kind: str) -> None:
    for n in numbers:
        write(tmp_path / f"r/checkpoint_{n}/model.safetensors")
    assert steps(run_of(scan(tmp_path / "r"))) == [(n, kind) for n in numbers]


def test_a_checkpoint_itself(tmp_path: Path) -> None:
    write(tmp_path / "mine/step_100/model.safetensors")
    for path in (tmp_path / "mine/step_100", tmp_path / "mine/step_100/model.safetensors"):
        run = run_of(scan(path))
        assert (run.name, len(run.checkpoints)) == ("mine", 1)
        assert steps(run) == [(100, "step")]


# ---------------------------------------------------------------- runs and labels
def test_names_that_say_nothing_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "D8/checkpoints", {1: [1, 2, 3]})
    assert run_of(scan(tmp_path)).name == "D8"


def test_equal_labels_get_the_shortest_distinguishing_path(tmp_path: Path) -> None:
    for parent in ("x", "y"):
        write_run(tmp_path / parent / "run", {1: [1, 2, 3]})
    found = scan(tmp_path)
    assert [run.name for run in found.runs] == ["x/run", "y/run"]
    assert [checkpoint.run for run in found.runs for checkpoint in run.checkpoints] == ["x/run", "y/run"]


def test_a_label_names_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "a=b", {1: [1, 2, 3]})
    assert run_of(scan(f"mine={tmp_path / 'a=b'}")).name == "mine"
    assert run_of(scan(str(tmp_path / "a=b"))).name == "a=b"


def test_seeds_are_one_run(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"run/seed-{seed}", {1: [1, 2, 3], 2: [1, 2, 4]})
    run = run_of(scan(tmp_path / "run"))
    assert [(c.seed, c.step, c.name) for c in run.checkpoints] == [
        (0, 1, "seed-0/step_1"), (0, 2, "seed-0/step_2"), (1, 1, "seed-1/step_1"), (1, 2, "seed-1/step_2"),
    ]  # fmt: skip


def test_several_models_in_a_step_folder_are_a_run_each(tmp_path: Path) -> None:
    for n in (10, 20):
        for model in ("actor", "critic"):
            write(tmp_path / f"rl/global_step_{n}/{model}/model.safetensors")
    assert {run.name: steps(run) for run in scan(tmp_path).runs} == {
        f"rl/{model}": [(10, "step"), (20, "step")] for model in ("actor", "critic")
    }


# ---------------------------------------------------------------- shards
def write_shards(folder: Path, present: tuple[int, ...] = (1, 2, 3), index: bool = True) -> None:
    names = {i: f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)}
    keys = sorted(WEIGHTS)
    for i in present:
        write(folder / names[i], {keys[i - 1]: WEIGHTS[keys[i - 1]].clone()})
    if index:
        document = {"weight_map": {key: names[i] for i, key in enumerate(keys, start=1)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(document))


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_one_checkpoint(tmp_path: Path, index: bool) -> None:
    write_shards(tmp_path / "r/step_5", index=index)
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert [ref.layer for ref in checkpoint.matrices] == [0, 1, 2]
    assert (checkpoint.name, checkpoint.format) == ("step_5", "safetensors shards")


@pytest.mark.parametrize(("present", "index", "missing"), [((1, 2), True, 3), ((1, 3), False, 2), ((), True, 1)])
def test_a_missing_shard_refuses_the_checkpoint(tmp_path: Path, present: tuple[int, ...], index: bool, missing: int) -> None:
    (tmp_path / "r/step_5").mkdir(parents=True)
    write_shards(tmp_path / "r/step_5", present, index)
    write(tmp_path / "r/step_9/model.safetensors")
    [refused] = [c for c in run_of(scan(tmp_path / "r")).checkpoints if c.refused]
    assert f"incomplete, missing model-{missing:05d}-of-00003.safetensors" in refused.refused
    assert (refused.name, refused.step, refused.matrices) == ("step_5", 5, ())


@pytest.mark.parametrize("target", ["../../outside/secret.safetensors", "/etc/secret.safetensors"])
def test_an_index_that_leads_outside_is_refused(tmp_path: Path, target: str) -> None:
    write_shards(tmp_path / "r/step_5", (1,), index=False)
    (tmp_path / "r/step_5/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": target}}))
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert "outside its folder" in checkpoint.refused


# ---------------------------------------------------------------- dirty folders
def test_links_are_followed_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {100: [1, 2, 3], 200: [1, 2, 4]})
    for link, target in (("latest", "step_200"), ("loop", ".."), ("step_100/self", "."), ("step_300", "nowhere")):
        (run / link).symlink_to(target)
    checkpoints = run_of(scan(run)).checkpoints
    assert [(c.step, bool(c.refused)) for c in checkpoints] == [(100, False), (200, False), (300, True)]
    assert "broken link to nowhere" in checkpoints[2].refused


def test_a_hub_cache_is_followed_to_its_blobs_once(tmp_path: Path) -> None:
    hub = tmp_path / "models--org--m"
    write(hub / "blobs/aa11.safetensors")
    (hub / "blobs/aa11.safetensors").rename(hub / "blobs/aa11")
    (hub / "snapshots/rev").mkdir(parents=True)
    (hub / "snapshots/rev/model.safetensors").symlink_to("../../blobs/aa11")
    [checkpoint] = run_of(scan(tmp_path)).checkpoints
    assert len(checkpoint.matrices) == 3


def test_unfinished_and_hidden_folders_are_passed_over(tmp_path: Path) -> None:
    write_run(tmp_path / "run", {1: [1, 2, 3]})
    for name in ("tmp-checkpoint-400", "step-500.tmp", ".cache"):
        write(tmp_path / "run" / name / "model.safetensors")
    found = scan(tmp_path / "run")
    assert steps(run_of(found)) == [(1, "step")]
    assert len(found.ignored) == 2


def test_two_formats_of_one_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "r/step_1/model.safetensors")
    write(tmp_path / "r/step_1/model.pt")
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert checkpoint.format == "safetensors"
    assert any("left out" in problem for problem in checkpoint.problems)


def test_a_name_without_suffix_is_taken_at_the_same_step(tmp_path: Path) -> None:
    for name in ("epoch=2-step=300.ckpt", "epoch=2-step=300-v1.ckpt"):
        write(tmp_path / "run" / name)
    [checkpoint] = run_of(scan(tmp_path / "run")).checkpoints
    assert checkpoint.name == "epoch=2-step=300.ckpt"
    assert "epoch=2-step=300-v1.ckpt is of the same step" in checkpoint.problems[0]


def test_one_bad_file_costs_itself_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: [1, 2, 3], 2: [1, 2, 3]})
    (run / "step_2/model.safetensors").write_bytes(b"")
    (run / "step_3").mkdir()
    (run / "step_3/ckpt.pt").write_bytes(b"PK\x03\x04 cut")
    good, *bad = run_of(scan(run)).checkpoints
    assert good.refused == ""
    assert [("empty" in bad[0].refused), ("truncated zip" in bad[1].refused)] == [True, True]


def test_a_fifo_is_not_opened(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {1: [1, 2, 3]})
    os.mkfifo(run / "step_2.pt")
    found = scan(run)
    assert steps(run_of(found)) == [(1, "step")]
    assert (run / "step_2.pt", "not an ordinary file") in found.ignored


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file or folder"):
        scan(tmp_path / "nowhere")


def test_every_tensor_is_a_row_or_has_a_reason(tmp_path: Path) -> None:
    weights = WEIGHTS | {
        "transformer.wte.weight": torch.ones(9, 4),
        "ln_f.weight": torch.ones(4),
        "mask": torch.ones(1, 1, 4, 4, dtype=torch.bool),
        "z": torch.zeros(0),
    }
    write(tmp_path / "r/step_1/model.safetensors", weights)
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    named = {ref.tensor for ref in checkpoint.matrices} | {skipped.tensor for skipped in checkpoint.skipped}
    assert named == set(weights)
    assert all(skipped.reason for skipped in checkpoint.skipped)
