"""Scores of a trained reward model."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.reward import (
    NOTES,
    RewardNotes,
    check_reward_model,
    cut_judged,
    encode_judged,
    forward_scores,
    load_reward_model,
    read_trunk_config,
)
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.weights import fingerprint
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import ROW_AXES, row_shards, shard_rows
from rlhf_jax.rewards.notes import reads_files


def _look(*, model: str, max_tokens: int | None = None, batch_rows: int = 64) -> str:
    """The reward model's fingerprint; it is refused if `learned` could not use it."""
    notes, _ = check_reward_model(model)
    config = read_trunk_config(model)
    _tokenizer(model, config)
    _columns(model, config, notes, max_tokens)
    check_number("batch_rows", batch_rows, low=1)
    return fingerprint(model)


@reads_files(_look)
def learned(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    model: str,
    max_tokens: int | None = None,
    batch_rows: int = 64,
) -> list[float | None]:
    """What a reward model says of prompt + completion + end token, its normalisation included.

    Texts are tokenised by the reward model's own tokenizer, so the policy may have another; the
    end token is always added, as in training (`models.reward`). The model is read once, and again
    where its folder has been written anew; every pass has one shape, so nothing is compiled after
    the first. Under a mesh it is split over it.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`; rows are not read.
        model: folder of a reward model.
        max_tokens: columns of a pass. None: as many as it was trained with.
        batch_rows: texts of a pass; rounded up to what the mesh divides.

    Returns:
        one score a row; None where cutting to `max_tokens` would leave nothing to judge.

    Raises:
        ConfigError: what `load_reward_model` raises; a text that is longer than `max_tokens` where
            the model was trained without cutting; no `max_tokens` where the folder does not say.
    """
    check_number("batch_rows", batch_rows, low=1)
    written = _written(Path(model))
    tokenizer, config, score, params, notes, mesh = _opened(model, written, _mesh())
    columns = _columns(model, config, notes, max_tokens)
    kept = [
        _ids(tokenizer, prompt, completion, columns, notes.over_long, f"{model}: row {number}")
        for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    ids = [row for row in kept if row is not None]
    size = -(-batch_rows // row_shards(mesh)) * row_shards(mesh)
    scores = []
    for start in range(0, len(ids), size):
        batch = _rectangle(ids[start : start + size], size, columns, tokenizer.pad_id)
        score_B = score(params, *(batch if mesh is None else shard_rows(mesh, batch)))
        scores += to_host(score_B)[: len(ids) - start].tolist()
    found = iter(scores)
    return [None if row is None else next(found) for row in kept]


@lru_cache(maxsize=2)
def _opened(
    folder: str, written: tuple[int, ...], mesh: Mesh | None
) -> tuple[Tokenizer, DecoderConfig, Callable, Any, RewardNotes, Mesh | None]:
    """`written` is only in the key: a folder that another run has replaced is read anew."""
    model, params, notes = load_reward_model(folder, mesh=mesh)
    tokenizer, score = _tokenizer(folder, model.config), partial(forward_scores, model, mesh=mesh)
    return tokenizer, model.config, jax.jit(score), params, notes, mesh


def _tokenizer(folder: str, config: DecoderConfig) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} ids, the model "
            f"{config.vocab_size} rows"
        )
    return tokenizer


def _columns(folder: str, config: DecoderConfig, notes: RewardNotes, max_tokens: int | None) -> int:
    columns = notes.max_tokens if max_tokens is None else max_tokens
    if columns is None:
        raise ConfigError(
            f"{folder} has no {NOTES} that says how long its rows were; give max_tokens"
        )
    check_number(f"{folder}: max_tokens", columns, low=2, high=config.max_positions)
    return columns


def _written(folder: Path) -> tuple[int, ...]:
    files = [folder / name for name in ("config.json", NOTES)]
    return tuple(file.stat().st_mtime_ns for file in files if file.exists())


def _mesh() -> Mesh | None:
    """The mesh that the loop has set, if it has our axes."""
    mesh = jax.sharding.get_mesh()
    return mesh if all(name in mesh.axis_names for name in ROW_AXES) else None


def _ids(tokenizer, prompt, completion, columns, over_long, where) -> list[int] | None:
    parts = encode_judged(tokenizer, prompt, completion)
    length = sum(map(len, parts))
    if length > columns and over_long not in ("left", "right"):
        raise ConfigError(
            f"{where} has {length} tokens, more than max_tokens={columns}; sample fewer, or train "
            'the reward model with a larger max_tokens, or with over_long="left" or "right"'
        )
    kept = cut_judged(*parts, columns, over_long)
    return kept and kept[0] + kept[1]


def _rectangle(ids, size, columns, pad_id) -> tuple[np.ndarray, np.ndarray]:
    """tokens and attend [size, columns], right-padded; rows that are missing attend to nothing."""
    tokens = np.full((size, columns), pad_id, np.int32)
    attend = np.zeros((size, columns), bool)
    for row, row_ids in enumerate(ids):
        tokens[row, : len(row_ids)] = row_ids
        attend[row, : len(row_ids)] = True
    return tokens, attend
