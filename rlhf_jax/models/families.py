"""What each family of checkpoints is called on disk: tensor names, layouts, config options.

A family is a table, not code. A tensor's layout on disk is written in the letters of
`rlhf_jax/types.py`: `"(H K) D"` is a matrix whose rows are heads × head width, `"() D"` one of a
single row, which is a vector of ours. Our own layout is the suffix of the leaf's name (`q_NDHK`),
so the reshape and transpose between the two follow from the letters and are written nowhere else.

A config option that changes the maths and that the decoder does not implement is listed with the
one value it must have, and refused by name otherwise. Options that a family never reads (they do
occur in config files) change nothing there and are passed over here as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from rlhf_jax.errors import ConfigError, nearest
from rlhf_jax.models.config import DecoderConfig


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the file, or one a layer when the name holds `{}`, and its place in ours."""

    name: str
    path: tuple[str, ...]
    layout: tuple[tuple[str, ...], ...]

    @property
    def letters(self) -> str:
        """Our axes, the stacked layer axis N left out."""
        return self.path[-1].rsplit("_", 1)[1].replace("N", "")

    @property
    def stacked(self) -> bool:
        return "{}" in self.name

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Our shape, N first if stacked."""
        return tuple(sizes[a] for a in ("N" if self.stacked else "") + self.letters)

    def file_shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Shape of one tensor in the file."""
        shape = []
        for group in self.layout:
            size = 1
            for letter in group:
                size *= sizes[letter]
            shape.append(size)
        return tuple(shape)

    def names(self, num_layers: int) -> list[str]:
        return [self.name.format(n) for n in range(num_layers)] if self.stacked else [self.name]


def _rule(name: str, path: str, layout: str) -> TensorRule:
    groups = re.findall(r"\(([^)]*)\)|(\w)", layout)
    return TensorRule(
        name, tuple(path.split("/")), tuple(tuple((many or one).split()) for many, one in groups)
    )


@dataclass(frozen=True)
class Family:
    """Names of tensors and options of one `model_type`."""

    model_type: str
    architecture: str
    tensors: tuple[TensorRule, ...]
    untied_head: TensorRule  # only in the file when embeddings are not tied
    fields: dict[str, str]  # ours -> the option's name in config.json
    defaults: dict[str, Any]  # options that may be left out of config.json
    only: dict[str, Any]  # option -> the one value that is implemented
    passed_over: tuple[str, ...]  # regex of tensors that hold nothing to learn
    score: TensorRule | None = None  # of a reward model, which has no language-model head

    def rules(self, config: DecoderConfig) -> tuple[TensorRule, ...]:
        if self.score is not None:
            return (*self.tensors, self.score)
        return self.tensors if config.tie_embeddings else (*self.tensors, self.untied_head)


_LAYER = "model.layers.{}."
LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    tensors=(
        _rule("model.embed_tokens.weight", "embed/w_VD", "V D"),
        _rule(_LAYER + "input_layernorm.weight", "layers/norm_attn/scale_ND", "D"),
        _rule(_LAYER + "self_attn.q_proj.weight", "layers/attn/q_NDHK", "(H K) D"),
        _rule(_LAYER + "self_attn.k_proj.weight", "layers/attn/k_NDJK", "(J K) D"),
        _rule(_LAYER + "self_attn.v_proj.weight", "layers/attn/v_NDJK", "(J K) D"),
        _rule(_LAYER + "self_attn.o_proj.weight", "layers/attn/o_NHKD", "D (H K)"),
        _rule(_LAYER + "post_attention_layernorm.weight", "layers/norm_mlp/scale_ND", "D"),
        _rule(_LAYER + "mlp.gate_proj.weight", "layers/mlp/gate_NDF", "F D"),
        _rule(_LAYER + "mlp.up_proj.weight", "layers/mlp/up_NDF", "F D"),
        _rule(_LAYER + "mlp.down_proj.weight", "layers/mlp/down_NFD", "D F"),
        _rule("model.norm.weight", "norm_out/scale_D", "D"),
    ),
    untied_head=_rule("lm_head.weight", "head/w_DV", "V D"),
    fields={
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
    },
    defaults={
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
    },
    only={
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "pretraining_tp": 1,
        "partial_rotary_factor": 1.0,
        "quantization_config": None,
    },
    passed_over=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)
FAMILIES = {family.model_type: family for family in (LLAMA,)}
# The same decoders with one number a text instead of a distribution: reward models.
SCORERS = {
    name: replace(
        family,
        architecture=family.architecture.replace("CausalLM", "SequenceClassification"),
        score=_rule("score.weight", "head/w_D", "() D"),
    )
    for name, family in FAMILIES.items()
}


def axis_sizes(config: DecoderConfig, vocab: int) -> dict[str, int]:
    """Letter of an axis -> its size, for a vocabulary of `vocab` rows (as on disk, or padded)."""
    return {
        "V": vocab,
        "D": config.d_model,
        "H": config.num_heads,
        "J": config.num_kv_heads,
        "K": config.head_dim,
        "F": config.d_ff,
        "N": config.num_layers,
    }


def find_family(raw: dict[str, Any], where: str, families: dict[str, Family]) -> Family:
    """The one of `families` that a config.json names, or a ConfigError naming what they are."""
    model_type = raw.get("model_type")
    if model_type not in families:
        raise ConfigError(
            f"{where}: model_type={model_type!r} is not supported; "
            f"{nearest(str(model_type), families)}"
        )
    family = families[model_type]
    for architecture in raw.get("architectures") or ():
        if architecture != family.architecture:
            raise ConfigError(
                f"{where}: architecture {architecture!r} is not supported; "
                f"{nearest(architecture, [f.architecture for f in families.values()])}"
            )
    return family


def decoder_config(
    family: Family, raw: dict[str, Any], where: str, vocab_padded: int | None
) -> DecoderConfig:
    """Read a config.json. `where` names the file in errors."""
    for option, value in family.only.items():
        found = raw.get(option)
        if found is not None and found != value:
            raise ConfigError(
                f"{where}: {option}={found!r} is not supported; supported is {option}={value!r}"
            )
    # A null is an option left out.
    options = {**family.defaults, **{k: v for k, v in raw.items() if v is not None}}
    heads, width = options.get("num_attention_heads"), options.get("hidden_size")
    if isinstance(heads, int) and isinstance(width, int) and heads > 0:
        options.setdefault("num_key_value_heads", heads)
        options.setdefault("head_dim", width // heads)
    missing = [name for name in family.fields.values() if name not in options]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    values = {ours: options[name] for ours, name in family.fields.items()}
    try:
        theta = _rope_theta(raw, where)
        return DecoderConfig(rope_theta=theta, vocab_padded=vocab_padded, **values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _rope_theta(raw: dict[str, Any], where: str) -> float:
    """θ of the rotary embedding from either spelling: `rope_theta` + `rope_scaling` at the top
    (transformers 4), or a `rope_parameters` dict (transformers 5)."""
    theta = raw.get("rope_theta")
    for key in ("rope_scaling", "rope_parameters"):
        rope = raw.get(key) or {}
        if not isinstance(rope, dict) or not _plain_rope(rope):
            raise ConfigError(
                f"{where}: {key}={rope!r} is not supported; supported is rope_type='default', "
                "one for all layers, over the whole head"
            )
        inner = rope.get("rope_theta", theta)
        if theta is not None and inner != theta:
            raise ConfigError(f"{where}: rope_theta={theta} contradicts {key}={rope!r}")
        theta = inner
    return 10000.0 if theta is None else theta


def _plain_rope(rope: dict[str, Any]) -> bool:
    kind = rope.get("rope_type", rope.get("type", "default"))
    per_layer_type = any(isinstance(value, dict) for value in rope.values())
    return (
        kind == "default" and not per_layer_type and rope.get("partial_rotary_factor", 1.0) == 1.0
    )


def hf_config(family: Family, config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The config.json of an export, without token ids."""
    theta = config.rope_theta
    return {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **{name: getattr(config, ours) for ours, name in family.fields.items()},
        **{name: value for name, value in family.only.items() if value is not None},
        # transformers 4 reads the first, transformers 5 the second
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "torch_dtype": dtype,
    }
