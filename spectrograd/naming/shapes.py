"""What shapes say where names do not: the model's width, [in, out] storage, and which matrix of an MLP is which."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spectrograd.naming import tables
from spectrograd.naming.drafts import Draft
from spectrograd.naming.splits import lookup

_INTO_WIDTH = ("o", "mlp_down", "ssm_out")
_FROM_WIDTH = ("q", "k", "v", "qkv", "kv", "q_a", "kv_a", "mlp_gate", "mlp_up", "mlp_gate_up", "router", "ssm_in")


def find_width(drafts: Iterable[Draft], config: Mapping[str, Any]) -> int | None:
    """Return the residual width d of a stack: the dimension that most of its matrices share."""
    shapes = [draft.entry.shape for draft in drafts if draft.is_sized and draft.info.layer is not None]
    counts = Counter(size for shape in shapes for size in set(shape))
    if not counts:
        return None
    stated = lookup(config, tables.WIDTHS)
    return max(counts, key=lambda size: (counts[size], size == stated, -size))


def orient_stack(drafts: Sequence[Draft], width: int | None) -> None:
    """Set `transposed` for the whole stack: where every matrix that can tell is stored [in, out], all are.

    GPT-2's Conv1D is stored [in, out] under the names of nanoGPT's Linear, and its square projections cannot tell.
    """
    votes = {_reads_transposed(draft, width) for draft in drafts}
    for draft in drafts:
        draft.transposed = True in votes if len(votes - {None}) == 1 else draft.is_kernel


def orient_outside(drafts: Iterable[Draft], width: int | None) -> None:
    """Set `transposed` for embeddings and heads, whose columns are the model's width; JAX kernels are [in, out]."""
    for draft in drafts:
        rows, cols = draft.entry.shape
        told = draft.role in ("embed", "unembed", "pos") and (rows == width) != (cols == width)
        draft.transposed = rows == width if told else draft.is_kernel


def arbitrate(drafts: Iterable[Draft], width: int | None) -> None:
    """Correct the roles of a stack's MLPs where the shape contradicts the name."""
    blocks: dict[tuple[int | None, int | None, str], list[Draft]] = defaultdict(list)
    for draft in drafts:
        if draft.role in ("mlp_gate", "mlp_up", "mlp_down", "router"):
            shared = draft.info.module if "shared" in draft.info.module else ""
            blocks[draft.info.layer, draft.info.expert, shared].append(draft)
    for block in blocks.values():
        _arbitrate_block(block, width)


def _reads_transposed(draft: Draft, width: int | None) -> bool | None:
    """Return whether the shape fits [in, out] alone (True) or [out, in] alone (False); None where it cannot tell."""
    rows, cols = draft.entry.shape
    if width is None or (rows == width) == (cols == width):
        return None
    if draft.role in _INTO_WIDTH:
        return cols == width
    return rows == width if draft.role in _FROM_WIDTH else None


def _is_down(draft: Draft, width: int | None) -> bool | None:
    rows, cols = draft.shape
    return None if (rows == width) == (cols == width) else rows == width


def _arbitrate_block(block: Sequence[Draft], width: int | None) -> None:
    ups = [draft for draft in block if draft.role == "mlp_up"]
    for draft in block:
        # a gate of an MLP that is named like a router (mlp.gate beside mlp.up)
        if draft.role == "router" and any(draft.shape == up.shape and draft.info.module == up.info.module for up in ups):
            draft.role = "mlp_gate"
    for draft in ups:
        # some name the last of three matrices w3
        if _is_down(draft, width) and not any(other.role == "mlp_down" and _is_down(other, width) for other in block):
            draft.role = "mlp_down"
    downs = [draft for draft in block if draft.role == "mlp_down" and _is_down(draft, width)]
    for draft in [draft for draft in block if draft.role == "mlp_down" and _is_down(draft, width) is False]:
        if downs:
            _rename_second(draft, block, downs)
        elif any(draft.shape == other.shape for other in block if other.role == "mlp_up"):
            # modded-nanogpt stores c_proj in the shape of c_fc
            draft.transposed = not draft.transposed


def _rename_second(draft: Draft, block: Sequence[Draft], downs: Sequence[Draft]) -> None:
    """Give a w2 that is no mlp_down its role: in Qwen-1 (w1, w2, c_proj) it is the gate, elsewhere (w1, w2, w3) w1 is."""
    if any(down.info.tail.endswith("c_proj") for down in downs):
        for other in block:
            if other.role == "mlp_gate":
                other.role = "mlp_up"
        draft.role = "mlp_gate"
    else:
        draft.role = "mlp_up"
