"""Train the three sample runs: small GPTs on the sources of the Python standard library.

    python sample_checkpoints/train.py            all three runs, an hour on one core
    python sample_checkpoints/train.py D8         one of them

A run is repeatable: the seed fixes the weights, the step number fixes its batch, and one thread fixes the order of
every sum. An interrupted run goes on from its last state. The files that a run keeps are described in README.md.
"""

import argparse
import hashlib
import json
import math
import os
import platform
import sysconfig
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (torch's own convention)

HERE = Path(__file__).resolve().parent
RUNS = {"D8": 8, "D12": 12, "D16": 16}  # label: number of blocks
SEED = 1337
CONTEXT, BATCH = 64, 8  # bytes a sequence, sequences a step
STEPS, WARMUP = 10_000, 200
PEAK_RATE, FINAL_RATE = 1e-3, 1e-4  # learning rate: linear warm-up, then a cosine from one to the other
KEEP = (0, 25, 50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 4000, 6000, 8000, 10_000)
LOG_EVERY, STATE_EVERY = 25, 500


# ---------------------------------------------------------------- the model: B batch, T time, C width, H heads
class Attention(nn.Module):
    """Causal self-attention with rotary positions; q, k, v and o are matrices of their own."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_q, self.c_k, self.c_v, self.c_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the attention output, (B, T, C)."""
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.c_q, self.c_k, self.c_v))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """Two matrices, four times the width between them, and a squared ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the MLP output, (B, T, C)."""
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(nn.Module):
    """A pre-norm block. The norms have no parameters."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attn, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the residual stream after this block, (B, T, C)."""
        x = x + self.attn(F.rms_norm(x, x.shape[-1:]), cos, sin)
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


class GPT(nn.Module):
    """A decoder over bytes, its parameters named as nanochat's."""

    def __init__(self, depth: int, width: int, heads: int, vocab: int = 256) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(vocab, width), "h": nn.ModuleList(Block(width, heads) for _ in range(depth))})
        self.lm_head = nn.Linear(width, vocab, bias=False)
        for name, weight in self.named_parameters():  # GPT-2: 0.02, what writes to the residual stream less by depth
            std = 0.02 / math.sqrt(2 * depth) if name.endswith("c_proj.weight") else 0.02
            nn.init.normal_(weight, std=std)
        angle = torch.outer(torch.arange(CONTEXT), 10_000.0 ** -(torch.arange(0, width // heads, 2) / (width // heads)))
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy in nats a byte."""
        x = self.transformer["wte"](tokens)
        for block in self.transformer["h"]:
            x = block(x, self.cos, self.sin)
        logits = self.lm_head(F.rms_norm(x, x.shape[-1:]))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair of channels of x, (B, H, T, C/H), by the angle of its position."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


# ---------------------------------------------------------------- the data
def load_corpus() -> tuple[Tensor, Tensor, str]:
    """Return training bytes, validation bytes (the last twentieth) and the corpus's SHA-256.

    The corpus is every .py file of the standard library in order of its path, less tests, installed packages and
    what is generated when Python is built.
    """
    root = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
    paths = [p for p in root.rglob("*.py") if not left_out & set(p.relative_to(root).parts)]
    paths = [p for p in paths if not p.name.startswith(("_sysconfigdata", "_sysconfig_vars"))]
    text = b"\n".join(p.read_bytes() for p in sorted(paths, key=lambda p: p.relative_to(root).as_posix()))
    data = torch.from_numpy(np.frombuffer(text, dtype=np.uint8).copy())
    cut = len(data) - len(data) // 20
    return data[:cut], data[cut:], hashlib.sha256(text).hexdigest()


def take_batch(data: Tensor, stream: int, step: int, size: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, (size, CONTEXT) each; the step alone decides which, so a resumed run repeats them."""
    starts = np.random.default_rng([SEED, stream, step]).integers(0, len(data) - CONTEXT - 1, size)
    rows = torch.stack([data[s : s + CONTEXT + 1] for s in starts]).long()
    return rows[:, :-1], rows[:, 1:]


# ---------------------------------------------------------------- what is kept
def save_checkpoint(run: str, folder: Path, model: GPT, step: int, config: dict[str, object]) -> None:
    """Write the weights in bfloat16: D8 as one safetensors file, D16 as two with an index, D12 as nanochat does."""
    weights = {name: weight.detach().to(torch.bfloat16).clone() for name, weight in model.state_dict().items()}
    header = {"format": "pt", "step": str(step)}
    if run == "D12":
        torch.save(weights, folder / f"model_{step:06d}.pt")
        (folder / f"meta_{step:06d}.json").write_text(json.dumps({"step": step, "model_config": config}, indent=1) + "\n")
        return
    target = folder / f"step_{step:05d}"
    target.mkdir(exist_ok=True)
    if run == "D8":
        save_file(weights, target / "model.safetensors", metadata=header)
        return
    names, index = list(weights), {}
    for part, half in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), start=1):
        file = f"model-{part:05d}-of-00002.safetensors"
        save_file({name: weights[name] for name in half}, target / file, metadata=header)
        index |= dict.fromkeys(half, file)
    size = sum(weight.nbytes for weight in weights.values())
    document = {"metadata": {"total_size": size}, "weight_map": index}
    (target / "model.safetensors.index.json").write_text(json.dumps(document, indent=1) + "\n")


def replace(path: Path, write) -> None:
    """Let `write` fill a temporary file, then give it its name: a kill leaves the old file or the new one."""
    part = path.with_name(path.name + ".tmp")
    write(part)
    os.replace(part, path)


# ---------------------------------------------------------------- training
def learning_rate(step: int) -> float:
    """Return the learning rate of the update that follows `step` earlier ones."""
    if step < WARMUP:
        return PEAK_RATE * (step + 1) / WARMUP
    done = (step - WARMUP) / (STEPS - WARMUP)
    return FINAL_RATE + 0.5 * (PEAK_RATE - FINAL_RATE) * (1 + math.cos(math.pi * done))


def train(run: str, out: Path, stop: int, progress: Progress) -> None:
    """Train one run up to `stop` steps, from its saved state if it has one, and keep what README.md lists."""
    torch.manual_seed(SEED)
    depth = RUNS[run]
    config: dict[str, object] = {
        "n_layer": depth, "n_head": depth // 4, "n_kv_head": depth // 4, "n_embd": 4 * depth, "vocab_size": 256, "sequence_len": CONTEXT,
    }  # fmt: skip
    folder, state_path = out / run, out / f".state-{run}.pt"
    folder.mkdir(parents=True, exist_ok=True)
    training, validation, digest = load_corpus()
    model = GPT(depth, 4 * depth, depth // 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    log: list[str] = ["step,tokens,lr,loss,val_loss"]
    first, recent = 0, []
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, log, recent = state["step"], state["log"], state["recent"]
    recipe = {
        "parameters": sum(p.numel() for p in model.parameters()), "seed": SEED, "batch_size": BATCH, "steps": STEPS, "warmup": WARMUP,
        "peak_lr": PEAK_RATE, "final_lr": FINAL_RATE, "betas": [0.9, 0.95], "weight_decay": 0.1, "clip": 1.0,
        "corpus": f"Python {platform.python_version()} standard library", "corpus_bytes": len(training) + len(validation),
        "corpus_sha256": digest, "torch": torch.__version__,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**config, "training": recipe}, indent=1) + "\n")
    task = progress.add_task(run, total=stop, completed=first, loss="")
    for step in range(first, stop + 1):
        loss = model(*take_batch(training, 0, step, BATCH))
        recent.append(loss.item())
        if step % LOG_EVERY == 0 or step in KEEP:
            value = ""
            if step in KEEP:
                save_checkpoint(run, folder, model, step, config)
                with torch.no_grad():
                    value = f"{model(*take_batch(validation, 1, 0, 256)).item():.4f}"
            log.append(f"{step},{step * BATCH * CONTEXT},{learning_rate(step):.4e},{np.mean(recent):.4f},{value}")
            progress.update(task, loss=f"loss {np.mean(recent):.3f}")
            recent = []
            replace(folder / "loss.csv", lambda part: part.write_text("\n".join(log) + "\n"))
        if step == stop:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % STATE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1, "log": log, "recent": recent}
            replace(state_path, lambda part: torch.save(state, part))  # noqa: B023 (called at once)
        progress.update(task, completed=step + 1)


def main() -> None:
    """Train the runs that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"which of {', '.join(RUNS)} (default: all)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder for the runs (default: beside this file)")
    parser.add_argument("--stop", type=int, default=STEPS, help="end early, after this many steps")
    arguments = parser.parse_args()
    if unknown := set(arguments.runs) - set(RUNS):
        parser.error(f"unknown run {', '.join(sorted(unknown))}; choose from {', '.join(RUNS)}")
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    columns = (
        TextColumn("{task.description:>4}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as progress:
        for run in arguments.runs or RUNS:
            train(run, arguments.out, arguments.stop, progress)


if __name__ == "__main__":
    main()
