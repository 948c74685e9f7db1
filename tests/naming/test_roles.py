import csv
from pathlib import Path

import pytest

from spectrograd.naming.roles import canonical_name, find_container, label_stack, read_name
from spectrograd.records import ROLES

ROWS = list(csv.DictReader((Path(__file__).parent / "names.tsv").read_text("utf-8").splitlines(), delimiter="\t"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_names_of_frameworks(row: dict[str, str]) -> None:
    info = read_name(row["name"])
    assert info.role == (row["role"] or None)
    assert info.layer == (int(row["layer"]) if row["layer"] else None)
    assert info.expert == (int(row["note"].split()[1].rstrip(";")) if row["note"].startswith("expert ") else None)
    assert info.lora is ("lora_" in row["name"])
    assert info.role is None or info.role in ROLES


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("_orig_mod.h.0.attn.c_attn.weight", "h.0.attn.c_attn.weight"),
        ("module._orig_mod.h.0.w", "h.0.w"),
        ("_orig_mod.module.h.0.w", "h.0.w"),
        ("h.0._orig_mod.attn.weight", "h.0.attn.weight"),
        ("_fsdp_wrapped_module.model.layers.0._checkpoint_wrapped_module.mlp.w1.weight", "model.layers.0.mlp.w1.weight"),
        ("_forward_module.model.model.layers.0.q", "model.model.layers.0.q"),
        ("params/decoder/layers_3/mlp/wo/kernel", "params.decoder.layers_3.mlp.wo.kernel"),
        ("my_module.submodule.module_list.weight", "my_module.submodule.module_list.weight"),
        ("module", "module"),
    ],
)
def test_wrappers_are_removed_as_whole_components(key: str, name: str) -> None:
    assert canonical_name(key) == name


@pytest.mark.parametrize(
    ("key", "layer", "role"),
    [
        ("encoder.layer.3.attention.output.dense.weight", 3, "o"),
        ("encoder.layer.3.output.dense.weight", 3, "mlp_down"),
        ("encoder.layer.3.intermediate.dense.weight", 3, "mlp_up"),
        ("encoder.layer.3.attention.self.query.weight", 3, "q"),
        ("decoder.block.2.layer.1.EncDecAttention.o.weight", 2, "o"),
        ("decoder.block.2.layer.2.DenseReluDense.wi_0.weight", 2, "mlp_gate"),
        ("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", 0, "other"),
        ("transformer.layer.1.attention.out_lin.weight", 1, "o"),
        ("model.layers.3.mlp.shared_expert_gate.weight", 3, "router"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", 3, "mlp_down"),
        ("model.layers.3.mlp.gate.weight", 3, "router"),
        ("model.layers.3.mlp.gate_proj.weight", 3, "mlp_gate"),
        ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", 3, "kv_a"),
        ("model.layers.3.input_layernorm.weight", 3, None),
        ("transformer.h.0.ln_1.weight", 0, None),
        ("transformer.h.0.attn.ve_gate.weight", 0, "other"),
        ("blocks.1.att.w1", 1, "other"),
        ("sequential.0.word_embeddings.weight", None, "embed"),
        ("sequential.17.final_linear.weight", None, "unembed"),
        ("bert.embeddings.token_type_embeddings.weight", None, "other"),
        ("gpt_neox.embed_out.weight", None, "unembed"),
        ("embed_out.weight", None, "unembed"),
        ("h.0.crossattention.c_attn.weight", 0, "kv"),
    ],
)
def test_names_that_are_easily_mistaken(key: str, layer: int | None, role: str | None) -> None:
    info = read_name(key)
    assert (info.layer, info.role) == (layer, role)


def test_cross_attention_and_text_before_the_layers() -> None:
    info = read_name("model.decoder.layers.1.encoder_attn.k_proj.weight")
    assert (info.cross, info.stack_text, info.module) == (True, "model.decoder", "encoder_attn")
    assert read_name("model.decoder.3.pp_block.attn.o_proj.weight").stack_text == "model.decoder"
    assert read_name("mtp_layers.0.attention.wq.weight").stack_text == "mtp_layers"
    assert read_name("layers.0.attention.wq.weight").stack_text == ""


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("vision_tower.vision_model.encoder", "vision"),
        ("model.visual", "vision"),
        ("language_model.encoder", "encoder"),
        ("model.language_model", "language"),
        ("text_model.encoder", "text"),
        ("mtp_layers", "mtp"),
        ("teacher", "teacher"),
        ("", None),
    ],
)
def test_labels_of_stacks(text: str, label: str | None) -> None:
    assert label_stack(text) == label


def test_unknown_containers_count_from_zero() -> None:
    container = find_container(["net.stage.0.wq.weight", "net.stage.1.wq.weight", "value_embeds.0.weight", "head.1.weight"])
    assert container is not None
    assert read_name("net.stage.1.attn.wq.weight", container).layer == 1
    assert read_name("head.1.weight", container).layer is None
    assert find_container(["head.1.weight", "head.3.weight"]) is None
