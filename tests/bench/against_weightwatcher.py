"""Time `spectrograd.analyze` against WeightWatcher's `analyze()` on the same random weights, side by side in one process.

    make bench                                                               a checkpoint of D8's size
    python tests/bench/against_weightwatcher.py --layers 12 --width 768      one of D12's size

WeightWatcher's weights are in memory before the clock starts, while spectrograd reads its checkpoint from a file (in the
page cache) and writes its tables. WeightWatcher runs with one BLAS thread and with one for each processor, whatever the
environment says, and the ratio is taken against the faster: many threads are not always the faster, and far slower where
other processes want the processors. spectrograd has a worker with one BLAS thread for each processor. Both run on the CPU
with default options, imports and a first small analysis are over before the clock starts, and they take turns. Stable ranks
and spectral norms must agree, or there is no table: then both did the same work. Processor time that other processes took
meanwhile is measured too, as such timings are worth little.
"""

import argparse
import logging
import math
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save_file
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn

import spectrograd

VOCABULARY = 10_240
STD = 0.02
SEED = 1337
BUSY = 0.05
"""Share of the processors that others may take before the timings are called doubtful."""
TOLERANCE = 1e-4
"""Largest relative difference of a stable rank or a spectral norm; float64 gives about 1e-14."""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
CPU_INFO, CPU_TIMES = Path("/proc/cpuinfo"), Path("/proc/stat")


# ---------------------------------------------------------------- the weights, once as a module and once as a file
def make_model(layers: int, width: int, vocabulary: int) -> nn.Module:
    """A model that cannot run, with nanochat's names and shapes, every weight drawn from N(0, 0.02²)."""
    blocks = nn.ModuleList(make_block(width) for _ in range(layers))
    transformer = nn.ModuleDict({"wte": nn.Embedding(vocabulary, width), "h": blocks})
    model = nn.ModuleDict({"transformer": transformer, "lm_head": nn.Linear(width, vocabulary, bias=False)})
    generator = torch.Generator().manual_seed(SEED)
    for weight in model.parameters():
        nn.init.normal_(weight, std=STD, generator=generator)
    return model


def make_block(width: int) -> nn.Module:
    attention = {name: nn.Linear(width, width, bias=False) for name in ("c_q", "c_k", "c_v", "c_proj")}
    mlp = {"c_fc": nn.Linear(width, 4 * width, bias=False), "c_proj": nn.Linear(4 * width, width, bias=False)}
    return nn.ModuleDict({"attn": nn.ModuleDict(attention), "mlp": nn.ModuleDict(mlp)})


def save_run(model: nn.Module, folder: Path) -> Path:
    """Write the model as a run of one checkpoint, float32 safetensors; return the run's folder."""
    target = folder / "bench" / "step_00000"
    target.mkdir(parents=True)
    save_file(model.state_dict(), target / "model.safetensors", metadata={"format": "pt", "step": "0"})
    return target.parent


# ---------------------------------------------------------------- the two
def analyze_ours(run: Path, results: Path) -> pd.DataFrame:
    return spectrograd.analyze(run, results, device="cpu").spectra


def analyze_theirs(model: nn.Module, threads: int) -> pd.DataFrame:
    with silence():
        import weightwatcher  # while nothing gets through, and after the GPU is hidden

    with silence(), threadpool_limits(threads):
        wrong = {library["filepath"]: library["num_threads"] for library in threadpool_info() if library["num_threads"] != threads}
        assert not wrong, f"not {threads} threads: {wrong}"
        details: pd.DataFrame = weightwatcher.WeightWatcher(model=model).analyze()
    return details


@contextmanager
def silence() -> Iterator[None]:
    """Let nothing through but exceptions: WeightWatcher warns, logs and prints, at import too."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def clock(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    value = function(*arguments)
    return time.perf_counter() - begin, value


def read_others() -> float:
    """Seconds of processor time that all other processes have had since the machine started; NaN where it is not told."""
    if not CPU_TIMES.exists():
        return math.nan
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, CPU_TIMES.read_text().split()[1:9])
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - own.user - own.system


# ---------------------------------------------------------------- what is said
def compare(ours: pd.DataFrame, theirs: pd.DataFrame) -> dict[str, float]:
    """Largest relative difference of each number that both have; WeightWatcher squares its spectral norm."""
    ours = ours.set_index("tensor")
    theirs = theirs.set_index(theirs["longname"] + ".weight")
    both = ours.index.intersection(theirs.index)
    assert len(both), f"no matrix in common: {list(ours.index[:3])}, {list(theirs.index[:3])}"
    pairs = {
        "stable rank": (ours.loc[both, "stable_rank"], theirs.loc[both, "stable_rank"].astype(float)),
        "spectral norm": (ours.loc[both, "spectral_norm"], theirs.loc[both, "spectral_norm"].astype(float) ** 0.5),
    }
    return {name: float((a / b - 1).abs().max(skipna=False)) for name, (a, b) in pairs.items()}


def describe_coverage(ours: pd.DataFrame, theirs: pd.DataFrame, model: nn.Module) -> str:
    stored = {name for name, weight in model.named_parameters() if weight.ndim == 2}
    covered = {"spectrograd": set(ours["tensor"]), "WeightWatcher": set(theirs["longname"] + ".weight")}
    if all(names == stored for names in covered.values()):
        return f"Both covered all {len(stored)} matrices."
    parts = [f"{name} covered {len(names)} of {len(stored)} matrices" for name, names in covered.items()]
    left_out = [f"{name} without {', '.join(sorted(stored - names))}" for name, names in covered.items() if stored - names]
    return "; ".join(parts + left_out) + "."


def describe_machine() -> str:
    lines = CPU_INFO.read_text().splitlines() if CPU_INFO.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in facts:  # some virtual machines call every AMD processor by the same name
        name += f" (family {facts['cpu family']}, model {facts.get('model', '?')})"
    versions = ", ".join(f"{package} {version(package)}" for package in ("numpy", "scipy", "torch", "weightwatcher"))
    return f"{CORES} cores of {name}; Python {platform.python_version()}, {versions}."


def describe_others(share: float) -> str:
    if math.isnan(share):
        return "What other processes took of the processors meanwhile is not known."
    return f"Other processes took {share:.0%} of the processors meanwhile{'' if share <= BUSY else ': **doubtful timings, run it alone**'}."


def main() -> None:
    parser = argparse.ArgumentParser(description="Time spectrograd against WeightWatcher on the same random weights.")
    parser.add_argument("--layers", type=int, default=8, help="transformer blocks (default: 8)")
    parser.add_argument("--width", type=int, default=512, help="residual width (default: 512)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each, of which the median counts (default: 3)")
    options = parser.parse_args()
    if min(options.layers, options.width, options.repeat) < 1:
        parser.error("layers, width and repeat are at least 1")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # WeightWatcher would read weights as float16 where there is a GPU

    with TemporaryDirectory() as name:
        folder = Path(name)
        small = make_model(2, 32, 64)
        analyze_ours(save_run(small, folder / "small"), folder / "small-results")
        for threads in sorted({1, CORES}):
            analyze_theirs(small, threads)

        model = make_model(options.layers, options.width, VOCABULARY)
        run = save_run(model, folder)
        our_seconds: list[float] = []
        their_seconds: dict[int, list[float]] = {threads: [] for threads in sorted({1, CORES})}
        begin, others = time.perf_counter(), read_others()
        for i in range(options.repeat):
            seconds, ours = clock(analyze_ours, run, folder / f"results-{i}")
            our_seconds.append(seconds)
            for threads, known in their_seconds.items():
                seconds, theirs = clock(analyze_theirs, model, threads)
                known.append(seconds)
        share = (read_others() - others) / (time.perf_counter() - begin) / (os.cpu_count() or 1)

    differences = compare(ours, theirs)
    agreement = ", ".join(f"{what} {difference:.0e}" for what, difference in differences.items())
    if not all(difference <= TOLERANCE for difference in differences.values()):
        sys.exit(f"spectrograd and WeightWatcher disagree, so they did not do the same work: largest relative difference: {agreement}")

    name = f"WeightWatcher {version('weightwatcher')}, from weights in memory, BLAS threads:"
    rows = [(f"spectrograd {spectrograd.__version__}, from file to tables, workers: {CORES}", len(ours), our_seconds)]
    rows += [(f"{name} {threads}", len(theirs), known) for threads, known in their_seconds.items()]
    our_median = statistics.median(our_seconds)
    print(f"| | matrices | seconds, median of {options.repeat} | each | ratio |\n|---|---|---|---|---|")
    for what, matrices, known in rows:
        median, each = statistics.median(known), ", ".join(f"{s:.2f}" for s in known)
        print(f"| {what} | {matrices} | {median:.2f} | {each} | {median / our_median:.1f} |")
    fastest = min(statistics.median(known) for known in their_seconds.values())
    num_params = sum(weight.numel() for weight in model.parameters())
    print(f"""
- WeightWatcher, with the number of threads that suits it better, takes {fastest / our_median:.1f} times as long as spectrograd.
- Weights: {options.layers} layers, width {options.width}, vocabulary {VOCABULARY:,}, {num_params / 1e6:.1f}M parameters, random float32.
- {describe_coverage(ours, theirs, model)}
- Largest relative difference: {agreement}.
- Machine: {describe_machine()}
- {describe_others(share)}""")


if __name__ == "__main__":
    main()
