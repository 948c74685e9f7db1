"""Fused cuts against the views that attention code takes, on index ramps."""

from typing import Any

import numpy as np
import pytest

from spectrograd.naming import splits
from spectrograd.naming.splits import Cut, Heads


def _taken(cut: Cut, part: str) -> list[int]:
    ranges = next(rows for letter, _, rows in cut.parts if letter == part)
    return [row for start, stop in ranges for row in range(start, stop)]


def _groups(heads: int, kv_heads: int, head_dim: int) -> dict[str, list[int]]:
    """View the rows as Megatron and NeoX do, [KV, H/KV + 2, hd], and take q, k, v."""
    per_group = heads // kv_heads
    ramp = np.arange((heads + 2 * kv_heads) * head_dim).reshape(kv_heads, per_group + 2, head_dim)
    return {
        "q": ramp[:, :per_group].ravel().tolist(),
        "k": ramp[:, per_group].ravel().tolist(),
        "v": ramp[:, per_group + 1].ravel().tolist(),
    }


def _cut(tail: str, rows: int, width: int | None, config: dict[str, Any] | None = None, cols: int = 24, **flags: int) -> Cut:
    config = config or {}
    return splits.cut_qkv(tail, rows, cols, width, config, splits.find_heads(config, **flags))


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 4, 6), (6, 2, 5), (8, 1, 3), (1, 1, 7)])
@pytest.mark.parametrize("known", ["heads", "kv_heads", "both", "both without o", "head_dim"])
def test_grouped(heads: int, kv_heads: int, head_dim: int, known: str) -> None:
    flags = {"heads": heads, "kv_heads": kv_heads}
    flags = flags if known.startswith("both") else {known: flags[known]} if known in flags else {}
    config = {"kv_channels": head_dim} if known == "head_dim" else {}
    width = None if known == "both without o" else heads * head_dim
    cut = _cut("self_attention.linear_qkv", (heads + 2 * kv_heads) * head_dim, width, config, **flags)
    for part, rows in _groups(heads, kv_heads, head_dim).items():
        assert _taken(cut, part) == rows


def test_neox_as_its_code_reads_it() -> None:
    # qkv.view(batch, seq, H, 3 * hd).chunk(3, dim=-1)
    heads, head_dim = 4, 6
    q, k, v = np.split(np.arange(3 * heads * head_dim).reshape(heads, 3 * head_dim), 3, axis=-1)
    cut = _cut("attention.query_key_value", 72, 24, {"model_type": "gpt_neox", "num_attention_heads": heads})
    assert [_taken(cut, part) for part in "qkv"] == [q.ravel().tolist(), k.ravel().tolist(), v.ravel().tolist()]


def test_codegen_as_its_code_reads_it() -> None:
    # qkv.reshape(..., 4, 3 * d / 4), then split into query, value, key
    q, v, k = np.split(np.arange(72).reshape(4, 18), 3, axis=-1)
    cut = _cut("attn.qkv_proj", 72, 24, {"model_type": "codegen", "n_head": 4})
    assert [_taken(cut, part) for part in "qkv"] == [q.ravel().tolist(), k.ravel().tolist(), v.ravel().tolist()]


@pytest.mark.parametrize(("tail", "width", "kv"), [("attn.c_attn", 24, 24), ("self_attn.qkv_proj", 32, 8), ("attn.Wqkv", 24, 4)])
def test_contiguous_needs_only_the_output_projection(tail: str, width: int, kv: int) -> None:
    cut = _cut(tail, width + 2 * kv, width)
    assert [(letter, role, rows) for letter, role, rows in cut.parts] == [
        ("q", "q", ((0, width),)),
        ("k", "k", ((width, width + kv),)),
        ("v", "v", ((width + kv, width + 2 * kv),)),
    ]


@pytest.mark.parametrize(
    ("tail", "rows", "config", "first"),
    [
        ("attn.c_attn", 72, {"model_type": "gpt_bigcode", "multi_query": False, "n_head": 4}, (0, 6)),
        ("attn.c_attn", 36, {"model_type": "gpt_bigcode", "multi_query": True, "n_head": 4}, (0, 24)),
        ("self_attention.query_key_value", 36, {"model_type": "falcon", "multi_query": True, "n_head": 4, "num_kv_heads": 4}, (0, 24)),
        ("self_attention.query_key_value", 72, {"model_type": "falcon", "multi_query": False, "n_head": 4, "num_kv_heads": 4}, (0, 6)),
        (
            "self_attention.query_key_value",
            48,
            {"model_type": "falcon", "new_decoder_architecture": True, "multi_query": True, "n_head": 4, "num_kv_heads": 2},
            (0, 12),
        ),
        ("self_attention.query_key_value", 48, {"model_type": "chatglm", "multi_query_group_num": 2, "num_attention_heads": 4}, (0, 24)),
        ("attention.query_key_value", 48, {"num-attention-heads": 4, "num-kv-heads": 2}, (0, 24)),
        ("attn.attn", 48, {"n_head": 4, "n_query_groups": 2}, (0, 12)),
    ],
)
def test_the_configuration_chooses_the_way(tail: str, rows: int, config: dict[str, Any], first: tuple[int, int]) -> None:
    assert _cut(tail, rows, 24, config).parts[0][2][0] == first


def test_nothing_is_guessed() -> None:
    assert _cut("attention.query_key_value", 72, 24) == Cut(note=splits.UNKNOWN_HEADS)
    assert _cut("attn.c_attn", 72, None) == Cut(note=splits.UNKNOWN_HEADS)
    assert _cut("attention.query_key_value", 72, 24, {"n_head": 5}).note.startswith("cannot cut q, k, v: 5 heads do not fit 72 rows")
    assert "do not hold" in _cut("attn.c_attn", 25, 24).note
    assert _cut("self_attention.linear_qkv", 48, 24, {"num_attention_heads": 4, "num_query_groups": 4}).parts == ()


def test_flags_go_before_the_configuration() -> None:
    config = {"num_attention_heads": 2, "head_dim": 12}
    assert _taken(_cut("attention.query_key_value", 72, 24, config, heads=4), "q") == _groups(4, 4, 6)["q"]


def test_heads_in_parts_of_a_configuration() -> None:
    assert splits.find_heads({"text_config": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}}) == Heads(8, 2, 16)
    assert splits.find_heads({"n_heads": 8, "attn_config": {"kv_n_heads": 2}}) == Heads(8, 2)
    assert splits.find_heads({"model_args": {"n_head": 6}}) == Heads(6)
    assert splits.find_heads({"n_head": True, "model_config": {"n_head": 6, "n_kv_head": 3}}) == Heads(6, 3)
    assert splits.find_heads({"num_heads": 4, "head_dim": 64, "qk_rope_head_dim": 64}) == Heads(4)


def test_halves() -> None:
    assert splits.cut_gate_up("mlp.gate_up_proj", 8, {}).parts == (("gate", "mlp_gate", ((0, 4),)), ("up", "mlp_up", ((4, 8),)))
    assert splits.cut_gate_up("ff_proj", 8, {}).parts == (("up", "mlp_up", ((0, 4),)), ("gate", "mlp_gate", ((4, 8),)))
    assert splits.cut_gate_up("mlp.gate_up_proj", 8, {"model_type": "gpt_oss"}).note == "cannot cut gate, up: their rows are interleaved"
    assert splits.cut_gate_up("mlp.fc", 8, {}).note == "cannot cut gate, up: their order is unknown"
    assert splits.cut_kv("kv_proj", 8).parts == (("k", "k", ((0, 4),)), ("v", "v", ((4, 8),)))
    assert splits.cut_kv("wkv", 8).parts == ()
    assert splits.cut_qkvo(16, 4).parts[3] == ("o", "o", ((12, 16),))
    assert splits.cut_qkvo(15, 4).parts == ()
