"""The nouns: frozen records that the rooms hand to each other."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

StepKind = Literal["step", "epoch", "ordinal"]

ATTENTION_ROLES = ("q", "k", "v", "o", "qkv", "kv", "qkvo", "q_a", "q_b", "kv_a", "kv_b")
MLP_ROLES = ("mlp_gate", "mlp_up", "mlp_down", "mlp_gate_up")
SSM_ROLES = ("ssm_in", "ssm_out")
ROLES = (*ATTENTION_ROLES, *MLP_ROLES, *SSM_ROLES, "router", "embed", "unembed", "pos", "other")
GROUPS: dict[str, tuple[str, ...]] = {
    **{role: (role,) for role in (*ATTENTION_ROLES, *MLP_ROLES, *SSM_ROLES, "router", "other")},
    "attn": ATTENTION_ROLES,
    "mlp": MLP_ROLES,
    "ssm": SSM_ROLES,
    "qk": ("q", "k"),
    "vo": ("v", "o"),
    "all": (*ATTENTION_ROLES, *MLP_ROLES, *SSM_ROLES),
}
"""Group of the gradients table: the roles that belong to it."""

# dtype: (unit roundoff u, smallest subnormal eta)
PRECISIONS: dict[str, tuple[float, float]] = {
    "float64": (2.0**-53, 2.0**-1074),
    "float32": (2.0**-24, 2.0**-149),
    "float16": (2.0**-11, 2.0**-24),
    "bfloat16": (2.0**-8, 2.0**-133),
    "float8_e4m3fn": (2.0**-4, 2.0**-9),
    "float8_e5m2": (2.0**-3, 2.0**-16),
}
"""Dtypes that can be analysed, with their unit roundoff and smallest subnormal."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as its file announces it; `storage` names the bytes that tied tensors share."""

    key: str
    shape: tuple[int, ...]
    dtype: str
    storage: str | None = None


@dataclass(frozen=True, slots=True)
class MatrixRef:
    """One analysable matrix: where it lies, what it is, and how it is cut from its tensor.

    `rows` lists the half-open row ranges of the [out, in] matrix that are taken (None: all), after `transposed`
    has turned a tensor that is stored [in, out].
    """

    tensor: str
    entry: Entry
    path: Path
    role: str
    stack: str | None = None
    layer: int | None = None
    expert: int | None = None
    transposed: bool = False
    rows: tuple[tuple[int, int], ...] | None = None
    note: str = ""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the [out, in] matrix."""
        m, n = self.entry.shape[::-1] if self.transposed else self.entry.shape
        return (m if self.rows is None else sum(stop - start for start, stop in self.rows)), n


@dataclass(frozen=True, slots=True)
class Skipped:
    """A tensor that gets no row, and why."""

    tensor: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """One checkpoint: its place in a run, its files, its matrices, and what is wrong with it.

    `name` is its path relative to the run's folder. `refused` is empty, or the reason why nothing of it is analysed.
    """

    run: str
    name: str
    path: Path
    files: tuple[Path, ...]
    seed: int | None = None
    stage: str | None = None
    step: int | None = None
    step_kind: StepKind | None = None
    epoch: float | None = None
    tokens: int | None = None
    format: str = ""
    layout: str = ""
    depth: int | None = None
    width: int | None = None
    num_params: int = 0
    matrices: tuple[MatrixRef, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order within a run: seed, stage, step; what has no step comes last, by name."""
        seed = -1 if self.seed is None else self.seed
        return seed, self.stage or "", self.step is None, self.step or 0, self.name


@dataclass(frozen=True, slots=True)
class Run:
    """A training run: a label, its folder, and its checkpoints in numeric order of their steps."""

    name: str
    path: Path
    checkpoints: tuple[CheckpointRef, ...]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """All singular values of one matrix, float64, descending; the shape and the dtype that it was stored in.

    `precision` is the dtype whose rounding the values carry: coarser than `dtype` where a tensor was cast up.
    """

    singular_values: NDArray[np.float64]
    rows: int
    cols: int
    dtype: str
    precision: str

    @property
    def noise_floor(self) -> float:
        """Singular values at or under this are rounding noise of the stored weights.

        2(√m + √n)·√(u²‖W‖_F²/(3mn) + η²/12), at least max(m, n)·2⁻⁵²·σ₁, with u the unit roundoff and η the smallest
        subnormal of the precision: twice the Marchenko-Pastur edge of the rounding errors.
        """
        sigma = self.singular_values
        if not len(sigma) or sigma[0] == 0:
            return 0.0
        lower = max(self.rows, self.cols) * 2.0**-52 * float(sigma[0])
        if self.precision == "float64":
            return lower
        u, eta = PRECISIONS[self.precision]
        norm = float(sigma[0]) * math.sqrt(float(np.sum((sigma / sigma[0]) ** 2)))
        per_entry = math.hypot(u * norm / math.sqrt(3 * self.rows * self.cols), eta / math.sqrt(12))
        return max(lower, 2 * (math.sqrt(self.rows) + math.sqrt(self.cols)) * per_entry)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers: what it is called, what it means, where the definition comes from.

    W → cW multiplies the value by |c|**degree; None where no such rule holds.
    """

    name: str
    label: str
    unit: str
    degree: int | None
    definition: str
    source: str


def format_precision(dtype: str, precision: str) -> str:
    """Return the note on a tensor that was cast up (`float32 holding bfloat16 values`), or an empty one."""
    return "" if dtype == precision else f"{dtype} holding {precision} values"


def parse_precision(dtype: str, note: str) -> str:
    """Return the precision that `format_precision` put into a note; the dtype itself where it put none."""
    found = re.search(rf"\b{dtype} holding (\w+) values", note)
    return found.group(1) if found else dtype


def join_notes(*notes: str) -> str:
    """Return the notes that say something, in one text."""
    return "; ".join(note for note in notes if note)


def format_count(count: float) -> str:
    """Return a number of parameters as a label has it: `115K`, `30.4M`, `1.2B`."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if round(count / size, 1) >= 1:
            return f"{count / size:.1f}".removesuffix(".0") + letter
    return f"{count / 1e3:.0f}K" if round(count / 1e3) >= 1 and count >= 1e3 else f"{count:.0f}"
