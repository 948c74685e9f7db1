"""The tables that the figures' tests draw, and their golden pictures: `python tests/figures/golden.py` draws these anew."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spectrograd import figures
from spectrograd.results import GRADIENTS, Results, open_results

GOLDEN = Path(__file__).with_name("golden")
MATPLOTLIB = "3.11.2"
"""The version that drew the golden pictures; another may place a letter elsewhere."""
STEPS = (0, 20, 40, 60, 80, 100, 150, 200, 300, 400, 500, 600, 700, 800, 900, 1000)
RUNS = {"D8": (8, 115_000, 12.0), "D12": (12, 365_000, 20.0), "D16": (16, 840_000, 35.0)}


def curve(
    run: str, depth: int | None, params: int | None, metric: str, steps: Any, values: Any, half: Any, **more: Any
) -> list[dict[str, Any]]:
    """Return the rows of one curve, `half` being half the width of its interval."""
    band = max(1, (depth or 3) // 3)
    common = {"run": run, "step_kind": "step", "depth": depth, "num_params": params, "group": "all", "metric": metric, "bands": "thirds"}
    common |= {"num_early": band, "num_late": band, "note": "", "early_mean": 40.0}
    rows = []
    for step, value, width in zip(steps, np.asarray(values, float).tolist(), np.broadcast_to(half, len(steps)).tolist(), strict=True):
        numbers = {"late_mean": 40.0 + value, "gradient": value, "ci_low": value - width, "ci_high": value + width}
        rows.append({**common, "step": int(step), "checkpoint": f"step_{step}", **numbers, **more})
    return rows


def both(
    run: str = "A", steps: Any = range(10), values: Any = range(10), half: Any = 0.5, depth: Any = 6, params: Any = 1000, **more: Any
) -> list[dict[str, Any]]:
    """Return rows of both metrics."""
    shape = np.asarray(values, float) * 0.01
    return curve(run, depth, params, "stable_rank", steps, values, half, **more) + curve(
        run, depth, params, "alpha_rank", steps, shape, half, **more
    )


def study_rows() -> list[dict[str, Any]]:
    """Return three runs whose two metrics do what those of the study do; sums and quotients alone give every machine the same bits."""
    rows = []
    t = np.array(STEPS, dtype=float)
    for i, (run, (depth, num_params, start)) in enumerate(RUNS.items()):
        stable = start * (50 - t) / (50 + t) * (1 + 0.1 * i) / (1 + (t / 300) * (t / 300))
        shape = -0.1 - 0.02 * i - 0.12 / (1 + t / 60)
        rows += curve(run, depth, num_params, "stable_rank", STEPS, stable, 1 + 0.3 * start / (1 + t / 100))
        rows += curve(run, depth, num_params, "alpha_rank", STEPS, shape, 0.01 + 0.02 / (1 + t / 100))
    return rows


def write(folder: Path, rows: list[dict[str, Any]], **tables: tuple[pa.Schema, list[Mapping[str, Any]]]) -> Results:
    """Return results that hold these gradients, and other tables by name."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=GRADIENTS), folder / "gradients.parquet")
    for name, (schema, content) in tables.items():
        pq.write_table(pa.Table.from_pylist(content, schema=schema), folder / f"{name}.parquet")
    return open_results(folder)


def caption(figure: Any) -> str:
    """Return the caption of a figure as one line."""
    return next(" ".join(text.get_text().split()) for text in figure.texts if text.get_gid() == "caption")


def draw_all(table_folder: Path, out: Path) -> list[Path]:
    """Draw every figure of the study's rows as SVG and return the files."""
    out.mkdir(parents=True, exist_ok=True)
    results = write(table_folder, study_rows())
    files = []
    for figure in figures.FIGURES:
        files.append(out / f"{figure.NAME}.svg")
        figures.save(figures.draw(figure.NAME, results), files[-1])
    return files


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        print(*draw_all(Path(folder), GOLDEN), sep="\n")
