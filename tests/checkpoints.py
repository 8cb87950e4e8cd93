"""Tiny checkpoints of every family, the same with torch and without: a weight is a function of its
tensor's name and shape, so that only what torch computed from them need be kept.

`python tests/checkpoints.py` (with torch) writes golden_families.npz anew.
"""

import json
import zlib
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).with_name("golden_families.npz")
NEW_TOKENS = 6
LENGTHS = (13, 6)  # of two texts: longer and shorter than the windows below
_SHORT, _LONG = [1.0, 1.5, 2.0], [2.0, 3.0, 5.0]

_SIZES = {
    "vocab_size": 260,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GEMMA = {**_SIZES, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 6, "sliding_window": 4}

# name -> config.json; each option that a family uses stands in one at least
CASES = {
    "llama2": {
        "model_type": "llama",
        **_SIZES,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
    "llama3": {
        "model_type": "llama",
        **_SIZES,
        "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3,
    },
    "llama_biases_linear": {
        "model_type": "llama",
        **_SIZES,
        "attention_bias": True,
        "mlp_bias": True,
        "hidden_act": "gelu",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0},
    },
    "smollm2": {
        "model_type": "llama",
        **_SIZES,
        "hidden_size": 18,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "is_llama_config": True,
        "rope_interleaved": False,
        "rope_scaling": None,
    },
    "mistral": {
        "model_type": "mistral",
        **_SIZES,
        "head_dim": 6,
        "sliding_window": 4,
        "rope_theta": 1e4,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        **_SIZES,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
        "use_sliding_window": False,
        "sliding_window": 131072,
        "max_window_layers": 28,
    },
    "qwen2_window_yarn": {
        "model_type": "qwen2",
        **_SIZES,
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
        "rope_theta": 100.0,
        "rope_scaling": {
            "type": "yarn",
            "factor": 2.0,
            "original_max_position_embeddings": 16,
            "beta_fast": 4.0,
        },
    },
    "qwen3": {
        "model_type": "qwen3",
        **_SIZES,
        "head_dim": 6,
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
    },
    "gemma2": {
        "model_type": "gemma2",
        **_GEMMA,
        "num_hidden_layers": 3,
        "query_pre_attn_scalar": 9,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **_GEMMA,
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 9,
        "final_logit_softcapping": 3.0,
        "rope_theta": 500.0,
        "rope_local_base_freq": 50.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "phi3": {"model_type": "phi3", **_SIZES, "sliding_window": 5, "rope_theta": 1e4},
    "phi3_longrope": {
        "model_type": "phi3",
        **_SIZES,
        "hidden_size": 32,
        "tie_word_embeddings": True,
        "max_position_embeddings": 64,
        "original_max_position_embeddings": 24,
        "partial_rotary_factor": 0.75,
        "rope_theta": 1e4,
        "rope_scaling": {"type": "longrope", "short_factor": _SHORT, "long_factor": _LONG},
    },
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 260,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 32,
        "n_inner": None,
        "activation_function": "gelu_new",
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
CASES["gemma3"]["layer_types"] = CASES["gemma3"]["layer_types"][:5]


def texts() -> list[np.ndarray]:
    """Ids of two texts."""
    draw = np.random.RandomState(7)
    return [draw.randint(3, 259, length) for length in LENGTHS]


def weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a tensor. RandomState draws the same in every version of numpy."""
    draw = np.random.RandomState(zlib.crc32(name.encode()))
    centre = 1.0 if name.endswith("norm.weight") or ".ln_" in name else 0.0
    scale = 0.2 if len(shape) < 2 else shape[-1] ** -0.5 * 1.5
    return (centre + scale * draw.standard_normal(shape)).astype(np.float32)


def judge(name: str):
    """The transformers model of a case, with these weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = json.loads(json.dumps(CASES[name]))  # transformers changes what it is given
    config = AutoConfig.for_model(**options)
    config.pad_token_id = None
    # sdpa has no soft-caps
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for tensor, x in model.named_parameters():
            x.copy_(torch.from_numpy(weight(tensor, tuple(x.shape))))
    return model


def judged_logits(model, ids_BT: np.ndarray, attend_BT: np.ndarray) -> np.ndarray:
    """logits_BTV; positions count real tokens."""
    import torch

    position_BT = np.maximum(np.cumsum(attend_BT, 1) - 1, 0)
    with torch.no_grad():
        out = model(
            input_ids=torch.from_numpy(ids_BT),
            attention_mask=torch.from_numpy(attend_BT.astype(np.int64)),
            position_ids=torch.from_numpy(position_BT),
        )
    return out.logits.float().numpy()


def judged_greedy(model, ids_T: np.ndarray) -> list[int]:
    """What transformers generates after a text, ends and all, NEW_TOKENS long."""
    import torch

    ids = torch.from_numpy(ids_T[None])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        min_new_tokens=NEW_TOKENS,
        eos_token_id=[],
        pad_token_id=0,
    )
    return out[0, len(ids_T) :].tolist()


def main():
    arrays = {}
    for name in CASES:
        model = judge(name)
        for n, ids_T in enumerate(texts()):
            logits_TV = judged_logits(model, ids_T[None], np.ones((1, len(ids_T)), bool))[0]
            arrays[f"{name}/logits_{n}"] = logits_TV[:, ::13]  # every 13th of the vocabulary
            arrays[f"{name}/greedy_{n}"] = np.array(judged_greedy(model, ids_T), np.int16)
    np.savez_compressed(GOLDEN, **arrays)


if __name__ == "__main__":
    main()
