from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spectrograd.naming import Naming, name_matrices
from spectrograd.naming.splits import UNKNOWN_HEADS
from spectrograd.records import Entry, MatrixRef

FILE = Path("model.safetensors")


def _name(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None, dtype: str = "float32", **flags: int) -> Naming:
    return name_matrices({FILE: [Entry(key, shape, dtype) for key, shape in shapes.items()]}, config or {}, **flags)


def _refs(naming: Naming) -> dict[str, MatrixRef]:
    assert len({ref.tensor for ref in naming.matrices}) == len(naming.matrices)
    return {ref.tensor: ref for ref in naming.matrices}


def _reasons(naming: Naming) -> dict[str, str]:
    return {skipped.tensor: skipped.reason for skipped in naming.skipped}


def _gpt2(conv1d: bool, layers: int = 2, d: int = 8) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"transformer.wte.weight": (20, d), "transformer.wpe.weight": (d, d)}
    for i in range(layers):
        block = {"attn.c_attn": (3 * d, d), "attn.c_proj": (d, d), "mlp.c_fc": (4 * d, d), "mlp.c_proj": (d, 4 * d)}
        for name, shape in block.items():
            shapes[f"transformer.h.{i}.{name}.weight"] = shape[::-1] if conv1d else shape
        shapes[f"transformer.h.{i}.ln_1.weight"] = (d,)
    return shapes


def _llama(d: int = 8, inner: int = 24, kv: int = 4, layers: int = 2) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (20, d), "lm_head.weight": (20, d)}
    for i in range(layers):
        p = f"model.layers.{i}."
        shapes |= {f"{p}self_attn.{r}_proj.weight": s for r, s in {"q": (d, d), "k": (kv, d), "v": (kv, d), "o": (d, d)}.items()}
        shapes |= {f"{p}mlp.{r}_proj.weight": s for r, s in {"gate": (inner, d), "up": (inner, d), "down": (d, inner)}.items()}
    return shapes


@pytest.mark.parametrize("conv1d", [True, False])
def test_gpt2_and_nanogpt_share_names_and_shapes_tell(conv1d: bool) -> None:
    naming = _name(_gpt2(conv1d))
    refs = _refs(naming)
    assert {ref.transposed for ref in naming.matrices if ref.layer is not None} == {conv1d}
    assert not refs["transformer.wte.weight"].transposed
    for i, part in enumerate("qkv"):
        ref = refs[f"transformer.h.1.attn.c_attn.weight[{part}]"]
        assert (ref.role, ref.layer, ref.shape, ref.rows) == (part, 1, (8, 8), ((8 * i, 8 * i + 8),))
    assert refs["transformer.h.0.mlp.c_fc.weight"].shape == (32, 8)
    assert refs["transformer.h.0.mlp.c_proj.weight"].shape == (8, 32)
    assert (naming.depth, naming.width) == (2, 8)
    assert naming.num_params == sum(a * (b[0] if b else 1) for a, *b in _gpt2(conv1d).values())
    assert {ref.stack for ref in naming.matrices} == {None}


def test_order_is_embeddings_blocks_by_depth_head() -> None:
    naming = _name(dict(reversed(_llama(layers=12).items())))
    assert (naming.matrices[0].role, naming.matrices[-1].role) == ("embed", "unembed")
    layers = [ref.layer for ref in naming.matrices if ref.layer is not None]
    assert layers == sorted(layers)
    assert naming.depth == 12


def test_llama_of_meta_and_of_transformers() -> None:
    meta = {
        "tok_embeddings.weight": (20, 8), "output.weight": (20, 8), "norm.weight": (8,), "layers.0.attention.wq.weight": (8, 8),
        "layers.0.attention.wk.weight": (4, 8), "layers.0.attention.wv.weight": (4, 8), "layers.0.attention.wo.weight": (8, 8),
        "layers.0.feed_forward.w1.weight": (24, 8), "layers.0.feed_forward.w2.weight": (8, 24), "layers.0.feed_forward.w3.weight": (24, 8),
    }  # fmt: skip
    for shapes in (meta, _llama(layers=1)):
        roles = Counter(ref.role for ref in _name(shapes).matrices)
        assert roles == Counter(["embed", "unembed", "q", "k", "v", "o", "mlp_gate", "mlp_up", "mlp_down"])


def test_neox_is_cut_by_groups_where_heads_are_known() -> None:
    shapes = {
        "gpt_neox.embed_in.weight": (20, 8), "gpt_neox.layers.0.attention.query_key_value.weight": (24, 8),
        "gpt_neox.layers.0.attention.dense.weight": (8, 8), "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": (32, 8),
        "gpt_neox.layers.0.mlp.dense_4h_to_h.weight": (8, 32), "embed_out.weight": (20, 8),
    }  # fmt: skip
    fused = "gpt_neox.layers.0.attention.query_key_value.weight"
    whole = _refs(_name(shapes))[fused]
    assert (whole.role, whole.note, whole.rows) == ("qkv", UNKNOWN_HEADS, None)
    for naming in (_name(shapes, {"model_type": "gpt_neox", "num_attention_heads": 2}), _name(shapes, heads=2)):
        refs = _refs(naming)
        assert refs[f"{fused}[q]"].rows == ((0, 4), (12, 16))
        assert refs[f"{fused}[k]"].rows == ((4, 8), (16, 20))
        assert refs[f"{fused}[v]"].rows == ((8, 12), (20, 24))


def test_a_pipelines_list_is_renumbered() -> None:
    shapes = {"sequential.0.word_embeddings.weight": (20, 8), "sequential.5.norm.weight": (8,), "sequential.6.final_linear.weight": (20, 8)}
    for i in (2, 3):
        shapes |= {f"sequential.{i}.attention.dense.weight": (8, 8), f"sequential.{i}.mlp.linear2.weight": (8, 32)}
    refs = _refs(_name(shapes))
    assert [refs[f"sequential.{i}.mlp.linear2.weight"].layer for i in (2, 3)] == [0, 1]
    assert [refs[f"sequential.{i}"].layer for i in ("0.word_embeddings.weight", "6.final_linear.weight")] == [None, None]


def test_layers_may_begin_late_and_have_gaps() -> None:
    naming = _name({f"layers.{i}.mlp.up_proj.weight": (8, 4) for i in (11, 2, 5)})
    assert [(ref.tensor, ref.layer) for ref in naming.matrices] == [(f"layers.{i}.mlp.up_proj.weight", n) for n, i in enumerate((2, 5, 11))]
    assert naming.depth == 3


def test_wrapped_names_are_the_plain_ones() -> None:
    plain = _name(_gpt2(False))
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "_forward_module.", "_fsdp_wrapped_module."):
        wrapped = _name({prefix + key: shape for key, shape in _gpt2(False).items()})
        assert [(r.tensor, r.role, r.layer, r.rows) for r in wrapped.matrices] == [
            (r.tensor, r.role, r.layer, r.rows) for r in plain.matrices
        ]
    regional = _refs(_name({"h.0._orig_mod.attn.c_q.weight": (8, 8)}))
    assert regional["h.0.attn.c_q.weight"].entry.key == "h.0._orig_mod.attn.c_q.weight"


def test_two_keys_of_one_canonical_name_are_a_problem() -> None:
    naming = _name({"lm_head.weight": (20, 8), "module.lm_head.weight": (20, 8)})
    assert [ref.entry.key for ref in naming.matrices] == ["lm_head.weight"]
    assert _reasons(naming) == {"module.lm_head.weight": "same name as lm_head.weight"}
    assert "module.lm_head.weight" in naming.problems[0]
    assert naming.num_params == 160


@pytest.mark.parametrize("keys", [("lm_head.weight", "transformer.wte.weight"), ("transformer.wte.weight", "lm_head.weight")])
def test_of_tied_weights_the_embedding_stays_and_they_count_once(keys: tuple[str, str]) -> None:
    naming = name_matrices({FILE: [Entry(key, (20, 8), "float32", "0:0") for key in keys]}, {})
    assert [ref.tensor for ref in naming.matrices] == ["transformer.wte.weight"]
    assert _reasons(naming) == {"lm_head.weight": "tied to transformer.wte.weight"}
    assert naming.num_params == 160


def test_equal_storages_of_two_files_are_not_tied() -> None:
    naming = name_matrices({Path(name): [Entry(f"{name}.weight", (2, 2), "float32", "0")] for name in ("a", "b")}, {})
    assert (len(naming.matrices), naming.num_params) == (2, 8)


@pytest.mark.parametrize(
    ("key", "shape", "dtype", "reason"),
    [
        ("transformer.h.0.ln_1.weight", (8,), "float32", "1-D"),
        ("transformer.scale", (), "float32", "scalar"),
        ("model.layers.0.self_attn.q_proj.weight", (0,), "bfloat16", "empty: ZeRO-3 placeholder?"),
        ("model.layers.0.self_attn.q_proj.weight", (0, 8), "bfloat16", "empty: ZeRO-3 placeholder?"),
        ("model.layers.0.self_attn.k_proj.weight", (8, 8), "int8", "integer or boolean (mask, buffer or quantised)"),
        ("model.mask_table", (8, 8), "bool", "integer or boolean (mask, buffer or quantised)"),
        ("patch_embed.proj.weight", (8, 3, 2, 2), "float32", "not a weight matrix: 4-D [8, 3, 2, 2]"),
        ("backbone.layers.0.mixer.conv1d.weight", (8, 1, 4), "float32", "not a weight matrix: 3-D [8, 1, 4]"),
        ("model.layers.0.mlp.experts.down_proj", (4, 8, 16), "float32", "3-D [4, 8, 16]: stacked tensors are not read yet"),
        ("model.layers.0.mlp.down_proj.weight.exp_avg", (8, 8), "float32", "optimizer state"),
        ("optimizer.state.fp32_param.w", (8, 8), "float32", "optimizer state"),
        ("transformer.h.0.attn.bias", (1, 1, 8, 8), "float32", "buffer (mask, frequencies, statistics)"),
        ("model.layers.0.self_attn.rotary_emb.inv_freq", (4,), "float32", "buffer (mask, frequencies, statistics)"),
        ("model.layers.0.self_attn.q_norm.weight", (8, 8), "float32", "norm"),
        ("model.layers.0.q_proj.lora_A.weight", (2, 8), "float32", "LoRA factor: products are not read yet"),
        ("model.layers.0.q_proj.weight", (8, 8), "float8_e4m3fn", "float8 without a scale"),
        ("model.layers.0.q_proj.weight_scale_inv", (2, 2), "float32", "scale or table of a quantised tensor"),
        ("model.layers.0.q_proj.weight", (8, 8), "complex64", "dtype complex64 is not analysed"),
    ],
)
def test_reasons(key: str, shape: tuple[int, ...], dtype: str, reason: str) -> None:
    naming = name_matrices({FILE: [Entry(key, shape, dtype)]}, {})
    assert naming.matrices == ()
    assert [skipped.reason for skipped in naming.skipped] == [reason]


def test_scaled_float8_merged_experts_averages_and_parametrisations() -> None:
    listed = [
        Entry("layers.0.self_attn.q_proj.weight", (8, 8), "float8_e4m3fn"),
        Entry("layers.0.self_attn.q_proj.weight_scale_inv", (1, 1), "float32"),
        Entry("layers.0.ffn.experts.mlp.v1", (32, 8), "float32"),
        Entry("layers.0.mlp.fc.parametrizations.weight.original1", (8, 8), "float32"),
        Entry("ema_model.layers.0.self_attn.k_proj.weight", (8, 8), "float32"),
    ]
    naming = name_matrices({FILE: listed}, {})
    reasons = list(_reasons(naming).values())
    assert naming.matrices == ()
    for reason, start in zip(
        reasons, ["float8 with a scale", "scale", "experts merged", "part of a reparametrised", "average"], strict=True
    ):
        assert reason.startswith(start)
    assert naming.num_params == 64 + 256 + 64
    assert len(name_matrices({FILE: listed[-1:]}, {}).matrices) == 1


def test_buffers_are_no_parameters() -> None:
    assert _name({**_gpt2(False), "transformer.h.0.attn.bias": (1, 1, 8, 8)}).num_params == _name(_gpt2(False)).num_params


def test_encoder_decoder_and_cross_attention_are_stacks() -> None:
    shapes = {}
    for i in range(2):
        shapes[f"encoder.block.{i}.layer.0.SelfAttention.q.weight"] = (8, 8)
        shapes[f"decoder.block.{i}.layer.0.SelfAttention.q.weight"] = (8, 8)
        shapes[f"decoder.block.{i}.layer.1.EncDecAttention.q.weight"] = (8, 8)
    found = {(ref.stack, ref.layer) for ref in _name(shapes).matrices}
    assert found == {(stack, i) for stack in ("encoder", "decoder", "decoder.cross") for i in range(2)}


@pytest.mark.parametrize("prefix", ["decoder.layers", "language_model.encoder.layers", "model.decoder", "transformer.h"])
def test_one_stack_has_no_label(prefix: str) -> None:
    assert {ref.stack for ref in _name({f"{prefix}.{i}.mlp.down_proj.weight": (8, 8) for i in range(2)}).matrices} == {None}


def test_vision_beside_language() -> None:
    shapes = {f"model.visual.blocks.{i}.attn.{name}.weight": s for i in range(2) for name, s in {"qkv": (12, 4), "proj": (4, 4)}.items()}
    shapes |= {key.replace("model.", "model.language_model."): shape for key, shape in _llama().items()}
    naming = _name(shapes, {"text_config": {"num_attention_heads": 2}})
    assert {ref.stack for ref in naming.matrices if ref.layer is not None} == {"vision", "language"}
    assert (naming.depth, naming.width) == (2, 8)
    assert _refs(naming)["model.visual.blocks.1.attn.qkv.weight[v]"].rows == ((8, 12),)


def test_fused_gate_and_up_by_shape() -> None:
    def name(leaf: str, rows: int, config: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
        naming = _name({f"layers.0.mlp.{leaf}.weight": (rows, 8), "layers.0.mlp.down_proj.weight": (8, 16)}, config)
        return [(ref.tensor.partition(leaf)[2], ref.role) for ref in naming.matrices if leaf in ref.tensor]

    assert name("gate_up_proj", 32) == [(".weight[gate]", "mlp_gate"), (".weight[up]", "mlp_up")]
    assert name("linear1", 32) == [(".weight[up]", "mlp_up"), (".weight[gate]", "mlp_gate")]
    assert name("linear_fc1", 16) == [(".weight", "mlp_up")]
    assert name("fc1", 32) == [(".weight", "mlp_gate_up")]
    assert name("gate_up_proj", 32, {"model_type": "gpt_oss"}) == [(".weight", "mlp_gate_up")]


def test_experts_are_matched_with_their_own_down_projection() -> None:
    shapes = {"layers.0.mlp.shared_expert.gate_up_proj.weight": (48, 8), "layers.0.mlp.shared_expert.down_proj.weight": (8, 24)}
    for e in range(2):
        shapes |= {f"layers.0.mlp.experts.{e}.linear_fc1.weight": (32, 8), f"layers.0.mlp.experts.{e}.linear_fc2.weight": (8, 16)}
    refs = _refs(_name(shapes))
    assert (refs["layers.0.mlp.experts.1.linear_fc1.weight[up]"].expert, refs["layers.0.mlp.experts.1.linear_fc1.weight[up]"].rows) == (
        1,
        ((16, 32),),
    )
    assert refs["layers.0.mlp.shared_expert.gate_up_proj.weight[gate]"].rows == ((0, 24),)


def test_qwen1_names_its_gate_w2() -> None:
    block = {"attn.c_attn": (24, 8), "attn.c_proj": (8, 8), "mlp.w1": (16, 8), "mlp.w2": (16, 8), "mlp.c_proj": (8, 16)}
    refs = _refs(_name({f"transformer.h.0.{name}.weight": shape for name, shape in block.items()}))
    roles = {name: refs[f"transformer.h.0.mlp.{name}.weight"].role for name in ("w1", "w2", "c_proj")}
    assert roles == {"w1": "mlp_up", "w2": "mlp_gate", "c_proj": "mlp_down"}


def test_an_mlp_whose_last_matrix_is_w3() -> None:
    block = {"attn.wq": (8, 8), "attn.wo": (8, 8), "mlp.w1": (16, 8), "mlp.w2": (16, 8), "mlp.w3": (8, 16)}
    refs = _refs(_name({f"blocks.0.{name}.weight": shape for name, shape in block.items()}))
    assert [refs[f"blocks.0.mlp.w{i}.weight"].role for i in (1, 2, 3)] == ["mlp_gate", "mlp_up", "mlp_down"]


def test_an_mlp_gate_named_like_a_router() -> None:
    refs = _refs(_name({f"blocks.0.mlp.{name}.weight": s for name, s in {"gate": (16, 8), "up": (16, 8), "down": (8, 16)}.items()}))
    assert [refs[f"blocks.0.mlp.{name}.weight"].role for name in ("gate", "up", "down")] == ["mlp_gate", "mlp_up", "mlp_down"]


def test_modded_nanogpt_stores_c_proj_like_c_fc() -> None:
    block = {"attn.qkvo_w": (32, 8), "mlp.c_fc": (32, 8), "mlp.c_proj": (32, 8)}
    refs = _refs(_name({f"blocks.0.{name}": shape for name, shape in block.items()}))
    assert refs["blocks.0.mlp.c_proj"].transposed
    assert refs["blocks.0.mlp.c_proj"].shape == (8, 32)
    assert not refs["blocks.0.mlp.c_fc"].transposed
    assert refs["blocks.0.attn.qkvo_w[o]"].rows == ((24, 32),)


def test_kernels_of_jax_are_stored_in_out() -> None:
    names = {
        "attention.wq": (8, 8),
        "attention.wo": (8, 8),
        "feed_forward.w1": (8, 16),
        "feed_forward.w2": (16, 8),
        "feed_forward.w3": (8, 16),
    }
    shapes = {f"transformer.h.0.{name}.kernel": shape for name, shape in names.items()}
    naming = _name({**shapes, "transformer.wte.embedding": (20, 8), "lm_head.kernel": (8, 20)})
    assert {ref.tensor: ref.transposed for ref in naming.matrices} == {
        **dict.fromkeys(shapes, True),
        "transformer.wte.embedding": False,
        "lm_head.kernel": True,
    }
    assert _refs(_name({"transformer.h.0.attention.wq.kernel": (8, 8)}))["transformer.h.0.attention.wq.kernel"].transposed


def test_nanochat() -> None:
    shapes = {"transformer.wte.weight": (64, 8), "lm_head.weight": (64, 8), "value_embeds.1.weight": (64, 4), "resid_lambdas": (2,)}
    for i in range(2):
        block = {
            "attn.c_q": (8, 8),
            "attn.c_k": (4, 8),
            "attn.c_v": (4, 8),
            "attn.c_proj": (8, 8),
            "mlp.c_fc": (32, 8),
            "mlp.c_proj": (8, 32),
        }
        shapes |= {f"transformer.h.{i}.{name}.weight": shape for name, shape in block.items()}
    naming = _name(shapes, {"model_config": {"n_layer": 2, "n_head": 2, "n_kv_head": 1, "n_embd": 8}})
    assert Counter(ref.role for ref in naming.matrices) == Counter(
        {"embed": 2, "unembed": 1, "q": 2, "k": 2, "v": 2, "o": 2, "mlp_up": 2, "mlp_down": 2}
    )
    assert (naming.depth, naming.width) == (2, 8)
    assert not any(ref.transposed for ref in naming.matrices)


def test_unknown_names_with_a_number_have_layers() -> None:
    refs = _refs(_name({f"net.cells.{i}.mix.weight": (8, 8) for i in range(3)}))
    assert [(ref.role, ref.layer) for ref in refs.values()] == [("other", 0), ("other", 1), ("other", 2)]


COMPONENTS = st.sampled_from(
    "model module layers h 0 1 2 attn mlp experts c_attn query_key_value q_proj c_proj o_proj gate_up_proj down_proj w1 w2 "
    "lora_A weight kernel bias norm exp_avg lm_head wte encoder decoder encoder_attn value_embeds sequential".split()
)
KEYS = st.lists(COMPONENTS, min_size=1, max_size=6).map(".".join)
ENTRIES = st.builds(
    Entry,
    KEYS,
    st.lists(st.sampled_from([0, 1, 4, 8, 12, 24, 32]), max_size=4).map(tuple),
    st.sampled_from(["float32", "bfloat16", "int64", "bool", "float8_e5m2"]),
    st.sampled_from([None, "a", "b"]),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(ENTRIES, max_size=25, unique_by=lambda entry: entry.key), st.sampled_from([None, 2, 3]))
def test_every_tensor_is_accounted_for_once(listed: list[Entry], heads: int | None) -> None:
    naming = name_matrices({FILE: listed}, {}, heads=heads)
    assert len({ref.entry.key for ref in naming.matrices}) + len(naming.skipped) == len(listed)
    parts: dict[str, list[MatrixRef]] = {}
    for ref in naming.matrices:
        parts.setdefault(ref.entry.key, []).append(ref)
    for refs in parts.values():
        rows = refs[0].entry.shape[1 if refs[0].transposed else 0]
        taken = sorted(row for ref in refs for start, stop in ref.rows or ((0, rows),) for row in range(start, stop))
        assert taken == list(range(rows))
    assert len({ref.tensor for ref in naming.matrices}) == len(naming.matrices)
    for stack in {ref.stack for ref in naming.matrices}:
        layers = {ref.layer for ref in naming.matrices if ref.stack == stack and ref.layer is not None}
        assert layers == set(range(len(layers)))
