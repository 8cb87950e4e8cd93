"""Reward models: a decoder's trunk and a scalar head that reads the last real token.

What is read, the same in training, measuring and use: the prompt's ids as the checkpoint's own
template makes them (BOS included), the completion's as they follow it, and the end token, always. A
text does not tell whether its writer ended it or was cut off at the length limit, so both are
closed alike and the number is always read at an end token; what a missing end costs is for the
policy's objective to say. Texts are tokenised here anew: the policy's tokenizer may be another one.

On disk a reward model is a folder of transformers' `…ForSequenceClassification` with one label.
That layout has no place for the head's bias: it is in `reward_model.json` beside the weights. For
the same ids transformers gives our number less that bias, so the same differences between
completions, the same preferences and the same advantages.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh, NamedSharding
from jax.typing import DTypeLike

from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import (
    check_pretrained,
    export_pretrained,
    load_pretrained,
    read_config,
)
from rlhf_jax.models.families import FAMILIES, SCORERS
from rlhf_jax.models.heads import init_reward_head, scalar_at_last
from rlhf_jax.models.tokenizer import Tokenizer, encode_after
from rlhf_jax.models.transformer import Model
from rlhf_jax.models.weights import read_json
from rlhf_jax.parallel.sharding import constrain_rows, padded_vocab, spec_for

NOTES = "reward_model.json"
OVER_LONG = ("error", "drop", "left", "right")


@dataclass(frozen=True, kw_only=True)
class RewardNotes:
    """What a reward model's folder knows beside its weights.

    max_tokens: longest row it was trained on, prompt, completion and end token; None: not known
    over_long: what became of longer rows in training, and becomes of them in use
    gain, bias: of its normalisation, score = gain · raw + bias; folded into the head already, for
        the record. 1 and 0 where there was none.
    """

    max_tokens: int | None
    over_long: str = "error"
    gain: float = 1.0
    bias: float = 0.0


class RewardModel(NamedTuple):
    """`params`: {"trunk": a decoder's without a language-model head, "head": {"w_D", "b"}}."""

    model: Model
    params: dict[str, Any]
    notes: RewardNotes


def forward_scores(
    model: Model, params: Any, tokens_BT: Array, attend_BT: Array, *, mesh: Mesh | None = None
) -> Array:
    """score_B of whole rows, float32: the head at each row's last real token.

    Args:
        model: decoder of the trunk.
        params: {"trunk", "head"}.
        tokens_BT, attend_BT: rows padded on either side, or not at all.
        mesh: keeps rows split over it.
    """
    hidden_BTD = constrain_rows(mesh, model.hidden(params["trunk"], tokens_BT, attend_BT))
    return scalar_at_last(params["head"], hidden_BTD, attend_BT)


def encode_judged(tokenizer: Tokenizer, prompt: str, completion: str) -> tuple[list, list]:
    """Ids of a prompt, and of its completion with the end token: what a reward model reads."""
    ids = list(tokenizer.encode(prompt))
    return ids, tokenizer.append_end(encode_after(tokenizer, prompt, ids, completion))


def cut_judged(
    prompt: list[int], completion: list[int], max_tokens: int, side: str
) -> tuple[list[int], list[int]] | None:
    """Prompt and completion in at most `max_tokens`, the end token kept: the head reads it.

    "left" cuts the beginning of the prompt, "right" the completion before its end token, by
    exactly the surplus. None: nothing of the prompt, or of the completion but the end, would be
    left; or it is too long, and `side` is neither of them.
    """
    surplus = len(prompt) + len(completion) - max_tokens
    if surplus <= 0:
        return prompt, completion
    if side == "left" and surplus < len(prompt):
        return prompt[surplus:], completion
    kept = len(completion) - 1 - surplus
    if side == "right" and kept > 0:
        return prompt, completion[:kept] + completion[-1:]
    return None


def is_reward_model(folder: str | os.PathLike) -> bool:
    """Does the folder's config.json name an architecture of reward models?"""
    file = Path(folder) / "config.json"
    names = read_json(file).get("architectures") or () if file.exists() else ()
    return any("SequenceClassification" in str(name) for name in names)


def read_trunk_config(folder: str | os.PathLike) -> DecoderConfig:
    """Shape of the trunk in a folder of a reward model or a language model.

    Raises:
        ConfigError: as `read_config`.
    """
    families = SCORERS if is_reward_model(folder) else FAMILIES
    return _without_vocabulary_head(read_config(folder, families))


def load_reward_model(
    folder: str | os.PathLike,
    *,
    mesh: Mesh | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: str = "none",
) -> RewardModel:
    """Read a reward model: for scoring, or as a critic to begin with.

    The normalisation is in the head: what `forward_scores` gives is the normalised score.

    Args:
        folder: as `export_reward_model` writes it; or of another trainer, in transformers' layout,
            whose bias is then 0, and of whose rows nothing is known.
        mesh: where the parameters live; None: on the default device.
        compute_dtype, remat: of `Model`.

    Raises:
        ConfigError: as `check_reward_model`.
    """
    folder = Path(folder)
    notes, bias = check_reward_model(folder)
    model, params = _load(folder, SCORERS, mesh, compute_dtype, remat)
    head = {"w_D": params.pop("head")["w_D"], "b": jnp.float32(bias)}
    return RewardModel(model, {"trunk": params, "head": head}, notes)


def check_reward_model(folder: str | os.PathLike) -> tuple[RewardNotes, float]:
    """Refuse a folder that holds no reward model, before its weights are read; -> `read_notes`.

    Raises:
        ConfigError: no such folder, a language model, several labels, or what `check_pretrained`
            and `read_notes` raise.
    """
    folder = Path(folder)
    raw = read_json(folder / "config.json") if folder.is_dir() else {}
    if raw and not is_reward_model(folder):
        raise ConfigError(
            f"{folder} is not a reward model: its config.json names "
            f"{' and '.join(raw.get('architectures') or ['no architecture'])}, a reward model's "
            f"{' or '.join(family.architecture for family in SCORERS.values())}"
        )
    labels = raw.get("num_labels", len(raw.get("id2label") or "1"))
    if labels != 1:
        raise ConfigError(f"{folder} is a classifier of {labels} labels; a reward model has one")
    check_pretrained(folder, SCORERS)
    return read_notes(folder)


def begin_reward_model(
    folder: str | os.PathLike,
    key: Array,
    *,
    mesh: Mesh | None = None,
    compute_dtype: DTypeLike = jnp.float32,
    remat: str = "none",
) -> tuple[Model, dict[str, Any]]:
    """Model and {"trunk", "head"} to train: a language model with a new head, or a reward model.

    Args:
        folder: of either kind.
        key: draws the new head.
        mesh, compute_dtype, remat: as in `load_reward_model`.

    Raises:
        ConfigError: as `load_reward_model`.
    """
    if is_reward_model(folder):
        options = dict(mesh=mesh, compute_dtype=compute_dtype, remat=remat)
        return load_reward_model(folder, **options)[:2]
    model, trunk = _load(Path(folder), FAMILIES, mesh, compute_dtype, remat)
    trunk.pop("head", None)  # nothing reads the vocabulary's head
    return model, {"trunk": trunk, "head": init_reward_head(key, model.config.d_model)}


def export_reward_model(
    folder: str | os.PathLike,
    config: DecoderConfig,
    params: dict[str, Any],
    tokenizer: Tokenizer,
    notes: RewardNotes,
) -> None:
    """Write a folder that `load_reward_model` and transformers' AutoModel read.

    Raises:
        ConfigError, ValueError: as `export_pretrained`.
    """
    # transformers looks for the last id that is not the pad: an id that ends rows must not be it.
    # Without one it takes rows one at a time, and refuses several instead of reading them wrong.
    pad = None if tokenizer.pad_id in tokenizer.end_ids else tokenizer.pad_id
    options = {
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "problem_type": "regression",  # else its pipeline takes the sigmoid
        "pad_token_id": pad,
    }
    flat = {**params["trunk"], "head": {"w_D": params["head"]["w_D"]}}
    export_pretrained(
        folder,
        config,
        flat,
        tokenizer,
        families=SCORERS,
        options={name: value for name, value in options.items() if value is not None},
        beside={NOTES: {"head_bias": float(params["head"]["b"]), **asdict(notes)}},
    )


def read_notes(folder: Path) -> tuple[RewardNotes, float]:
    """What stands beside the weights: the notes, and the head's bias.

    Raises:
        ConfigError: an entry that is missing, unknown or not a number.
    """
    file = folder / NOTES
    if not file.exists():
        return RewardNotes(max_tokens=None, over_long="right"), 0.0
    raw = read_json(file)
    wanted = {"head_bias", *RewardNotes.__dataclass_fields__}
    if raw.keys() != wanted:
        odd = ", ".join(sorted(raw.keys() ^ wanted))
        raise ConfigError(f"{file}: missing or unknown: {odd}")
    for name in ("head_bias", "gain", "bias"):
        check_number(f"{file}: {name}", raw[name])
    if raw["max_tokens"] is not None:
        check_number(f"{file}: max_tokens", raw["max_tokens"], low=2)
    check_choice(f"{file}: over_long", raw["over_long"], OVER_LONG)
    bias = raw.pop("head_bias")
    return RewardNotes(**raw), bias


def _load(folder: Path, families, mesh: Mesh | None, compute_dtype, remat: str):
    def sharding(path, struct):
        if mesh is None:
            return None
        return NamedSharding(mesh, spec_for("/".join(path), struct.shape, mesh))

    vocab = read_config(folder, families).vocab_size
    padded = None if mesh is None else padded_vocab(vocab, mesh.shape["tensor"])
    config, params = load_pretrained(
        folder, sharding=sharding, vocab_padded=padded, families=families
    )
    return Model(_without_vocabulary_head(config), compute_dtype, remat), params


def _without_vocabulary_head(config: DecoderConfig) -> DecoderConfig:
    # a decoder whose head would be its embedding has no further parameter
    return replace(config, tie_embeddings=True)
