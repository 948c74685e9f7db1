"""Parameter names and shapes → analysable matrices: stack, layer, expert, role, orientation, and how to cut them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spectrograd.naming import shapes, splits, tables
from spectrograd.naming.drafts import Draft, collect
from spectrograd.naming.roles import label_stack
from spectrograd.records import Entry, MatrixRef, Skipped
from spectrograd.steps import natural_key

__all__ = ["Naming", "name_matrices"]

_Block = tuple[str, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Naming:
    """What the tensors of a checkpoint are.

    `matrices` come in order of stack, depth and name; `depth` (number of blocks) and `width` (of the residual stream) are
    those of the largest stack; `num_params` counts floating parameters, tied ones once, without buffers.
    """

    matrices: tuple[MatrixRef, ...]
    skipped: tuple[Skipped, ...]
    depth: int | None
    width: int | None
    num_params: int
    problems: tuple[str, ...]


def name_matrices(
    entries: Mapping[Path, Sequence[Entry]], config: Mapping[str, Any], heads: int | None = None, kv_heads: int | None = None
) -> Naming:
    """Return the matrices of a checkpoint, and a reason for each tensor that is none.

    Parameters
    ----------
    entries
        The tensors of each file, as its header lists them.
    config
        The model's configuration where there is one (`config.json`, `model_args`, `model_config`), flat or in parts.
    heads, kv_heads
        Numbers of heads that go before those of the configuration; fused q, k, v are cut by them.
    """
    found = collect(entries)
    stacks: dict[str, list[Draft]] = defaultdict(list)
    outside = [draft for draft in found.drafts if draft.info.layer is None]
    for draft in found.drafts:
        if draft.info.layer is not None:
            stacks[draft.info.stack_text].append(draft)
    main = max(stacks, key=lambda text: sum(draft.shape[0] * draft.shape[1] for draft in stacks[text]), default=None)
    width = None
    for text, drafts in stacks.items():
        part = _stack_config(config, text)
        found_width = shapes.find_width(drafts, part)
        shapes.orient_stack(drafts, found_width)
        shapes.arbitrate(drafts, found_width)
        width = found_width if text == main else width
    width = width or splits.lookup(config, tables.WIDTHS)
    shapes.orient_outside(outside, width)
    _place(stacks)
    flags = splits.Heads(heads, kv_heads)
    drafts = sorted(found.drafts, key=_order)
    blocks = _group_blocks(drafts)
    matrices = tuple(matrix for draft in drafts for matrix in _cut(draft, blocks, config, flags))
    uncut = Counter(matrix.note for matrix in matrices if matrix.note.startswith("cannot cut"))
    return Naming(
        matrices=matrices,
        skipped=tuple(found.skipped),
        depth=None if main is None else len({draft.info.layer for draft in stacks[main]}),
        width=width,
        num_params=found.num_params,
        problems=(*found.problems, *(f"{count} {'matrix' if count == 1 else 'matrices'}: {note}" for note, count in uncut.items())),
    )


def _stack_config(config: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """Return the part of a configuration that speaks of a stack: the whole, but for vision and audio."""
    label = label_stack(text)
    if label not in tables.OWN_STACKS:
        return config
    part = config.get(f"{label}_config", {} if "text_config" in config else config)
    return part if isinstance(part, Mapping) else {}


def _place(stacks: Mapping[str, Sequence[Draft]]) -> None:
    """Set each draft's stack, None where the model has one, and its layer, from 0 in order of depth within the stack."""
    cross = any(draft.info.cross for drafts in stacks.values() for draft in drafts)
    labels = {text: label_stack(text) for text in stacks}
    if len(stacks) == 1 and not cross:
        labels = {text: label if label in tables.OWN_STACKS else None for text, label in labels.items()}
    taken = list(labels.values())
    for text, drafts in stacks.items():
        label = labels[text] if taken.count(labels[text]) == 1 else text or None
        for is_cross in (False, True):
            members = [draft for draft in drafts if draft.info.cross is is_cross]
            order = sorted({draft.info.layer for draft in members if draft.info.layer is not None})
            for draft in members:
                draft.stack = f"{label or 'decoder'}.cross" if is_cross else label
                draft.layer = order.index(draft.info.layer) if draft.info.layer is not None else None


def _order(draft: Draft) -> tuple[Any, ...]:
    """Return the place of a draft: embeddings, then each stack by depth, then what comes after the blocks."""
    group = 1 if draft.layer is not None else 0 if draft.role in ("embed", "pos") else 2
    return group, draft.stack or "", draft.layer or 0, natural_key(draft.info.name)


def _block_of(draft: Draft) -> _Block:
    return draft.info.stack_text, draft.info.layer, draft.info.expert


def _group_blocks(drafts: Iterable[Draft]) -> dict[_Block, list[Draft]]:
    blocks: dict[_Block, list[Draft]] = defaultdict(list)
    for draft in drafts:
        blocks[_block_of(draft)].append(draft)
    return blocks


def _input_size(draft: Draft, role: str, block: Iterable[Draft]) -> int | None:
    """Return the columns of the matrix of a role that follows on this one: of the same module, else the only one that there is."""
    others = [o for o in block if o.role == role and o.info.cross is draft.info.cross]
    near = {other.shape[1] for other in others if other.info.module == draft.info.module}
    sizes = near or {other.shape[1] for other in others}
    return sizes.pop() if len(sizes) == 1 else None


def _cut(draft: Draft, blocks: Mapping[_Block, Sequence[Draft]], config: Mapping[str, Any], flags: splits.Heads) -> Iterator[MatrixRef]:
    block = blocks[_block_of(draft)]
    role, (rows, cols) = draft.role, draft.shape
    cut = splits.Cut()
    if role == "qkv":
        part = _stack_config(config, draft.info.stack_text)
        known = splits.find_heads(part, flags.heads, flags.kv_heads)
        cut = splits.cut_qkv(draft.info.tail, rows, cols, _input_size(draft, "o", block), part, known)
    elif role == "kv":
        cut = splits.cut_kv(draft.info.tail, rows)
    elif role == "qkvo":
        cut = splits.cut_qkvo(rows, cols)
    elif role in ("mlp_up", "mlp_gate_up"):
        role, cut = _cut_mlp(draft, block, config)
    whole = MatrixRef(
        tensor=draft.info.name,
        entry=draft.entry,
        path=draft.path,
        role=role,
        stack=draft.stack,
        layer=draft.layer,
        expert=draft.info.expert,
        transposed=draft.transposed,
        note=cut.note,
    )
    if not cut.parts:
        yield whole
    for letter, part_role, ranges in cut.parts:
        yield replace(whole, tensor=f"{whole.tensor}[{letter}]", role=part_role, rows=ranges)


def _cut_mlp(draft: Draft, block: Sequence[Draft], config: Mapping[str, Any]) -> tuple[str, splits.Cut]:
    """Return role and cut of an up-projection: it holds gate and up where it has twice the rows that the down-projection takes in."""
    inner, rows = _input_size(draft, "mlp_down", block), draft.shape[0]
    if inner is None:
        unknown = "cannot cut gate, up: no mlp_down to compare with"
        return draft.role, splits.Cut(note=unknown if draft.role == "mlp_gate_up" else "")
    has_gate = any(other.role == "mlp_gate" for other in block)
    if rows == 2 * inner and not has_gate:
        return "mlp_gate_up", splits.cut_gate_up(draft.info.tail, rows, config)
    if rows == inner:
        return "mlp_up", splits.Cut()
    return draft.role, splits.Cut(note=f"{rows} rows do not fit the {inner} columns of mlp_down" if draft.role == "mlp_gate_up" else "")
