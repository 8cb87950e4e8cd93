"""What each family of checkpoints is called on disk: tensor names, layouts, config options.

A family is a table, not code: the decoder knows none of their names. Layouts are written as
`tensors.py` says; what the tables hold stands in `family.py`.
"""

from __future__ import annotations

from dataclasses import replace

from rlhf_jax.models.family import Family, every_nth_global, everywhere, if_used
from rlhf_jax.models.tensors import rule

_LAYER = "model.layers.{}."
_ATTN, _MLP = _LAYER + "self_attn.", _LAYER + "mlp."
_EMBED = rule("model.embed_tokens.weight", "embed/w_VD", "V D")
_OUTPUT = rule(_ATTN + "o_proj.weight", "layers/attn/o_NHKD", "D (H K)")
_ATTENTION = (
    rule(_ATTN + "q_proj.weight", "layers/attn/q_NDHK", "(H K) D"),
    rule(_ATTN + "k_proj.weight", "layers/attn/k_NDJK", "(J K) D"),
    rule(_ATTN + "v_proj.weight", "layers/attn/v_NDJK", "(J K) D"),
    _OUTPUT,
    rule(_ATTN + "q_proj.bias", "layers/attn/bias_q_NHK", "(H K)", when="qkv_bias"),
    rule(_ATTN + "k_proj.bias", "layers/attn/bias_k_NJK", "(J K)", when="qkv_bias"),
    rule(_ATTN + "v_proj.bias", "layers/attn/bias_v_NJK", "(J K)", when="qkv_bias"),
    rule(_ATTN + "o_proj.bias", "layers/attn/bias_o_ND", "D", when="out_bias"),
)
_DOWN = rule(_MLP + "down_proj.weight", "layers/mlp/down_NFD", "D F")
_FEED_FORWARD = (
    rule(_MLP + "gate_proj.weight", "layers/mlp/gate_NDF", "F D"),
    rule(_MLP + "up_proj.weight", "layers/mlp/up_NDF", "F D"),
    _DOWN,
    rule(_MLP + "gate_proj.bias", "layers/mlp/bias_gate_NF", "F", when="mlp_bias"),
    rule(_MLP + "up_proj.bias", "layers/mlp/bias_up_NF", "F", when="mlp_bias"),
    rule(_MLP + "down_proj.bias", "layers/mlp/bias_down_ND", "D", when="mlp_bias"),
)
_NORMS = (
    rule(_LAYER + "input_layernorm.weight", "layers/norm_attn/scale_ND", "D"),
    rule(_LAYER + "post_attention_layernorm.weight", "layers/norm_mlp/scale_ND", "D"),
    rule("model.norm.weight", "norm_out/scale_D", "D"),
)
_QK_NORMS = (
    rule(_ATTN + "q_norm.weight", "layers/attn/norm_q/scale_NK", "K"),
    rule(_ATTN + "k_norm.weight", "layers/attn/norm_k/scale_NK", "K"),
)
_GEMMA_NORMS = (
    rule(_LAYER + "input_layernorm.weight", "layers/norm_attn/gain_ND", "D"),
    rule(_LAYER + "post_attention_layernorm.weight", "layers/norm_attn_out/gain_ND", "D"),
    rule(_LAYER + "pre_feedforward_layernorm.weight", "layers/norm_mlp/gain_ND", "D"),
    rule(_LAYER + "post_feedforward_layernorm.weight", "layers/norm_mlp_out/gain_ND", "D"),
    rule("model.norm.weight", "norm_out/gain_D", "D"),
)
_FIELDS = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "d_model": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "d_ff": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tie_embeddings": "tie_word_embeddings",
    "max_positions": "max_position_embeddings",
    "activation": "hidden_act",
}
_ATTENTION_BIASES = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "num_key_value_heads": None,  # as many as query heads
    "head_dim": None,  # hidden_size / num_attention_heads
}
_QWEN_DEFAULTS = {
    **_DEFAULTS,
    "max_position_embeddings": 32768,
    "num_key_value_heads": 32,
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_ONLY = {"attention_dropout": 0.0, "quantization_config": None}

LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    scorer="LlamaForSequenceClassification",
    tensors=(_EMBED, *_ATTENTION, *_FEED_FORWARD, *_NORMS),
    untied_head=rule("lm_head.weight", "head/w_DV", "V D"),
    fields={**_FIELDS, **_ATTENTION_BIASES, "mlp_bias": "mlp_bias"},
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 2048,
        "attention_bias": False,
        "mlp_bias": False,
    },
    only={**_ONLY, "pretraining_tp": 1},
    passed_over=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    architecture="MistralForCausalLM",
    scorer="MistralForSequenceClassification",
    fields=_FIELDS,
    defaults={
        **_DEFAULTS,
        "max_position_embeddings": 4096 * 32,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    only=_ONLY,
    locals=everywhere,
)
QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    scorer="Qwen2ForSequenceClassification",
    fields=_FIELDS,
    fixed={"qkv_bias": True},
    defaults=_QWEN_DEFAULTS,
    only=_ONLY,
    locals=if_used,
    layer_types=True,
)
QWEN3 = replace(
    QWEN2,
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    scorer="Qwen3ForSequenceClassification",
    tensors=(_EMBED, *_ATTENTION, *_QK_NORMS, *_FEED_FORWARD, *_NORMS),
    fields={**_FIELDS, **_ATTENTION_BIASES},
    fixed={"qk_norm": True},
    defaults={**_QWEN_DEFAULTS, "head_dim": 128, "attention_bias": False},
)
GEMMA2 = replace(
    LLAMA,
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    scorer="Gemma2ForSequenceClassification",
    tensors=(_EMBED, *_ATTENTION, *_FEED_FORWARD, *_GEMMA_NORMS),
    fields={
        **_FIELDS,
        **_ATTENTION_BIASES,
        "activation": "hidden_activation",
        "query_scalar": "query_pre_attn_scalar",
        "attn_softcap": "attn_logit_softcapping",
        "logit_softcap": "final_logit_softcapping",
    },
    fixed={"norm": "rms+1", "norm_outputs": True, "scale_embeddings": True},
    defaults={
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "attention_bias": False,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "sliding_window_pattern": 2,
    },
    only={**_ONLY, "use_bidirectional_attention": False},
    locals=every_nth_global,
    layer_types=True,
)
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    scorer="Gemma3TextForSequenceClassification",
    tensors=(
        *GEMMA2.tensors,
        rule(_ATTN + "q_norm.weight", "layers/attn/norm_q/gain_NK", "K"),
        rule(_ATTN + "k_norm.weight", "layers/attn/norm_k/gain_NK", "K"),
    ),
    fields={ours: name for ours, name in GEMMA2.fields.items() if ours != "attn_softcap"},
    fixed={**GEMMA2.fixed, "qk_norm": True},
    defaults={
        **GEMMA2.defaults,
        "max_position_embeddings": 131_072,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
    },
    # transformers reads the option and does not apply it; no published model has it
    only={**GEMMA2.only, "attn_logit_softcapping": None},
    rope_theta=1_000_000.0,
    rope_local=10_000.0,
)
_QKV, _GATE_UP = "(H K)+(J K)+(J K)", "F+F"
PHI3 = replace(
    LLAMA,
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    scorer="Phi3ForSequenceClassification",
    tensors=(
        _EMBED,
        rule(_ATTN + "qkv_proj.weight", "layers/attn/q_NDHK", _QKV + " D", 0),
        rule(_ATTN + "qkv_proj.weight", "layers/attn/k_NDJK", _QKV + " D", 1),
        rule(_ATTN + "qkv_proj.weight", "layers/attn/v_NDJK", _QKV + " D", 2),
        _OUTPUT,
        rule(_MLP + "gate_up_proj.weight", "layers/mlp/gate_NDF", _GATE_UP + " D", 0),
        rule(_MLP + "gate_up_proj.weight", "layers/mlp/up_NDF", _GATE_UP + " D", 1),
        _DOWN,
        *_NORMS,
    ),
    fields=_FIELDS,
    defaults={
        **_DEFAULTS,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "sliding_window": None,
    },
    only={**_ONLY, "resid_pdrop": 0.0, "embd_pdrop": 0.0},
    locals=everywhere,
    ropes=("default", "longrope"),
    partial_rope=True,
)
_H = "transformer.h.{}."  # matrices of GPT-2 are stored input first
GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    scorer="GPT2ForSequenceClassification",
    tensors=(
        rule("transformer.wte.weight", "embed/w_VD", "V D"),
        rule("transformer.wpe.weight", "positions/w_TD", "T D"),
        rule(_H + "ln_1.weight", "layers/norm_attn/scale_ND", "D"),
        rule(_H + "ln_1.bias", "layers/norm_attn/bias_ND", "D"),
        rule(_H + "attn.c_attn.weight", "layers/attn/q_NDHK", "D " + _QKV, 0),
        rule(_H + "attn.c_attn.weight", "layers/attn/k_NDJK", "D " + _QKV, 1),
        rule(_H + "attn.c_attn.weight", "layers/attn/v_NDJK", "D " + _QKV, 2),
        rule(_H + "attn.c_attn.bias", "layers/attn/bias_q_NHK", _QKV, 0),
        rule(_H + "attn.c_attn.bias", "layers/attn/bias_k_NJK", _QKV, 1),
        rule(_H + "attn.c_attn.bias", "layers/attn/bias_v_NJK", _QKV, 2),
        rule(_H + "attn.c_proj.weight", "layers/attn/o_NHKD", "(H K) D"),
        rule(_H + "attn.c_proj.bias", "layers/attn/bias_o_ND", "D"),
        rule(_H + "ln_2.weight", "layers/norm_mlp/scale_ND", "D"),
        rule(_H + "ln_2.bias", "layers/norm_mlp/bias_ND", "D"),
        rule(_H + "mlp.c_fc.weight", "layers/mlp/up_NDF", "D F"),
        rule(_H + "mlp.c_fc.bias", "layers/mlp/bias_up_NF", "F"),
        rule(_H + "mlp.c_proj.weight", "layers/mlp/down_NFD", "F D"),
        rule(_H + "mlp.c_proj.bias", "layers/mlp/bias_down_ND", "D"),
        rule("transformer.ln_f.weight", "norm_out/scale_D", "D"),
        rule("transformer.ln_f.bias", "norm_out/bias_D", "D"),
    ),
    untied_head=LLAMA.untied_head,
    fields={
        "vocab_size": "vocab_size",
        "num_layers": "n_layer",
        "d_model": "n_embd",
        "num_heads": "n_head",
        "num_kv_heads": "n_head",
        "d_ff": "n_inner",
        "norm_eps": "layer_norm_epsilon",
        "tie_embeddings": "tie_word_embeddings",
        "max_positions": "n_positions",
        "activation": "activation_function",
    },
    fixed={
        "norm": "layer",
        "gated": False,
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "rope": None,
    },
    defaults={
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "n_positions": 1024,
        "n_inner": None,  # 4 · n_embd
        "activation_function": "gelu_new",
    },
    only={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "quantization_config": None,
    },
    ropes=(),
    passed_over=(r"transformer\.h\.\d+\.attn\.(masked_)?bias",),
    prefix="transformer.",
)
FAMILIES = {
    family.model_type: family
    for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, GPT2)
}
# The same decoders with one number a text instead of a distribution: reward models.
SCORERS = {
    name: replace(
        family, architecture=family.scorer, score=rule("score.weight", "head/w_D", "() D")
    )
    for name, family in FAMILIES.items()
}
