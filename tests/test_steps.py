import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectrograd import steps
from spectrograd.errors import UnknownNameError
from spectrograd.steps import NamedStep


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step143000", 143000), ("step0", 0), ("step_000", 0), ("step-00000500", 500), ("stage1-step-3440000", 3440000),
        ("x-step_20k", 20000),
        ("step-50K", 50000), ("step_2M", 2000000), ("global_step118500", 118500), ("global_step_100", 100), ("iter_0001000", 1000),
        ("model_step100", 100), ("ep0-ba1500-rank0", 1500), ("checkpoint-10000step", 10000), ("checkpoint-10k-steps", 10000),
        ("state_step006200", 6200), ("checkpoint_3_1200", 1200), ("checkpoint-400000", 400000), ("checkpoint-5", 5), ("model_000500", 500),
        ("model_00001000", 1000), ("ckpt_1000", 1000), ("streaming_params_250000", 250000), ("step1000-unsharded", 1000),
        ("step_100-00001-of-00002", 100), ("stage2-step47684-mix-round5-from-2T", 47684), ("multiberts-seed_0-step_20k", 20000),
        ("epoch=0-step=4-v1", 4), ("update_77", 77),
    ],
)  # fmt: skip
def test_steps_in_names(name: str, step: int) -> None:
    found = steps.parse_step(name)
    assert found is not None
    assert (found.step, found.kind) == (step, "step")


@pytest.mark.parametrize(
    "name",
    [
        "model-00001-of-00003", "consolidated.00", "mp_rank_00_model_states", "layer_02-model_00-model_states", "pythia-70m", "gpt2_124M",
        "llama-7b", "Qwen2.5-0.5B", "gemma-2-9b-it", "d12", "multi-step-reasoning", "multi-step-3", "model", "pytorch_model", "last",
        "seed-0",
        "step", "stage1", "lit_model", "20k", "stage1-step", "step-7b", "deep7", "multiberts-seed_0",
    ],
)  # fmt: skip
def test_names_without_a_step(name: str) -> None:
    assert steps.parse_step(name) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("stage1-step10000-tokens21B", NamedStep(10000, "step", tokens=21 * 10**9, stage="stage1")),
        ("stage2-ingredient1-step23852-tokens51B", NamedStep(23852, "step", tokens=51 * 10**9, stage="stage2-ingredient1")),
        ("step50000-tokens210B", NamedStep(50000, "step", tokens=210 * 10**9)),
        ("multiberts-seed_3-step_20k", NamedStep(20000, "step", seed=3)),
        ("epoch=2-step=40", NamedStep(40, "step", epoch=2)),
        ("checkpoint_3_1200", NamedStep(1200, "step", epoch=3)),
        ("ep4-ba90-rank0", NamedStep(90, "step", epoch=4)),
        ("epoch_3", NamedStep(3, "epoch", epoch=3)),
        ("checkpoint12", NamedStep(12, "epoch", epoch=12)),
        ("rwkv-7", NamedStep(7, "epoch", epoch=7)),
        ("ckpt_000", NamedStep(0, "ordinal")),
        ("checkpoint_7", NamedStep(7, "ordinal")),
    ],
)
def test_all_that_a_name_says(name: str, found: NamedStep) -> None:
    assert steps.parse_step(name) == found


def test_bare_integers_are_left_to_the_caller() -> None:
    assert steps.parse_step("020000") is None
    assert steps.parse_bare("020000") == NamedStep(20000, "step")
    assert steps.parse_bare("0") == NamedStep(0, "step")
    assert steps.parse_bare("1" * 40) is None
    assert steps.parse_bare("12a") is None


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        (["0", "1", "2"], "ordinal"),
        (["7", "8", "9", "10"], "ordinal"),
        (["1000", "1001", "1002"], "ordinal"),
        (["000", "050", "356"], "ordinal"),
        (["050"], "ordinal"),
        (["007", "008"], "ordinal"),
        (["0", "50", "100"], "step"),
        (["1000", "2000", "3000"], "step"),
        (["00001000", "00002000"], "step"),
        (["0", "2", "4"], "step"),
        (["5"], "ordinal"),
        (["5", "99"], "ordinal"),
        (["50", "100"], "step"),
        (["1000"], "step"),
    ],
)
def test_siblings_decide_whether_saves_are_counted(numbers: list[str], kind: str) -> None:
    assert steps.decide_counters([f"ckpt_{number}" for number in numbers]) == kind
    found, rule = steps.explain_counters([*(f"checkpoint_{number}" for number in numbers), "last"])
    assert found == kind
    assert rule


def test_counters() -> None:
    assert steps.parse_counter("checkpoint_012") == 12
    assert steps.parse_counter("checkpoint-12") is None


@pytest.mark.parametrize(("name", "seed"), [("seed-0", 0), ("seed_12", 12), ("s3", 3), ("seeds", None), ("runs1", None), ("s", None)])
def test_seed_folders(name: str, seed: int | None) -> None:
    assert steps.parse_seed_folder(name) == seed


def test_names_that_say_nothing() -> None:
    assert all(map(steps.says_nothing, ["checkpoints", "Checkpoint", "snapshots", "weights", "ckpt", "models", "outputs"]))
    assert not any(map(steps.says_nothing, ["d12", "runs", "pythia-70m", "version_0"]))


def test_aliases() -> None:
    names = [
        "final",
        "last",
        "best",
        "latest",
        "main",
        "release",
        "last-v1",
        "latest-unsharded",
        "checkpoint_last",
        "checkpoint.best_loss_2.31",
    ]
    assert all(map(steps.is_alias, [*names, "rwkv-final", "best_model", "latest-rank0", "Last"]))
    assert not any(map(steps.is_alias, ["step10", "mainline", "final-layer-study", "model", "best-of-n"]))


def test_unfinished_saves() -> None:
    names = ["tmp-checkpoint-10", "step100-tmp", "model.pt.tmp", "abc.incomplete", "100.orbax-checkpoint-tmp-17", ".tmp_x", "tmp"]
    assert all(map(steps.is_unfinished, names))
    assert not any(map(steps.is_unfinished, ["step100", "template", "attempt-1", "tmpl"]))


def test_natural_order() -> None:
    assert sorted(["step10", "step9", "step", "Step1"], key=steps.natural_key) == ["step", "Step1", "step9", "step10"]


@given(st.lists(st.text(max_size=8), max_size=6))
def test_any_names_can_be_ordered_and_parsed(names: list[str]) -> None:
    assert sorted(sorted(names, key=steps.natural_key, reverse=True), key=steps.natural_key) == sorted(names, key=steps.natural_key)
    for name in names:
        steps.parse_step(name)


@pytest.mark.parametrize(
    ("spec", "taken"),
    [("0:100:50", {0, 50, 100}), ("75:", {75, 100, 1000}), (":60", {0, 25, 50}), ("::50", {0, 50, 100, 1000}), ("0,50,51", {0, 50})],
)
def test_selected_steps(spec: str, taken: set[int]) -> None:
    assert steps.select_steps(spec, [1000, 0, 25, 50, 75, 100]) == taken


@given(st.sets(st.integers(0, 10**6), max_size=80), st.integers(1, 40))
def test_log_spaced_steps(there: set[int], count: int) -> None:
    taken = steps.select_steps(f"log:{count}", sorted(there))
    assert taken <= there
    assert len(taken) <= count
    assert len(there) > count or taken == there
    assert 0 in taken or 0 not in there
    if count > 2 and there:
        assert max(there) in taken


@pytest.mark.parametrize("spec", ["", "all", "0:10:0", "log:0", "0:10:1:1", "1,,2"])
def test_wrong_specifications(spec: str) -> None:
    with pytest.raises(UnknownNameError, match="cannot read --steps"):
        steps.select_steps(spec, [0, 1])
