import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from synthetic import assert_same_tables, diagonal, layers, read_tables, write_run, write_torch

import spectrograd
from spectrograd.errors import CheckpointError, SpectrumError
from spectrograd.pipeline import Selection, run_analysis
from spectrograd.results import open_results


def test_from_weights_to_gradients(tmp_path: Path) -> None:
    run = write_run(tmp_path / "D3", {500: [1, 2, 3], 2500: [1, 2, 5], 10000: [1, 2, 7.5]})
    results = spectrograd.analyze(run, tmp_path / "results")
    spectra = results.spectra
    assert spectra["stable_rank"].to_numpy() == pytest.approx([1, 2, 3, 1, 2, 5, 1, 2, 7.5])
    assert spectra["step"].tolist() == [500] * 3 + [2500] * 3 + [10000] * 3
    curve = results.gradients.query("metric == 'stable_rank' and group == 'mlp_up'")
    assert curve["step"].tolist() == [500, 2500, 10000]
    assert curve["gradient"].to_numpy() == pytest.approx([2, 4, 6.5])
    assert set(results.checkpoints["status"]) == {"done"}
    assert set(spectra["run"]) == {"D3"}


def test_again_repeats_nothing_and_changes_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3], 2: [1, 2, 4]})
    out = tmp_path / "results"
    run_analysis([run], out, Selection())
    stamps = {path: path.stat().st_mtime_ns for path in (out / "singular_values").rglob("*.parquet")}
    before = read_tables(out)
    again = run_analysis([run], out, Selection())
    assert (len(again.recorded), len(again.current)) == (0, 2)
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    for name, table in read_tables(out).items():
        assert table.equals(before[name]), name


def test_only_what_is_new_or_changed_is_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3], 2: [1, 2, 4]})
    out = tmp_path / "results"
    run_analysis([run], out, Selection())
    write_run(run, {3: [1, 2, 6]})
    save_file({f"transformer.h.{i}.mlp.c_fc.weight": diagonal(2) for i in range(3)}, run / "step_2/model.safetensors")
    os.utime(run / "step_2/model.safetensors", ns=(1, 1))
    again = run_analysis([run], out, Selection())
    assert sorted(checkpoint.step for checkpoint in again.recorded) == [2, 3]
    curve = open_results(out).gradients.query("metric == 'stable_rank' and group == 'all'")
    assert curve["gradient"].to_numpy() == pytest.approx([2, 0, 5])
    run_analysis([run], tmp_path / "fresh", Selection())
    assert_same_tables(out, tmp_path / "fresh")


def test_a_changed_metric_is_remade_from_recordings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3]})
    out = tmp_path / "results"
    run_analysis([run], out, Selection())
    (run / "step_1/model.safetensors").unlink()
    monkeypatch.setattr("spectrograd.pipeline.tables.METRICS_VERSION", 99)
    monkeypatch.setattr(
        "spectrograd.metrics.norms.compute", lambda s: ({"spectral_norm": 42.0, "frobenius_norm": 0.0, "nuclear_norm": 0.0}, "")
    )
    run_analysis([], out, Selection())
    assert open_results(out).spectra["spectral_norm"].tolist() == [42.0] * 3


def test_a_run_is_removed_and_renamed_by_its_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", {1: [1, 2, 3]})
    write_run(tmp_path / "runs/b", {1: [1, 2, 4]})
    out = tmp_path / "results"
    run_analysis([tmp_path / "runs"], out, Selection())
    (out / "singular_values/run=a").rename(out / "singular_values/run=other")
    run_analysis([], out, Selection())
    assert sorted(set(open_results(out).spectra["run"])) == ["b", "other"]
    assert sorted(set(open_results(out).checkpoints["run"])) == ["b", "other"]


def test_a_damaged_file_costs_its_rows_and_not_the_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3], 2: [1, 2, 4], 3: [1, 2, 5]})
    file = run / "step_2/model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    analysis = run_analysis([run], tmp_path / "results", Selection())
    assert [checkpoint.name for checkpoint in analysis.refused] == ["step_2"]
    assert "truncated" in analysis.refused[0].refused
    results = open_results(tmp_path / "results")
    assert set(results.spectra["step"]) == {1, 3}
    ledger = results.checkpoints.set_index("step")
    assert ledger.loc[2, "status"] == "refused"
    assert "truncated" in ledger.loc[2, "problems"][0]
    file.unlink()
    file.parent.rmdir()
    write_run(tmp_path / "again", {2: [1, 2, 4]})
    (tmp_path / "again/step_2").rename(run / "step_2")
    run_analysis([run], tmp_path / "results", Selection())
    assert set(open_results(tmp_path / "results").checkpoints["status"]) == {"done"}


def test_a_checkpoint_that_changes_while_it_is_read_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3]})
    marks = iter("abcdef")
    monkeypatch.setattr("spectrograd.pipeline.record.fingerprint", lambda *_: next(marks))
    analysis = run_analysis([run], tmp_path / "results", Selection())
    assert "changed while it was read" in analysis.refused[0].refused
    assert not list((tmp_path / "results").glob("singular_values/**/*.parquet"))


def test_nan_and_inf_cost_the_matrix_its_numbers(tmp_path: Path) -> None:
    weights = {f"transformer.h.{i}.mlp.c_fc.weight": diagonal(i + 1) for i in range(6)}
    weights["transformer.h.4.mlp.c_fc.weight"][0, 0] = float("nan")
    weights["transformer.h.1.mlp.c_fc.weight"][2, 3] = float("inf")
    (tmp_path / "r/step_1").mkdir(parents=True)
    save_file(weights, tmp_path / "r/step_1/model.safetensors")
    results = spectrograd.analyze(tmp_path / "r", tmp_path / "results")
    spectra = results.spectra.set_index("layer")
    assert spectra.loc[4, "note"] == "1 NaN"
    assert spectra.loc[1, "note"] == "1 inf"
    assert spectra["stable_rank"].isna().tolist() == [False, True, False, False, True, False]
    assert results.singular_values("r")["singular_values"].map(len).tolist() == [16, 0, 16, 16, 0, 16]
    assert results.gradients.query("metric == 'stable_rank'")["gradient"].isna().all()


def test_a_file_that_is_overwritten_adds_its_steps(tmp_path: Path) -> None:
    for step in (1000, 2000):
        write_torch(tmp_path / "run/ckpt.pt", {"model": layers([1, 2, step / 1000]), "iter_num": step})
        run_analysis([tmp_path / "run"], tmp_path / "results", Selection())
    results = open_results(tmp_path / "results")
    assert results.checkpoints["checkpoint"].tolist() == ["ckpt.pt@1000", "ckpt.pt@2000"]
    assert results.gradients.query("metric == 'stable_rank' and group == 'all'")["gradient"].tolist() == [0, 1]
    write_torch(tmp_path / "run/ckpt.pt", {"model": layers([1, 2, 5]), "iter_num": 2000})
    run_analysis([tmp_path / "run"], tmp_path / "results", Selection())
    assert open_results(tmp_path / "results").gradients.query("metric == 'stable_rank' and group == 'all'")["gradient"].tolist() == [0, 4]


def test_a_step_that_comes_again_is_one_point_as_in_a_fresh_analysis(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "results"
    for step in (100, 200):
        write_torch(run / f"step_{step}.pt", {"model": layers([1, 2, 3]), "step": step})
    run_analysis([run], out, Selection())
    write_torch(run / "step_250.pt", {"model": layers([1, 2, 4]), "step": 200})
    write_torch(run / "last.pt", {"model": layers([1, 2, 4]), "step": 100})
    for _ in range(2):
        found = run_analysis([run], out, Selection()).findings
        assert open_results(out).spectra["checkpoint"].unique().tolist() == ["step_100.pt", "step_200.pt"]
    assert found.problems == (("run", "step_200.pt", "the same weights as step_100.pt"),)
    run_analysis([run], tmp_path / "fresh", Selection())
    assert_same_tables(out, tmp_path / "fresh")


def test_the_left_out_one_of_two_recordings_for_a_step_is_a_problem(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "results"
    write_torch(run / "other.pt", {"model": layers([1, 2, 3]), "step": 200})
    run_analysis([run], out, Selection())
    write_torch(run / "step_200.pt", {"model": layers([1, 2, 4]), "step": 200})
    (run / "other.pt").unlink()
    findings = run_analysis([run], out, Selection()).findings
    assert findings.problems == (("run", "step_200.pt", "other.pt@200 is of the same step and was left out"),)
    assert open_results(out).checkpoints["checkpoint"].tolist() == ["step_200.pt"]


def test_a_checkpoint_of_another_depth_costs_its_own_gradient(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: [1, 2, 3], 1: [1, 2, 4], 2: [1, 2, 3, 4, 5, 6]})
    analysis = run_analysis([run], tmp_path / "results", Selection())
    assert analysis.recorded[2].problems == ("unlike most checkpoints of this run: 3 matrices more (transformer.h.3.mlp.c_fc.weight)",)
    curve = open_results(tmp_path / "results").gradients.query("metric == 'stable_rank' and group == 'all'")
    assert curve["gradient"].tolist()[:2] == [2, 3]
    assert np.isnan(curve["gradient"].iloc[2])
    assert curve["note"].tolist() == ["", "", "6 layers, most checkpoints of this run have 3"]


@pytest.mark.parametrize(("spec", "steps"), [("0:4:2", {2, 4}), ("1,3", {1, 3}), ("log:2", {1, 4})])
def test_steps_select(tmp_path: Path, spec: str, steps: set[int]) -> None:
    run = write_run(tmp_path / "r", {step: [1, 2, 3] for step in (1, 2, 3, 4)})
    analysis = run_analysis([run], tmp_path / "results", Selection(steps=spec))
    assert {checkpoint.step for checkpoint in analysis.recorded} == steps


def test_include_and_exclude_select_tensors(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {1: [1, 2, 3]})
    analysis = run_analysis([run], tmp_path / "results", Selection(include=("*.h.[01].*",), exclude=("*.h.0.*",)))
    assert [ref.layer for ref in analysis.recorded[0].matrices] == [1]


def test_shards_share_one_results_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", {step: [1, 2, step] for step in range(1, 6)})
    for part in (1, 2):
        run_analysis([run], tmp_path / "shared", Selection(shard=(part, 2)))
    run_analysis([run], tmp_path / "whole", Selection())
    assert_same_tables(tmp_path / "shared", tmp_path / "whole")


def test_an_interrupt_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "r", {step: [1, 2, step] for step in range(1, 6)})

    class Interrupting:
        def start(self, *_: object) -> None: ...

        def advance(self) -> None: ...

        def tell(self, text: str) -> None: ...

        def finish(self, checkpoint: object) -> None:
            raise KeyboardInterrupt

    out = tmp_path / "results"
    with pytest.raises(KeyboardInterrupt):
        run_analysis([run], out, Selection(), progress=Interrupting())
    assert set(open_results(out).spectra["step"]) == {1}
    again = run_analysis([run], out, Selection())
    assert (len(again.recorded), len(again.current)) == (4, 1)
    run_analysis([run], tmp_path / "whole", Selection())
    assert_same_tables(out, tmp_path / "whole")


def test_nothing_to_analyse_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="no such file or folder"):
        spectrograd.analyze(tmp_path / "none", tmp_path / "results")
    with pytest.raises(CheckpointError, match=r"no \.safetensors.* file with weights.*; give a checkpoint"):
        spectrograd.analyze(tmp_path / "empty", tmp_path / "results")
    run = write_run(tmp_path / "r", {1: [1, 2, 3]})
    with pytest.raises(CheckpointError, match=r"--steps 7,8 leaves none of the steps 1"):
        run_analysis([run], tmp_path / "results", Selection(steps="7,8"))


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    run = write_run(tmp_path / "r", {1: [1, 2, 3]})
    with pytest.raises(SpectrumError, match="sees no GPU; use --device cpu"):
        spectrograd.analyze(run, tmp_path / "results", device="cuda")


def test_the_torch_way_gives_the_same_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    (tmp_path / "r/step_1").mkdir(parents=True)
    shapes = {"q": (32, 32), "k": (32, 32), "v": (16, 32)}
    weights = {
        f"transformer.h.{i}.attn.c_{name}.weight": torch.tensor(rng.standard_normal(shape))
        for i in range(3)
        for name, shape in shapes.items()
    }
    save_file(weights, tmp_path / "r/step_1/model.safetensors")
    one = spectrograd.analyze(tmp_path / "r", tmp_path / "one", device="cpu").spectra
    monkeypatch.setattr("spectrograd.pipeline.record.GPU_BATCH", 5000)
    monkeypatch.setattr("spectrograd.pipeline.choose_device", lambda _: "meta-cpu")
    import spectrograd.spectra as spectra

    gram = spectra._from_gram_torch
    monkeypatch.setattr("spectrograd.spectra._from_gram_torch", lambda work, device: gram(work, "cpu"))
    other = spectrograd.analyze(tmp_path / "r", tmp_path / "other").spectra
    pd.testing.assert_frame_equal(one, other, rtol=1e-9)


def test_measure_takes_any_matrix() -> None:
    weight = torch.eye(64, dtype=torch.bfloat16, requires_grad=True)
    for matrix in (weight, np.eye(64), np.eye(64, dtype=int), np.eye(64).tolist()):
        measured = spectrograd.measure(matrix)
        assert measured["stable_rank"] == 64
        assert np.isnan(measured["alpha_tail"])
    with pytest.raises(SpectrumError, match=r"shape \(2, 3, 4\)"):
        spectrograd.measure(np.zeros((2, 3, 4)))
    for matrix in (1j * np.eye(3), torch.eye(3, dtype=torch.complex64), [["a"]], [[1, 2], [3]]):
        with pytest.raises(SpectrumError, match="give a matrix of real numbers"):
            spectrograd.measure(matrix)


def test_public_names_load() -> None:
    for name in spectrograd.__all__:
        assert getattr(spectrograd, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = spectrograd.nothing
