"""Small checkpoints with known answers, and tables compared."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

TABLES = ("spectra", "gradients", "history", "checkpoints")


def diagonal(stable_rank: float, n: int = 16) -> torch.Tensor:
    """A diagonal n×n matrix of exactly this stable rank."""
    whole = int(stable_rank)
    values = np.zeros(n)
    values[:whole] = 1
    if stable_rank > whole:
        values[whole] = np.sqrt(stable_rank - whole)
    return torch.tensor(np.diag(values), dtype=torch.float32)


def layers(stable_ranks: Iterable[float], name: str = "transformer.h.{}.mlp.c_fc.weight") -> dict[str, torch.Tensor]:
    """Block i: an MLP matrix of the stable rank stable_ranks[i]."""
    return {name.format(i): diagonal(rank) for i, rank in enumerate(stable_ranks)}


def write_safetensors(path: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    """Write a safetensors file and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path, metadata)
    return path


def write_torch(path: Path, content: object, **options: object) -> Path:
    """Write whatever torch.save takes, and the folders that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path, **options)
    return path


def write_run(path: Path, series: dict[int, list[float]]) -> Path:
    """Write a run of `step_N/model.safetensors`, each layer an MLP matrix of the stable rank given."""
    for step, ranks in series.items():
        folder = path / f"step_{step}"
        folder.mkdir(parents=True)
        save_file({f"transformer.h.{i}.mlp.c_fc.weight": diagonal(rank) for i, rank in enumerate(ranks)}, folder / "model.safetensors")
    return path


def read_tables(path: Path) -> dict[str, pd.DataFrame]:
    return {name: pq.read_table(path / f"{name}.parquet").to_pandas() for name in TABLES}


def assert_same_tables(one: Path, other: Path) -> None:
    for name in TABLES:
        a, b = (pq.read_table(path / f"{name}.parquet").replace_schema_metadata(None) for path in (one, other))
        assert a.equals(b) or a.to_pandas().equals(b.to_pandas()), name
