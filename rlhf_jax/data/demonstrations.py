"""Demonstrations to imitate: prompt + completion + end token, right-padded to one length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from rlhf_jax.data.lengths import OVER_LONG, tell_lengths, too_long
from rlhf_jax.data.order import batches_in_order, fingerprint, shuffled_batches
from rlhf_jax.data.padding import pad_right
from rlhf_jax.data.texts import check_encodable
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.types import SFTBatch


def fit(prompt: list[int], completion: list[int], max_tokens: int, side: str):
    """Cut as many tokens as are too many, off the left or the right; None: nothing is left.

    A row without a completion token teaches nothing, and one without a prompt token has nothing
    to predict its first token from; both give None.
    """
    cut = fit_sides(prompt, [completion], max_tokens, side)
    return cut and (cut[0], cut[1][0])


def fit_sides(prompt: list[int], sides: list[list[int]], max_tokens: int, side: str):
    """`fit` for completions that share a prompt: the prompt stays one and the same for all.

    The longest completion decides how much the prompt loses on the left; on the right each
    completion loses what it has too much. None where any completion would vanish.
    """
    surplus = max(0, len(prompt) + max(map(len, sides)) - max_tokens)
    if side == "left":
        prompt = prompt[surplus:] if surplus < len(prompt) else []
    else:
        room = max(0, max_tokens - len(prompt))
        sides = [completion[:room] for completion in sides]
    return (prompt, sides) if prompt and all(sides) else None


@dataclass(frozen=True, kw_only=True)
class DemonstrationSet:
    """Tokenised demonstrations of at most `max_tokens`. Make one with `from_rows`."""

    ids: list[list[int]]
    prompt_length: list[int]
    max_tokens: int
    pad_id: int
    num_dropped: int
    num_cut: int

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[dict[str, Any]],
        tokenizer,
        *,
        max_tokens: int,
        over_long: str = "error",
        name: str = "demonstrations",
    ) -> DemonstrationSet:
        """Tokenise rows of {"prompt": text, "completion": text}.

        The prompt is tokenised by itself, as the sampler meets it, and the completion as it
        follows. The end token is added unless the completion has it already. Rows that a sampler
        drew bring ids, which are imitated as they are: `encode_row`.

        Args:
            rows: records of a dataset.
            tokenizer: has encode(text, add_bos=), append_end(ids), pad_id.
            max_tokens: T, the columns of every batch.
            over_long: "error" names the row; "drop" leaves it out; "left" cuts the beginning of
                the prompt, "right" the end of the completion (and its end token), by exactly
                the surplus. A row whose prompt or completion would vanish is dropped.
            name: of the dataset, for messages.

        Raises:
            ConfigError: no rows, a text missing or of another type, an empty prompt, a row too
                long under "error", or no row left.
        """
        check_choice("over_long", over_long, OVER_LONG)
        check_number("max_tokens", max_tokens, low=2)
        if not rows:
            raise ConfigError(f"{name}: there are no rows")
        kept: list[tuple[list[int], list[int]]] = []
        num_cut = 0
        for number, row in enumerate(rows):
            prompt, (completion,) = encode_row(row, tokenizer, f"{name}: row {number}")
            pair = (prompt, completion)
            length = len(pair[0]) + len(pair[1])
            if length > max_tokens:
                if over_long == "error":
                    raise too_long(name, number, length, "max_tokens", max_tokens)
                pair = None if over_long == "drop" else fit(*pair, max_tokens, over_long)
                num_cut += pair is not None
            if pair is not None:
                kept.append(pair)
        num_dropped = len(rows) - len(kept)
        tell_lengths(name, len(rows), num_dropped, num_cut, max_tokens)
        return cls(
            ids=[prompt + completion for prompt, completion in kept],
            prompt_length=[len(prompt) for prompt, _ in kept],
            max_tokens=max_tokens,
            pad_id=tokenizer.pad_id,
            num_dropped=num_dropped,
            num_cut=num_cut,
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """Changes with any demonstration, with where its completion begins, or their order."""
        return fingerprint(zip(self.prompt_length, self.ids, strict=True))

    def take(self, index_B: np.ndarray) -> SFTBatch:
        """The demonstrations at these positions, as NumPy arrays [B, T].

        The mask comes from lengths, never from ids: where pad and end are one token, the end
        that closes a demonstration is still learnt.
        """
        index = [int(i) for i in index_B]
        tokens_BT, attend_BT = pad_right([self.ids[i] for i in index], self.max_tokens, self.pad_id)
        prompt_B = np.asarray([self.prompt_length[i] for i in index])
        is_response_BT = np.arange(self.max_tokens)[None, :] >= prompt_B[:, None]
        return SFTBatch(
            tokens_BT=tokens_BT, attend_BT=attend_BT, mask_BT=attend_BT & is_response_BT
        )

    def batches(self, num_rows: int, seed: int) -> grain.MapDataset:
        """`batches(B, seed)[step]` is the step's `SFTBatch`; rules: `shuffled_batches`."""
        return shuffled_batches(len(self), num_rows, seed, self.take)

    def in_order(self, num_rows: int) -> Iterator[tuple[SFTBatch, np.ndarray]]:
        """Every demonstration once: (batch, weight_B); rules: `batches_in_order`."""
        return batches_in_order(len(self), num_rows, self.take)


def encode_row(
    row: dict[str, Any], tokenizer, where: str, fields: Sequence[str] = ("completion",)
) -> tuple[list[int], list[list[int]]]:
    """Ids of a row's prompt, and of the completions under `fields`.

    A completion is closed by an end token, unless it has one. Ids that a sampler drew (under a
    field's name + "_ids": "prompt_ids", "completion_ids") are taken as they are: what was drawn is
    not always what its text would be encoded as, and a completion cut off by a length limit has
    no end.

    Args:
        row: texts under "prompt" and `fields`, perhaps their ids.
        tokenizer: has encode(text, add_bos=), append_end(ids), and decode_completion for given ids.
        where: names the row in messages.
        fields: the completions.

    Raises:
        ConfigError: a text is missing or of another type, the prompt has no tokens, or given ids
            do not say their text (so they are another tokenizer's).
    """
    for field in ("prompt", *fields):
        if not isinstance(row.get(field), str):
            raise ConfigError(f"{where}: {field!r} is {row.get(field)!r}, not a string")
        check_encodable(where, field, row[field])
    prompt = _drawn(row, "prompt", where) or list(tokenizer.encode(row["prompt"]))
    if not prompt:
        raise ConfigError(f"{where}: the prompt has no tokens")
    completions = []
    for field in fields:
        ids = _drawn(row, field, where)
        if ids is None:
            ids = tokenizer.append_end(encode_after(tokenizer, row["prompt"], prompt, row[field]))
        elif not ids or tokenizer.decode_completion(prompt, ids) != row[field]:
            raise ConfigError(
                f"{where}: {field}_ids are not this tokenizer's ids of {row[field][:40]!r}; draw "
                f"samples with the model to be trained, or leave {field}_ids out"
            )
        completions.append(ids)
    return prompt, completions


def encode_after(tokenizer, prompt: str, prompt_ids: list[int], completion: str) -> list[int]:
    """Ids of a completion as they follow the prompt's.

    Tokenizers of the sentencepiece kind put a space before every text: encoded alone, " named"
    would begin with two. So the ids are read off the encoded whole where the prompt's begin it;
    where a token would cross the border, the completion is encoded alone.
    """
    whole = list(tokenizer.encode(prompt + completion))
    if whole[: len(prompt_ids)] == prompt_ids:
        return whole[len(prompt_ids) :]
    return list(tokenizer.encode(completion, add_bos=False))


def _drawn(row: dict[str, Any], field: str, where: str) -> list[int] | None:
    """The row's own ids of a field, or None."""
    ids = row.get(f"{field}_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(i) is not int or i < 0 for i in ids):
        raise ConfigError(f"{where}: '{field}_ids' is {ids!r}, not a list of ids")
    return ids
