"""Hugging Face folders to sharded parameters and back, tensor by tensor.

Loading asks, for every shard of every parameter, for the slices of the file that this shard needs,
and puts each stacked parameter into its sharding before the next is read: a host holds its own
shards and the parts of one parameter, never the model twice. Names and layouts are in
`families.py`, the way between one tensor and ours in `tensors.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental import multihost_utils
from jax.sharding import Sharding
from jax.typing import DTypeLike
from safetensors.numpy import save_file

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.families import FAMILIES
from rlhf_jax.models.family import Family
from rlhf_jax.models.options import axis_sizes, decoder_config, find_family, hf_config
from rlhf_jax.models.tensors import BLOCK, Range, TensorRule, read_piece
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.weights import (
    ONE_FILE,
    Weights,
    open_weights,
    read_json,
    replaced,
    write_json,
)

ShardingOf = Callable[[tuple[str, ...], jax.ShapeDtypeStruct], Sharding | None]

FILE_DTYPES = ("F32", "BF16", "F16")


def read_config(folder: str | os.PathLike, families: dict[str, Family] = FAMILIES) -> DecoderConfig:
    """The decoder's shape from a model folder's config.json.

    Raises:
        ConfigError: no such folder or file, a family or an option that is not supported.
    """
    return _read_config(Path(folder), families)[0]


def check_pretrained(
    folder: str | os.PathLike, families: dict[str, Family] = FAMILIES
) -> DecoderConfig:
    """Refuse what `load_pretrained` would, by the tensors' names and shapes, reading none of them.

    Raises:
        ConfigError: as `load_pretrained`.
    """
    folder = Path(folder)
    config, family = _read_config(folder, families)
    with open_weights(folder) as weights:
        named = weights.named(family.prefix)
        _check_tensors(named, family, config, axis_sizes(config, config.vocab_size))
    return config


def load_pretrained(
    folder: str | os.PathLike,
    *,
    sharding: ShardingOf | None = None,
    dtype: DTypeLike = jnp.float32,
    vocab_padded: int | None = None,
    families: dict[str, Family] = FAMILIES,
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Read a model folder into a nested dict of (sharded) arrays.

    Args:
        folder: holds config.json and model.safetensors, or several files and their index.
        sharding: (path, shape and dtype) -> where the parameter lives; None, or a function that
            returns None: on the default device.
        dtype: of the parameters, whatever the file's.
        vocab_padded: rows of the embedding and columns of the head, at least the file's
            vocabulary; the further ones are zeros. None: as in the file.
        families: what may stand in the folder: language models, or `SCORERS`.

    Returns:
        The config (with `vocab_padded`) and the parameters, as `Model(config).init` lays them out.

    Raises:
        ConfigError: what `read_config` raises; a file that is missing or cut short; a tensor that
            is missing, unknown, of the wrong shape or not a float. File and tensor are named.
    """
    folder = Path(folder)
    config, family = _read_config(folder, families, vocab_padded)
    in_file = axis_sizes(config, config.vocab_size)
    in_memory = axis_sizes(config, config.vocab_padded)
    params: dict[str, Any] = {}
    with open_weights(folder) as weights:
        weights = weights.named(family.prefix)
        _check_tensors(weights, family, config, in_file)
        for rule in family.rules(config):
            struct = jax.ShapeDtypeStruct(rule.shape(in_memory), dtype)
            where = sharding(rule.path, struct) if sharding else None
            _set(params, rule.path, _load_parameter(weights, rule, in_file, struct, where))
    return config, params


def export_pretrained(
    folder: str | os.PathLike,
    config: DecoderConfig,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    *,
    families: dict[str, Family] = FAMILIES,
    options: dict[str, Any] | None = None,
    beside: dict[str, dict[str, Any]] | None = None,
) -> None:
    """Write a folder that transformers loads: weights, config, end ids, tokenizer.

    The folder appears whole or not at all: it is written beside its place and renamed. A model
    folder that is there already is replaced. With several processes all must call; the first
    writes. Padded vocabulary is stripped, the dtype is the parameters'.

    Args:
        folder: of the model.
        config: the decoder's shape.
        params: as `load_pretrained` returns them.
        tokenizer: is written beside them.
        families: as in `load_pretrained`; the one that `config` names is written.
        options: further entries of config.json.
        beside: further JSON files, name -> content.

    Raises:
        ConfigError: the folder exists and is not a model folder, the tokenizer has ids that the
            model lacks, or the config asks for what its family has no option for.
        ValueError: `params` are not the parameters that `config` describes.
    """
    folder, family = Path(folder), families[config.family]
    if folder.exists() and not (folder / "config.json").exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} exists and is not a model folder; it is not overwritten")
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size} rows"
        )
    raw = hf_config(family, config, str(jax.tree.leaves(params)[0].dtype))
    _check_tree(params, family, config)
    tensors, writes = {}, jax.process_index() == 0
    for name, tensor in _file_tensors(params, family, config):
        if writes:
            tensors[name] = tensor
    if not writes:
        return
    ends = list(tokenizer.end_ids)
    # No pad in config.json, not even a family's own default: torch stops the gradient of that row,
    # which may be an end, and fails if there is no such row.
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": ends, "pad_token_id": None}
    with replaced(folder) as new:
        save_file(tensors, new / ONE_FILE, metadata={"format": "pt"})
        tokenizer.save(new)
        raw |= {**ids, **(options or {})}
        for name, content in {"config.json": raw, **(beside or {})}.items():
            write_json(new / name, content)


def _read_config(
    folder: Path, families: dict[str, Family], vocab_padded: int | None = None
) -> tuple[DecoderConfig, Family]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; a model folder holds config.json")
    file = folder / "config.json"
    raw = read_json(file)
    family = find_family(raw, str(file), families)
    return decoder_config(family, raw, str(file), vocab_padded), family


def _check_tensors(
    weights: Weights, family: Family, config: DecoderConfig, sizes: dict[str, int]
) -> None:
    """Every tensor that is needed, of its shape, and none besides."""
    wanted = {
        name: rule.file_shape(sizes)
        for rule in family.rules(config)
        for name in rule.names(config.num_layers)
    }
    missing = [name for name in wanted if name not in weights.file_of]
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ConfigError(f"{weights.folder}: tensor {missing[0]}{others} is missing")
    for name, shape in wanted.items():
        view = weights.view(name)
        if tuple(view.get_shape()) != shape:
            raise ConfigError(
                f"{weights.where(name)} has shape {view.get_shape()}, config.json says {shape}"
            )
        if view.get_dtype() not in FILE_DTYPES:
            raise ConfigError(
                f"{weights.where(name)} is {view.get_dtype()}; supported: {', '.join(FILE_DTYPES)}"
            )
    for name in weights.file_of:
        if name in wanted or any(re.fullmatch(p, name) for p in family.passed_over):
            continue
        if name == family.untied_head.name and _same_as_embedding(weights, family):
            continue
        raise ConfigError(f"{weights.where(name)} is in the file but not in the architecture")


def _same_as_embedding(weights: Weights, family: Family) -> bool:
    """A tied checkpoint may hold its head as well; then it must be the same numbers."""
    embed, head = weights.view(family.tensors[0].name), weights.view(family.untied_head.name)
    if embed.get_shape() != head.get_shape():
        return False
    rows, width = embed.get_shape()
    step = max(1, BLOCK // width)
    cuts = [slice(n, min(n + step, rows)) for n in range(0, rows, step)]
    return all(np.array_equal(embed[cut], head[cut]) for cut in cuts)


def _load_parameter(
    weights: Weights,
    rule: TensorRule,
    sizes: dict[str, int],
    struct: jax.ShapeDtypeStruct,
    sharding: Sharding | None,
) -> Array:
    pieces: dict[tuple[Range, ...], np.ndarray] = {}  # replicas are read once

    def piece(index: tuple[slice, ...]) -> np.ndarray:
        ranges = tuple(s.indices(n)[:2] for s, n in zip(index, struct.shape, strict=True))
        if ranges not in pieces:
            pieces[ranges] = read_piece(weights.view, rule, sizes, ranges, struct.dtype)
        return pieces[ranges]

    if sharding is None:
        x = jax.device_put(piece((slice(None),) * len(struct.shape)))
    else:
        x = jax.make_array_from_callback(struct.shape, sharding, piece, dtype=struct.dtype)
    return jax.block_until_ready(x)  # else the next is read while this one is held twice


def _file_tensors(
    params: dict[str, Any], family: Family, config: DecoderConfig
) -> Iterator[tuple[str, np.ndarray]]:
    """(name, tensor as in a file), one layer at a time."""
    sizes = axis_sizes(config, config.vocab_size)
    for _, parts in groupby(family.rules(config), key=lambda rule: rule.name):
        rules = list(parts)
        arrays = [_get(params, rule.path) for rule in rules]
        for n, name in enumerate(rules[0].names(config.num_layers)):
            blocks = [
                rule.to_file(_to_host(x[n] if rule.stacked else x), sizes)
                for rule, x in zip(rules, arrays, strict=True)
            ]
            tensor = blocks[0] if len(rules) == 1 else np.concatenate(blocks, rules[0].joined)
            yield name, np.ascontiguousarray(tensor).reshape(rules[0].file_shape(sizes))


def _to_host(x: Array) -> np.ndarray:
    if x.is_fully_addressable:
        return np.asarray(x)
    return multihost_utils.process_allgather(x, tiled=True)


def _check_tree(params: dict[str, Any], family: Family, config: DecoderConfig) -> None:
    sizes = axis_sizes(config, config.vocab_padded)
    wanted = {"/".join(rule.path): rule.shape(sizes) for rule in family.rules(config)}
    leaves = jax.tree.leaves_with_path(params)
    found = {jax.tree_util.keystr(p, simple=True, separator="/"): x.shape for p, x in leaves}
    for path in wanted.keys() | found.keys():
        if wanted.get(path) != found.get(path):
            raise ValueError(
                f"parameter {path}: shape {found.get(path)}, the config says {wanted.get(path)}"
            )


def _get(tree: dict[str, Any], path: tuple[str, ...]) -> Array:
    for key in path:
        tree = tree[key]
    return tree


def _set(tree: dict[str, Any], path: tuple[str, ...], value: Array) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value
