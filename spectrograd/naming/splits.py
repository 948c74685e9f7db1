"""How fused matrices are cut into row ranges: q, k, v in three ways, gate and up in halves. Never by guess.

H heads, KV key/value heads, hd their size; A = H·hd, the input size of the output projection.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spectrograd.naming import tables

Rows = tuple[tuple[int, int], ...]

UNKNOWN_HEADS = "cannot cut q, k, v: head count unknown; give --heads (and --kv-heads)"


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of a fused matrix: letter in the name, role, rows. Without parts the note says why."""

    parts: tuple[tuple[str, str, Rows], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Heads:
    """What configuration and flags say of a stack's attention; None where they say nothing."""

    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None


def lookup(config: Mapping[str, Any], keys: Iterable[str]) -> int | None:
    """Return the first of the keys that holds a positive integer, at the top of a configuration or in its known parts."""
    keys = tuple(keys)
    for part in (config, *(config.get(name) for name in tables.CONFIG_PARTS)):
        if isinstance(part, Mapping):
            for key in keys:
                value = part.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
            if part is not config and isinstance(part.get("attn_config"), Mapping) and (value := lookup(part["attn_config"], keys)):
                return value
    return None


def find_heads(config: Mapping[str, Any], heads: int | None = None, kv_heads: int | None = None) -> Heads:
    """Return the heads of a configuration; `heads` and `kv_heads` are the user's and go first."""
    head_dim = None if lookup(config, ["qk_rope_head_dim"]) else lookup(config, tables.HEAD_DIMS)
    if heads is not None:
        head_dim = None
    kv_stated = lookup(config, tables.KV_HEADS)
    if _model_type(config) == "falcon" and not _flag(config, "new_decoder_architecture"):
        kv_stated = None  # its old configurations state num_kv_heads = H, whatever the model has
    return Heads(heads or lookup(config, tables.HEADS), kv_heads or kv_stated, head_dim)


def cut_qkv(tail: str, rows: int, cols: int, attention_width: int | None, config: Mapping[str, Any], heads: Heads) -> Cut:
    """Return the rows of q, k and v in a fused matrix.

    Parameters
    ----------
    tail
        Name of the matrix within its block.
    rows, cols
        Shape of the [out, in] matrix.
    attention_width
        A, the input size of the output projection of the same attention; None where it is not known.
    config, heads
        The model's configuration, and what is known of its heads.
    """
    style = _find_style(tail, rows, attention_width, config, heads)
    if style == "codegen":
        return _cut_codegen(rows) if rows % 12 == 0 else Cut(note=f"cannot cut q, k, v: {rows} rows are no four blocks of three")
    if style == "contiguous":
        return _cut_contiguous(rows, cols, attention_width, heads)
    return _cut_grouped(rows, attention_width, heads)


def cut_kv(tail: str, rows: int) -> Cut:
    """Return the rows of k and v: halves in the names where that is known."""
    if rows % 2 or not tail.endswith(("kv_proj", "c_attn")):
        return Cut(note="cannot cut k, v: their order is unknown")
    return Cut((("k", "k", ((0, rows // 2),)), ("v", "v", ((rows // 2, rows),))))


def cut_qkvo(rows: int, cols: int) -> Cut:
    """Return the rows of q, k, v and o in modded-nanogpt's bank [4·width, width]."""
    if rows != 4 * cols:
        return Cut(note="cannot cut q, k, v, o: the rows are not four times the columns")
    return Cut(tuple((role, role, ((i * cols, (i + 1) * cols),)) for i, role in enumerate("qkvo")))


def cut_gate_up(tail: str, rows: int, config: Mapping[str, Any]) -> Cut:
    """Return the halves of a matrix that is known to hold gate and up."""
    order = next((order for order, pattern in tables.HALVES if pattern.search(tail)), None)
    if _model_type(config) == "gpt_oss":
        return Cut(note="cannot cut gate, up: their rows are interleaved")
    if order is None:
        return Cut(note="cannot cut gate, up: their order is unknown")
    half = rows // 2
    return Cut(tuple((part, f"mlp_{part}", ((i * half, (i + 1) * half),)) for i, part in enumerate(order)))


def _find_style(tail: str, rows: int, width: int | None, config: Mapping[str, Any], heads: Heads) -> str:
    model = _model_type(config)
    if model == "codegen":
        return "codegen"
    if model.startswith("minimax") or (model == "gpt_bigcode" and config.get("multi_query") is False):
        return "grouped"
    if model.startswith("chatglm") or (
        model == "falcon" and _flag(config, "multi_query") and not _flag(config, "new_decoder_architecture")
    ):
        return "contiguous"
    if not model and tables.NEOX_LIBRARY.search(tail):
        fewer = heads.heads is not None and heads.kv_heads is not None and heads.kv_heads < heads.heads
        return "contiguous" if fewer or (width is not None and rows != 3 * width) else "grouped"
    return "grouped" if tables.GROUPED.search(tail) else "contiguous"


def _cut_contiguous(rows: int, cols: int, width: int | None, heads: Heads) -> Cut:
    if width is None and heads.heads is not None:
        width = heads.heads * heads.head_dim if heads.head_dim else cols
    if width is None:
        return Cut(note=UNKNOWN_HEADS)
    rest = rows - width
    if rest <= 0 or rest % 2 or rest > 2 * width:
        return Cut(note=f"cannot cut q, k, v: {rows} rows do not hold {width} of q and two equal parts")
    half = width + rest // 2
    return Cut((("q", "q", ((0, width),)), ("k", "k", ((width, half),)), ("v", "v", ((half, rows),))))


def _cut_grouped(rows: int, width: int | None, known: Heads) -> Cut:
    sizes = _solve_groups(rows, width, known)
    if sizes is None:
        return Cut(note=UNKNOWN_HEADS)
    heads, kv_heads, head_dim = sizes
    fits = min(sizes) > 0 and (heads + 2 * kv_heads) * head_dim == rows and heads % kv_heads == 0
    agrees = width in (None, heads * head_dim) and known.heads in (None, heads) and known.kv_heads in (None, kv_heads)
    if not (fits and agrees):
        return Cut(note=f"cannot cut q, k, v: {known.heads or '?'} heads do not fit {rows} rows; give --heads (and --kv-heads)")
    group, queries = (heads // kv_heads + 2) * head_dim, heads // kv_heads * head_dim
    starts = range(0, rows, group)
    return Cut(
        (
            ("q", "q", tuple((start, start + queries) for start in starts)),
            ("k", "k", tuple((start + queries, start + queries + head_dim) for start in starts)),
            ("v", "v", tuple((start + queries + head_dim, start + group) for start in starts)),
        )
    )


def _solve_groups(rows: int, width: int | None, known: Heads) -> tuple[int, int, int] | None:
    """Return H, KV and hd from rows = (H + 2·KV)·hd, width = H·hd and what is known; None where that is too little."""
    heads, kv_heads, head_dim = known.heads, known.kv_heads, known.head_dim
    if width is not None:
        if heads is not None:
            head_dim = width // heads
        elif head_dim is None and kv_heads is not None:
            head_dim = (rows - width) // (2 * kv_heads)
        if not head_dim:
            return None
        return width // head_dim, (rows - width) // (2 * head_dim), head_dim
    if heads is not None and head_dim is not None and kv_heads is None:
        return heads, (rows // head_dim - heads) // 2, head_dim
    if heads is not None:
        kv_heads = kv_heads or heads
        return heads, kv_heads, rows // (heads + 2 * kv_heads)
    if kv_heads is not None and head_dim is not None:
        return rows // head_dim - 2 * kv_heads, kv_heads, head_dim
    return None


def _cut_codegen(rows: int) -> Cut:
    """Return the parts of CodeGen's four blocks, each of which holds q, v, k in this order."""
    third = rows // 12
    starts = range(0, rows, 3 * third)
    slots = {"q": 0, "k": 2, "v": 1}
    return Cut(tuple((role, role, tuple((s + slot * third, s + (slot + 1) * third) for s in starts)) for role, slot in slots.items()))


def _model_type(config: Mapping[str, Any]) -> str:
    value = config.get("model_type")
    return value.lower() if isinstance(value, str) else ""


def _flag(config: Mapping[str, Any], key: str) -> bool:
    return config.get(key) is True
