"""What frameworks call things: regular expressions over parameter names. Data, no code; the order of the rules matters."""

import re

WRAPPERS = frozenset(
    "module _orig_mod _forward_module _fsdp_wrapped_module _checkpoint_wrapped_module _fpw_module pp_block base_layer".split()
)
"""Components that compilers and wrappers put into a name, anywhere; removed as whole dotted components."""

SUFFIX = re.compile(r"\.(?:weight|kernel|embedding)$")
"""What the last component says of a tensor's storage and not of its role."""

LAYER = re.compile(
    r"(?:^|\.)(?P<container>(?:mtp_)?layers?|h|blocks?|blk|resblocks|decoder|encoder|sequential|albert_layer_groups)[._](?P<index>\d+)(?=\.)"
)
EXPERT = re.compile(r"(?:^|\.)(?:experts|local_experts)\.(\d+)(?=\.)")
CROSS = re.compile(r"(?:^|\.)(?:encoder_attn|EncDecAttention|cross_?attn|cross_?attention|inter_attention)\.")
"""Attention to another stack, within the tail of a name."""

LORA = re.compile(r"\.lora_(?:[AB]|embedding_[AB]|magnitude_vector|magnitude)(?:\.\w+)?$")
"""A LoRA factor: what stands before it is the name of its target."""

STACKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("vision", re.compile(r"vision|visual|image|\bvit\b")),
    ("audio", re.compile(r"audio|speech")),
    ("mtp", re.compile(r"\bmtp")),
    ("text", re.compile(r"text_model|text_encoder")),
    ("decoder", re.compile(r"\bdecoder\b")),
    ("encoder", re.compile(r"\bencoder\b|\bsentence_encoder\b")),
    ("language", re.compile(r"language_model|\bllm\b")),
)
"""Label of a stack and what the text before its layers holds, first hit wins; used where a model has several stacks."""

OWN_STACKS = frozenset({"vision", "audio"})
"""Stacks that keep their label where they are alone: the name says that they are part of something."""

_ATTENTION = (
    r"(?:self_attn|attn|attention|self_attention|SelfAttention|encoder_attn|EncDecAttention|cross_attn|crossattention|multi_head_attention"
    r"|rel_attn|temporal_block|qkv_linear|self|att|attention\.attention|attention\.self|attention\.output)\."
)
_MLP = r"(?:mlp|moe|block_sparse_moe|feed_forward|feed_forward_moe|ffn|experts)\."
_MIXER = r"(?:mixer|mamba|linear_attn|temporal_block|conv)\."


def _rule(role: str, *patterns: str, start: str = r"(?:^|\.)") -> tuple[str, re.Pattern[str]]:
    return role, re.compile(rf"{start}(?:{'|'.join(patterns)})$")


NORM = re.compile(r"(?:norm\w*|LayerNorm\w*|(?<![a-zA-Z])ln(?:[_\d]\w*)?|(?:^|[._])gains)$")

# names.md §2, rules 2, 4 and 5
FIRST_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    _rule("other", r"conv1d|conv|conv_1d|A_log|D|dt_proj|x_proj|dt_bias"),
    _rule("ssm_in", _MIXER + r"(?:in_proj\w*|linear_[xy])"),
    _rule("ssm_out", _MIXER + r"(?:out_proj|linear_out)"),
    (
        "other",
        re.compile(r"relative_attention_bias|rotary|inv_freq|masked_bias|att(?:n|ention)\.bias$|sinks|lambda|_decay|slope_rate|time_"),
    ),
    # RWKV's low-rank pairs are no w1 and w2 of an MLP
    _rule("other", r"att\.[wavg][12]"),
    _rule("router", _MLP + r"(?:gate|router)(?:\.layer|\.gate)?", r"router(?:\.\w+)?", r"\w*shared_expert_gate", r"ffn_gate_inp\w*"),
    _rule("router", r"e_score_correction_bias|expert_bias", start=r"(?:^|[._])"),
)

# rules 6 to 10; c_attn of a cross-attention holds k and v alone (GPT-2)
ATTENTION_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    _rule("q_a", r"q_a_proj|wq_a|attn_q_a"),
    _rule("q_b", r"q_b_proj|wq_b|attn_q_b"),
    _rule("kv_a", r"kv_a_proj_with_mqa|wkv_a|attn_kv_a_mqa"),
    _rule("kv_b", r"kv_b_proj|wkv_b|attn_kv_b"),
    _rule("kv", r"crossattention\.c_attn"),
    _rule("q", r"crossattention\.q_attn"),
    _rule("qkv", r"query_key_value|qkv_proj|Wqkv|wqkv|linear_qkv|c_attn|att_proj|attn_qkv|in_proj_weight|attn\.attn|qkv"),
    _rule("qkvo", r"qkvo_w"),
    _rule("kv", r"kv_proj|wkv"),
    _rule("q", _ATTENTION + r"(?:q_proj|c_q|q_lin|query|q|wq|w_q|Wq|q_proj_weight|query_proj)", r"attn_q"),
    _rule("k", _ATTENTION + r"(?:k_proj|c_k|k_lin|key|k|wk|w_k|Wk|k_proj_weight|key_proj)", r"attn_k"),
    _rule("v", _ATTENTION + r"(?:v_proj|c_v|v_lin|value|v|wv|w_v|Wv|v_proj_weight|value_proj)", r"attn_v"),
    _rule(
        "o",
        _ATTENTION + r"(?:o_proj|out_proj|c_proj|proj|dense|out_lin|wo|w_o|w_out|Wo|o|out|output|attn_out|linear_proj)",
        r"attn_out|attn_output|linear_proj",
    ),
)

# rules 11 to 15
MLP_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    _rule("mlp_gate_up", r"experts\.gate_up_proj(?:_blocks)?", r"(?:\w*mlp|\w*moe)\.input_linear", r"\w*gate_up_exps", r"mlp1_weight"),
    _rule("mlp_down", r"experts\.down_proj(?:_blocks)?", r"(?:\w*mlp|\w*moe)\.output_linear", r"\w*down_exps", r"mlp2_weight|w2_EDF"),
    _rule("mlp_down", r"experts\.mlp\.w2"),
    _rule("mlp_gate", r"w1_EFD|ffn_gate_exps|experts\.mlp\.w1"),
    _rule("mlp_up", r"w3_EFD|ffn_up_exps|experts\.mlp\.(?:v1|w3)"),
    _rule("mlp_gate_up", r"gate_up_proj"),
    _rule("mlp_up", r"linear_fc1|ff_proj|Wi|mlp\.linear1|fc1_weight"),
    _rule("mlp_gate", r"gate_proj|w1|wi_0|fc_1|c_fc2|ffn_gate\w*"),
    _rule(
        "mlp_up",
        r"up_proj|w3|wi_1|wi|fc_2|c_fc|fc|fc_w|fc1|fc_in|dense_h_to_4h|lin1|linear1|ffn_up\w*|v1|ffn|layer_1|intermediate\.dense",
        r"(?:feed_forward|ffn)\.key|ffn\.0|(?:mlp|feed_forward|ffn)\.up",
    ),
    _rule(
        "mlp_down",
        r"down_proj|w2|linear_fc2|fc2|fc_out|dense_4h_to_h|lin2|linear2|ffn_down\w*|layer_2|ff_out|ffn_output|fc2_weight|proj_w",
        r"(?:feed_forward|ffn)\.value|ffn\.2|(?:mlp|DenseReluDense|feed_forward)\.(?:c_proj|proj|wo|Wo)|(?:mlp|feed_forward|ffn)\.down",
        r"experts\.\d+\.proj|output\.dense",
    ),
)

# rules 16 to 18, for names without a layer
OUTSIDE_RULES: tuple[tuple[str, re.Pattern[str]], ...] = (
    _rule(
        "unembed", r"lm_head|embed_out|output_layer|logits_dense|head|final_linear|output|w_out|output_projection|vocab_projector|lm_loss"
    ),
    _rule("unembed", r"decoder|transformer\.ff_out|lm_head_w"),
    _rule("unembed", r"proj", start="^"),
    _rule("pos", r"wpe|position_embeddings?|embed_positions|positions_embed|pos_embed|position_embd"),
    _rule("embed", r"wte|vte|embed_tokens|embed_in|tok_embeddings|word_embeddings?|token_embd|embeddings?|tokens_embed|shared|emb|embed2?"),
    _rule("embed", r"token_embedding|token_embedder|value_embeds?(?:\.\d+)?"),
)

MERGED_EXPERTS = re.compile(r"(?:^|\.)experts\.mlp\.(?:w[123]|v1)$")
"""Experts merged along the rows of one 2-D tensor [E·F, d] (DBRX, OLMo-core)."""

OPTIMIZER = re.compile(
    r"^(?:optimizers?|optim|optimizer_states?|optimizer_state_dict|last_optimizer_state|lr_schedulers?|opt_state|scaler|rng\w*)\."
    r"|(?:^|\.)(?:exp_avg|exp_avg_sq|max_exp_avg_sq|momentum_buffer|fp32_param|step)$"
)
BUFFER = re.compile(
    r"(?:^|\.)(?:inv_freq|freqs\w*|position_ids|masked_bias|_extra_state|n_averaged|num_batches_tracked|running_mean|running_var|causal_mask|mask"
    r"|attn_mask|tril|triu|cos|sin|cos_cached|sin_cached|slope_rate|diagonal_decay|rope_freqs)$|rotary_emb\.|att(?:n|ention)\.bias$"
)
QUANTISED = re.compile(
    r"(?:^|\.|_)(?:scale_inv|weight_scale|weight_zero_point|weight_shape|input_scale|absmax|quant_map|nested_absmax|nested_quant_map|SCB|qzeros"
    r"|scales|g_idx)$|\.quant_state\."
)
"""Scales and tables that lie beside quantised weights."""

REPARAMETRISED = re.compile(r"parametrizations\.\w+\.original\d?$|\.weight_(?:g|v|orig)$")
AVERAGE = re.compile(r"(?:^|\.)(?:ema|ema_model|model_ema|ema_state_dict|averaged_model)\.")

# names.md §5 and §6, over the tail of a name
GROUPED = re.compile(r"(?:^|\.)(?:query_key_value|linear_qkv|attn\.attn|wqkv)$")
NEOX_LIBRARY = re.compile(r"(?:^|\.)attention\.query_key_value$")
"""Grouped with as many key/value heads as heads; the NeoX library lays q, k, v one after the other where there are fewer."""

HALVES: tuple[tuple[tuple[str, str], re.Pattern[str]], ...] = (
    (("up", "gate"), re.compile(r"(?:^|\.)(?:mlp\.linear1|ff_proj)$")),
    (("gate", "up"), re.compile(r"(?:^|\.)(?:gate_up_proj|linear_fc1|Wi|input_linear|dense_h_to_4h|fc1_weight)$")),
)
"""Order of the two halves of a fused gate and up projection along its rows."""

HEADS = ("num_attention_heads", "num-attention-heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads")
KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "num-kv-heads",
    "n_kv_head",
    "n_kv_heads",
    "n_head_kv",
    "kv_n_heads",
    "num_query_groups",
    "n_query_groups",
    "multi_query_group_num",
)
HEAD_DIMS = ("head_dim", "d_kv", "kv_channels", "head_size")
WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "n_embed", "hidden-size")
CONFIG_PARTS = ("text_config", "model_config", "model_args", "attn_config", "model", "args")
"""Parts of a configuration that hold what is asked for, after its top level."""
