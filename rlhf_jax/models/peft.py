"""Adapters in PEFT's format: adapter_config.json and adapter_model.safetensors.

A file holds, for each adapted module, lora_A [r, inputs] and lora_B [outputs, r], named after the
transformers module. Names and layouts follow from `families.py`. Families that join several of our
matrices in one tensor, or store matrices input first (Phi-3, GPT-2), have no such file here: one
A for three matrices is another parametrisation. Their merged models are written like any other's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.families import FAMILIES
from rlhf_jax.models.lora import MATRICES, LoraConfig
from rlhf_jax.models.tensors import TensorRule
from rlhf_jax.models.weights import read_json, replaced, write_json
from rlhf_jax.parallel.multihost import to_host

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
# Options of adapter_config.json that change what an adapter computes, and their values here.
_ONLY = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False,),
    "lora_bias": (False,),
    "fan_in_fan_out": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "target_parameters": (None, []),
    "trainable_token_indices": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "kasa_config": (None,),
    "arrow_config": (None,),
    "monteclora_config": (None,),
    # the others (PiSSA, OLoRA, LoftQ, …) begin by changing the base that they were trained on
    "init_lora_weights": (True, False, "gaussian", "orthogonal"),
}


def in_peft_format(config: DecoderConfig) -> bool:
    """Can the adapters of this decoder be written for PEFT?"""
    rules = [rule for rule, _ in _rules(config)]
    return all(rule.joined is None and _outputs_first(rule) for rule in rules)


def export_adapters(
    folder: str | os.PathLike,
    cfg: LoraConfig,
    config: DecoderConfig,
    adapters: dict[str, Any],
    *,
    base: str,
) -> None:
    """Write a folder that PEFT and `load_adapters` read. With several processes all must call.

    Args:
        folder: of the adapter; replaced if it is one.
        cfg: rank, alpha and the kind of scale.
        config: of the decoder that is adapted.
        adapters: as `models.lora.init_adapters` lays them out.
        base: folder or name of the model that they belong to.

    Raises:
        ConfigError: the family has no such file, or the folder holds something else.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / CONFIG).exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not an adapter; it is not overwritten")
    _check_family(config)
    tensors, modules = {}, []
    for rule, name in _rules(config):
        pair = adapters["layers"].get(rule.path[1], {}).get(rule.path[2])
        if pair is None:
            continue
        modules.append(_module(rule).rsplit(".", 1)[1])
        a, b = (to_host(pair[part]) for part in _parts(name))
        for n, layer in enumerate(_modules(rule, config)):
            tensors[f"{layer}.lora_A.weight"] = _matrix(a[n], split=-1)
            tensors[f"{layer}.lora_B.weight"] = _matrix(b[n], split=1)
    if jax.process_index() != 0:
        return
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": cfg.rank,
        "lora_alpha": cfg.alpha,
        "use_rslora": cfg.rslora,
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    with replaced(folder) as new:
        save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
        write_json(new / CONFIG, content)


def load_adapters(cfg: LoraConfig, config: DecoderConfig, shapes: dict[str, Any]) -> dict[str, Any]:
    """Read `cfg.adapter` into NumPy arrays, laid out as `shapes`. Dropout of the training that
    made it is passed over: it is no part of what the adapter computes.

    Args:
        cfg: the folder, and what it must hold.
        config: of the decoder to adapt.
        shapes: of `models.lora.adapter_shapes`.

    Raises:
        ConfigError: a file that is missing or cut short; another rank, alpha, scale or other
            targets than `cfg` says; an option that is not supported; a tensor that is missing,
            unknown or of another shape.
    """
    folder = Path(cfg.adapter)
    _check_family(config)
    _check_options(cfg, folder / CONFIG)
    try:
        with safe_open(folder / WEIGHTS, framework="numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise ConfigError(f"{folder / WEIGHTS} is missing") from error
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{folder / WEIGHTS} is cut short or corrupt: {error}") from error
    tree: dict[str, Any] = {}
    for rule, name in _rules(config):
        pair = shapes["layers"].get(rule.path[1], {}).get(rule.path[2])
        if pair is None:
            continue
        arrays = {}
        for part, side in zip(_parts(name), ("A", "B"), strict=True):
            shape = pair[part].shape
            names = [f"{layer}.lora_{side}.weight" for layer in _modules(rule, config)]
            rows = [_take(found, folder, key, shape[1:], side) for key in names]
            arrays[part] = np.stack(rows).astype(pair[part].dtype)
        group = tree.setdefault(rule.path[0], {}).setdefault(rule.path[1], {})
        group[rule.path[2]] = arrays
    if found:
        raise ConfigError(
            f"{folder / WEIGHTS} holds {sorted(found)[0]}, which lora.targets does not name or the "
            "model does not have"
        )
    return tree


def _rules(config: DecoderConfig) -> Iterator[tuple[TensorRule, str]]:
    """The rule of each matrix that this decoder has and an adapter may be of, and its name."""
    names = {tuple(path.split("/")): name for name, (path, _, _) in MATRICES.items()}
    for rule in FAMILIES[config.family].rules(config):
        if rule.path in names:
            yield rule, names[rule.path]


def _parts(name: str) -> tuple[str, str]:
    _, into, out = MATRICES[name]
    return f"a_N{into}U", f"b_NU{out}"


def _outputs_first(rule: TensorRule) -> bool:
    name = next(n for n, (path, _, _) in MATRICES.items() if tuple(path.split("/")) == rule.path)
    return "".join(rule.layout[0]) == MATRICES[name][2]


def _module(rule: TensorRule) -> str:
    return rule.name.removesuffix(".weight")


def _modules(rule: TensorRule, config: DecoderConfig) -> list[str]:
    """The module of every layer, as PEFT names it."""
    return [_PREFIX + name.removesuffix(".weight") for name in rule.names(config.num_layers)]


def _matrix(x: np.ndarray, *, split: int) -> np.ndarray:
    """A [in…, U] or B [U, out…] as a file's matrix: transposed, axes on one side as one."""
    rows = math.prod(x.shape[:split])
    return np.ascontiguousarray(x.reshape(rows, -1).T)


def _take(found, folder: Path, key: str, shape: tuple[int, ...], side: str) -> np.ndarray:
    """Pop one matrix and turn it into our axes."""
    if key not in found:
        raise ConfigError(f"{folder / WEIGHTS}: tensor {key} is missing")
    tensor = found.pop(key)
    rows = math.prod(shape[:-1]) if side == "A" else shape[0]
    wanted = (math.prod(shape) // rows, rows)
    if tensor.shape != wanted:
        raise ConfigError(f"{folder / WEIGHTS}: {key} has shape {tensor.shape}, not {wanted}")
    return tensor.T.reshape(shape)


def _check_family(config: DecoderConfig) -> None:
    if not in_peft_format(config):
        raise ConfigError(
            f"adapters of {config.family} have no file in PEFT's format here: its checkpoints join "
            "matrices, or store them input first"
        )


def _check_options(cfg: LoraConfig, file: Path) -> None:
    raw = read_json(file)
    for name, values in _ONLY.items():
        if raw.get(name, values[0]) not in values:
            raise ConfigError(f"{file}: {name}={raw[name]!r}; supported: {values[0]!r}")
    said = {"r": cfg.rank, "lora_alpha": cfg.alpha, "use_rslora": cfg.rslora}
    for name, value in said.items():
        found = raw.get(name, False if name == "use_rslora" else None)
        if found != value:
            ours = {"r": "rank", "lora_alpha": "alpha", "use_rslora": "rslora"}[name]
            raise ConfigError(f"{file}: {name}={found}, but lora.{ours}={value}; set it to that")
