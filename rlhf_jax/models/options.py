"""A checkpoint's config.json and the decoder's config, both ways, as a family's table says."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import ACTIVATIONS, DecoderConfig
from rlhf_jax.models.family import Family
from rlhf_jax.models.rope import SCALINGS, LongRope, Rope

# Options whose null says something; any other null is an option left out.
_MAY_BE_NULL = {
    "num_key_value_heads",
    "head_dim",
    "n_inner",
    "sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
}
_FULL, _SLIDING = "full_attention", "sliding_attention"
_PARTIAL = "partial_rotary_factor"


def axis_sizes(config: DecoderConfig, vocab: int) -> dict[str, int]:
    """Letter of an axis -> its size, for a vocabulary of `vocab` rows (as on disk, or padded)."""
    return {
        "V": vocab,
        "D": config.d_model,
        "H": config.num_heads,
        "J": config.num_kv_heads,
        "K": config.head_dim,
        "F": config.d_ff,
        "T": config.max_positions,
        "N": config.num_layers,
    }


def find_family(raw: dict[str, Any], where: str, families: dict[str, Family]) -> Family:
    """The one of `families` that a config.json names, or a ConfigError naming what they are."""
    model_type = raw.get("model_type")
    if model_type not in families:
        raise ConfigError(
            f"{where}: model_type={model_type!r} is not supported; supported are "
            f"{', '.join(sorted(families))}"
        )
    family = families[model_type]
    for architecture in raw.get("architectures") or ():
        if architecture != family.architecture:
            raise ConfigError(
                f"{where}: architecture {architecture!r} is not supported; supported for "
                f"model_type={model_type!r} is {family.architecture}"
            )
    return family


def decoder_config(
    family: Family, raw: dict[str, Any], where: str, vocab_padded: int | None
) -> DecoderConfig:
    """Read a config.json. `where` names the file in errors.

    Raises:
        ConfigError: an option or a value that is not supported, or one that is missing.
    """
    for option, value in family.only.items():
        found = raw.get(option)
        if found is not None and found != value:
            raise ConfigError(
                f"{where}: {option}={found!r} is not supported; supported is {option}={value!r}"
            )
    given = {k: v for k, v in raw.items() if v is not None or k in _MAY_BE_NULL}
    options = {**family.defaults, **given}
    missing = [name for name in family.fields.values() if name not in options]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}")
    values = {ours: options[name] for ours, name in family.fields.items()}
    values |= {**family.fixed, "family": family.model_type, "vocab_padded": vocab_padded}
    if values["activation"] not in ACTIVATIONS:
        raise ConfigError(
            f"{where}: {family.fields['activation']}={values['activation']!r} is not supported; "
            f"supported are {', '.join(ACTIVATIONS)}"
        )
    try:
        _derive_sizes(values)
        values |= _layers(family, options, values["num_layers"])
        return DecoderConfig(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _derive_sizes(values: dict[str, Any]) -> None:
    """Fill in what a family leaves to be computed from other sizes."""
    heads, width = values["num_heads"], values["d_model"]
    if not isinstance(heads, int) or not isinstance(width, int) or heads < 1:
        return  # the config's own check names it
    if values["num_kv_heads"] is None:
        values["num_kv_heads"] = heads
    if values["d_ff"] is None:
        values["d_ff"] = 4 * width
    if values.get("head_dim") is None:
        if width % heads:
            raise ConfigError(f"{heads} heads do not divide a width of {width}")
        values["head_dim"] = width // heads


def _layers(family: Family, options: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """Window, local layers and rotary positions, by the family's own way to say them."""
    window, local = None, (False,)
    if family.locals is not None and isinstance(num_layers, int):
        window, local = family.locals(options, num_layers)
    types = options.get("layer_types") if family.layer_types else None
    if types is not None and (set(types) - {_FULL, _SLIDING} or len(types) != num_layers):
        raise ConfigError(
            f"layer_types={types!r} is not supported; supported is a list of {num_layers} "
            f"(num_layers), each {_FULL!r} or {_SLIDING!r}"
        )
    if window is None and any(local):
        raise ConfigError("sliding_window=None, but there are layers of sliding_attention")
    mixed = len(set(local)) == 2
    values = {"window": window if any(local) else None, "local_layers": local if mixed else None}
    if family.ropes:
        ropes = _read_ropes(family, options)
        values["rope"] = ropes[_SLIDING if all(local) else _FULL]
        values["rope_local"] = ropes[_SLIDING] if mixed and family.rope_local else None
        if isinstance(values["rope"].scaling, LongRope):
            values["max_positions"] = values["rope"].scaling.original_max_position_embeddings
    return values


def _read_ropes(family: Family, options: dict[str, Any]) -> dict[str, Rope]:
    """Rotary positions of global and local layers, from either spelling: options at the top
    (transformers 4), or a `rope_parameters` dict (transformers 5), or both if they agree."""
    top = {name: options.get(name) for name in ("rope_theta", _PARTIAL)}
    scaling, parameters = options.get("rope_scaling"), options.get("rope_parameters")
    for name, value in (("rope_scaling", scaling), ("rope_parameters", parameters)):
        if not isinstance(value, dict | None):
            raise ConfigError(f"{name}={value!r} is not supported; supported is an object")
    if family.rope_local is None:
        rope = _read_rope(family, options, family.rope_theta, top, scaling, parameters)
        return {_FULL: rope, _SLIDING: rope}
    parameters = parameters or {}
    if parameters.keys() - {_FULL, _SLIDING}:
        raise ConfigError(
            f"rope_parameters={parameters!r} is not supported; supported is one for {_FULL!r} "
            f"and one for {_SLIDING!r}"
        )
    top_local = {"rope_theta": options.get("rope_local_base_freq")}
    of_full = (family.rope_theta, top, scaling, parameters.get(_FULL))
    of_local = (family.rope_local, top_local, None, parameters.get(_SLIDING))
    return {
        _FULL: _read_rope(family, options, *of_full),
        _SLIDING: _read_rope(family, options, *of_local),
    }


def _read_rope(
    family: Family, options: dict[str, Any], theta: float, *sources: dict[str, Any] | None
) -> Rope:
    """One rotation from the entries of several dicts, which must not contradict each other."""
    entries: dict[str, Any] = {}
    for source in sources:
        for name, value in (source or {}).items():
            name = "rope_type" if name == "type" else name
            value = tuple(value) if isinstance(value, list) else value
            if value is not None and entries.setdefault(name, value) != value:
                raise ConfigError(f"{name}={entries[name]!r} contradicts {source!r}")
    kind = entries.pop("rope_type", "default")
    if kind in ("su", "yarn") and "longrope" in family.ropes and "short_factor" in entries:
        kind = "longrope"  # its names before it had one
    if kind not in family.ropes:
        raise ConfigError(
            f"rope_type={kind!r} is not supported; supported are {', '.join(family.ropes)}"
        )
    partial = entries.pop(_PARTIAL, 1.0)
    if partial != 1.0 and not family.partial_rope:
        raise ConfigError(f"{_PARTIAL}={partial} is not supported; supported is {_PARTIAL}=1.0")
    theta = entries.pop("rope_theta", theta)
    scaling = None if kind == "default" else _read_scaling(kind, entries, options)
    if kind == "default" and entries:
        raise ConfigError(
            f"{', '.join(entries)} of rotary positions is not supported; supported is "
            "rope_type='default' with rope_theta, one for all layers, or a scaled rope_type"
        )
    return Rope(theta=theta, partial=None if partial == 1.0 else partial, scaling=scaling)


def _read_scaling(kind: str, entries: dict[str, Any], options: dict[str, Any]):
    cls = SCALINGS[kind]
    known = {f.name: f.default for f in fields(cls)}
    positions = options.get("max_position_embeddings")
    original = options.get("original_max_position_embeddings")
    fallback = {
        "original_max_position_embeddings": positions if original is None else original,
        "max_position_embeddings": positions,
    }
    if original is not None and "original_max_position_embeddings" in known:
        entries = {**entries, "original_max_position_embeddings": original}
    values = {**{k: v for k, v in fallback.items() if k in known}, **entries}
    odd = [name for name in values if name not in known]
    missing = [name for name, default in known.items() if default is MISSING and name not in values]
    if odd or missing:
        what = f"{', '.join(odd)} is not supported" if odd else f"{', '.join(missing)} is missing"
        raise ConfigError(f"rope_type={kind!r}: {what}; it is made of {', '.join(known)}")
    return cls(**values)


def hf_config(family: Family, config: DecoderConfig, dtype: str) -> dict[str, Any]:
    """The config.json of an export, without token ids.

    Raises:
        ConfigError: the family has no option for something that the config asks for.
    """
    raw = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **{name: getattr(config, ours) for ours, name in family.fields.items()},
        **{name: value for name, value in family.only.items() if value is not None},
        **_hf_window(family, config),
        **_hf_ropes(family, config),
        "torch_dtype": dtype,
    }
    again = decoder_config(family, raw, "the export's config.json", config.vocab_padded)
    lost = [
        f"{f.name}={getattr(config, f.name)!r}"
        for f in fields(config)
        if getattr(again, f.name) != getattr(config, f.name)
    ]
    if lost:
        raise ConfigError(f"a checkpoint of {family.model_type} cannot say {', '.join(lost)}")
    return raw


def _hf_window(family: Family, config: DecoderConfig) -> dict[str, Any]:
    if family.locals is None:
        return {}
    raw: dict[str, Any] = {"sliding_window": config.window}
    if "use_sliding_window" in family.defaults:
        raw["use_sliding_window"] = config.window is not None
    if family.layer_types:
        local = config.local_layers or (config.window is not None,) * config.num_layers
        raw["layer_types"] = [_SLIDING if is_local else _FULL for is_local in local]
    return raw


def _hf_ropes(family: Family, config: DecoderConfig) -> dict[str, Any]:
    """Both spellings: transformers 4 reads the first, transformers 5 the second."""
    if not family.ropes or config.rope is None:
        return {}
    full, local = config.rope, config.rope_local or Rope(theta=family.rope_local or 1.0)
    if family.rope_local is not None and config.window and config.local_layers is None:
        full, local = Rope(theta=family.rope_theta), config.rope
    scaling = {k: v for k, v in _hf_rope(full).items() if k not in ("rope_theta", _PARTIAL)}
    raw = {"rope_theta": full.theta, "rope_parameters": _hf_rope(full)}
    if full.scaling is not None:
        raw["rope_scaling"] = scaling
    if full.partial is not None:
        raw[_PARTIAL] = full.partial
    if family.rope_local is not None:
        raw["rope_local_base_freq"] = local.theta
        raw["rope_parameters"] = {_FULL: _hf_rope(full), _SLIDING: _hf_rope(local)}
    if isinstance(full.scaling, LongRope):
        raw["max_position_embeddings"] = full.scaling.max_position_embeddings
    if "original_max_position_embeddings" in family.defaults:
        raw["original_max_position_embeddings"] = config.max_positions
    return raw


def _hf_rope(rope: Rope) -> dict[str, Any]:
    raw = {"rope_type": "default", "rope_theta": rope.theta}
    if rope.partial is not None:
        raw[_PARTIAL] = rope.partial
    if rope.scaling is not None:
        raw["rope_type"] = next(k for k, cls in SCALINGS.items() if type(rope.scaling) is cls)
        for f in fields(rope.scaling):
            value = getattr(rope.scaling, f.name)
            # LongRoPE's longest sequence stands at the top
            if value != f.default and f.name != "max_position_embeddings":
                raw[f.name] = list(value) if isinstance(value, tuple) else value
    return raw
