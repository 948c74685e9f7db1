import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from synthetic import diagonal, write_run

from spectrograd.errors import CheckpointError, UnknownNameError
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


def test_a_label_stays_where_a_folder_has_the_same_name(tmp_path: Path) -> None:
    for name in ("x/D", "y/D", "z"):
        write_run(tmp_path / name, {1: [1, 2, 3]})
    given = [tmp_path / "x", tmp_path / "y", f"D={tmp_path / 'z'}"]
    assert {run.name: run.path.name for run in scan(given).runs} == {"D": "z", "x/D": "D", "y/D": "D"}
    with pytest.raises(UnknownNameError, match=r"cannot name 2 runs 'D': .*x, .*z; give each a label of its own"):
        scan([f"D={tmp_path / 'x'}", f"D={tmp_path / 'z'}"])


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


# ---------------------------------------------------------------- what lies beside checkpoints
def test_data_beside_checkpoints_is_passed_over_with_the_reason(tmp_path: Path) -> None:
    write(tmp_path / "r/ckpt.pt")
    for name in ("train.bin", "val.bin", "vocab.pt"):
        (tmp_path / "r" / name).write_bytes(bytes(range(200)))
    found = scan(tmp_path / "r")
    assert [(c.name, c.refused) for c in run_of(found).checkpoints] == [("ckpt.pt", "")]
    assert [path.name for path, _ in found.ignored] == ["train.bin", "val.bin", "vocab.pt"]
    assert all("its format is not known" in reason for _, reason in found.ignored)


@pytest.mark.parametrize("name", ["step_5.bin", "pytorch_model.bin", "ckpt.pt", "last.pt", "step_7/x.bin"])
def test_what_is_named_like_weights_is_refused_and_not_passed_over(tmp_path: Path, name: str) -> None:
    write(tmp_path / "r/step_1/model.safetensors")
    (tmp_path / "r" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "r" / name).write_bytes(bytes(range(200)))
    refused = [c for run in scan(tmp_path / "r").runs for c in run.checkpoints if c.refused]
    assert [c.refused.split(":")[0] for c in refused] == [Path(name).name]


@pytest.mark.parametrize(("content", "reason"), [(b"", "empty"), (b"version https://git-lfs\nsize 7\n", "Git LFS pointer for 7 bytes")])
def test_a_pointer_or_an_empty_file_is_refused_whatever_its_name(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "train.bin").write_bytes(content)
    [checkpoint] = run_of(scan(tmp_path)).checkpoints
    assert reason in checkpoint.refused


def test_a_data_file_that_is_asked_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(bytes(range(200)))
    assert scan(tmp_path).runs == ()
    assert "its format is not known" in run_of(scan(tmp_path / "train.bin")).checkpoints[0].refused


def test_a_file_alone_is_not_judged_by_an_index_beside_it(tmp_path: Path) -> None:
    write(tmp_path / "r/step_100.pt")
    (tmp_path / "r/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    assert [(c.step, c.refused) for c in run_of(scan(tmp_path / "r/step_100.pt")).checkpoints] == [(100, "")]


def test_an_index_without_its_shards_is_a_refused_checkpoint(tmp_path: Path) -> None:
    write(tmp_path / "r/step_1/model.safetensors")
    (tmp_path / "r/step_2").mkdir()
    (tmp_path / "r/step_2/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "model-00001-of-00001.safetensors"}}))
    one, two = run_of(scan(tmp_path / "r")).checkpoints
    assert (one.refused, two.step) == ("", 2)
    assert "missing model-00001-of-00001.safetensors" in two.refused


@pytest.mark.parametrize("index", ["not json", "[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"w": [1]}}', '{"weight_map": {"w": 3}}'])
def test_a_damaged_index_refuses_its_checkpoint(tmp_path: Path, index: str) -> None:
    write_shards(tmp_path / "r/step_5", index=False)
    (tmp_path / "r/step_5/model.safetensors.index.json").write_text(index)
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert "model.safetensors.index.json" in checkpoint.refused


def test_twelve_layers_over_three_shards_in_order_of_names(tmp_path: Path) -> None:
    weights = {f"model.layers.{i}.mlp.down_proj.weight": diagonal(i + 1) for i in range(12)}
    keys, shards = sorted(weights), {}
    for i in range(3):
        shards |= dict.fromkeys(keys[4 * i : 4 * i + 4], f"model-{i + 1:05d}-of-00003.safetensors")
        write(tmp_path / "r/step_1" / shards[keys[4 * i]], {key: weights[key] for key in keys[4 * i : 4 * i + 4]})
    (tmp_path / "r/step_1/model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    [checkpoint] = run_of(scan(tmp_path / "r")).checkpoints
    assert [(ref.layer, ref.tensor) for ref in checkpoint.matrices] == list(enumerate(weights))


# ---------------------------------------------------------------- paths that overlap, links, numbers
def test_a_checkpoint_under_two_of_the_paths_is_taken_once(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs/D8", {1: [1, 2, 3], 2: [1, 2, 4]})
    (tmp_path / "link").symlink_to(run)
    for paths in ([run, run], [tmp_path / "runs", run], [run, run / "step_1"], [run, tmp_path / "link"]):
        found = scan(paths)
        assert (run_of(found).name, steps(run_of(found))) == ("D8", [(1, "step"), (2, "step")])
        assert {reason for _, reason in found.ignored} == {"given twice"}


def test_links_in_a_circle(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {3: [1, 2, 3]})
    (run / "one").symlink_to("two")
    (run / "two").symlink_to("one")
    (run / "step_4.pt").symlink_to("step_4.pt")
    checkpoints = [c for found in scan(run).runs for c in found.checkpoints]
    assert [c.step for c in checkpoints if not c.refused] == [3]
    assert all("broken link" in c.refused for c in checkpoints if c.refused)


@pytest.mark.parametrize("step", ["9" * 30, "9" * 5000, "-3", "1.5", "many"])
def test_a_number_that_is_no_step(tmp_path: Path, step: str) -> None:
    write(tmp_path / "r/model.safetensors", step=step)
    torch.save({"model": WEIGHTS, "step": int(step) if step == "9" * 30 else True}, tmp_path / "r/a.pt")
    write(tmp_path / f"r/step_{step[:30]}x/model.safetensors")
    assert {s for run in scan(tmp_path / "r").runs for s in steps(run)} == {(None, None)}


def test_a_step_in_a_name_that_no_table_holds(tmp_path: Path) -> None:
    write(tmp_path / f"r/step_{'9' * 25}/model.safetensors")
    assert steps(run_of(scan(tmp_path / "r"))) == [(None, None)]


@pytest.mark.parametrize("sidecar", ["", "[1]", "[" * 100_000, '{"global_step": NaN}', '{"global_step": 1e400}', '{"global_step": "x"}'])
def test_a_damaged_sidecar_leaves_the_step_to_the_name(tmp_path: Path, sidecar: str) -> None:
    write(tmp_path / "r/checkpoint-7/model.safetensors")
    for name in ("trainer_state.json", "config.json"):
        (tmp_path / "r/checkpoint-7" / name).write_text(sidecar)
    assert steps(run_of(scan(tmp_path / "r"))) == [(7, "step")]


def test_a_label_of_a_folder_of_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, {1: [1, 2, 3]})
    assert [run.name for run in scan([f"mine={tmp_path / 'a'}", tmp_path / "b"]).runs] == ["b", "mine"]


def test_wrappers_are_taken_off(tmp_path: Path) -> None:
    for step, lead in ((1, ""), (2, "_orig_mod."), (3, "module._orig_mod."), (4, "_fsdp_wrapped_module._orig_mod.module.")):
        write(tmp_path / f"r/step_{step}.pt", {lead + key: tensor for key, tensor in WEIGHTS.items()})
    run = run_of(scan(tmp_path / "r"))
    assert {tuple(ref.tensor for ref in c.matrices) for c in run.checkpoints} == {tuple(WEIGHTS)}
