"""Preferences as token rows: pairs of completions of one prompt.

Tokenised as demonstrations are; ids that a sampler drew are taken as they are (`encode_row`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.data.encode import encode_row
from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.padding import fit_sides, pad_right
from rlhf_jax.data.prompts import read_jsonl
from rlhf_jax.data.rows import Kept, TokenRows, fit_rows
from rlhf_jax.data.texts import split_rendered
from rlhf_jax.errors import check_number
from rlhf_jax.types import PreferenceBatch, replace

Row = dict[str, Any]
SIDES = ("chosen", "rejected")


def jsonl_pairs(*, path: str, rendered: bool = False) -> list[Row]:
    """Rows {"prompt", "chosen", "rejected"} of a JSON-lines file.

    Args:
        path: of the file.
        rendered: chosen and rejected are whole dialogues that hold the prompt too, as a chat
            template renders them; the row's own prompt may be absent. See `split_rendered`.

    Raises:
        ConfigError: as `read_jsonl`.
    """
    if not rendered:
        return read_jsonl(path, required=("prompt", *SIDES))
    rows = []
    for row in read_jsonl(path, required=SIDES):
        texts = [row[side] for side in SIDES]
        prompt, sides = split_rendered(*texts, prompt=row.get("prompt"))
        rows.append({**row, "prompt": prompt, **dict(zip(SIDES, sides, strict=True))})
    return rows


@dataclass(frozen=True, kw_only=True)
class PreferenceSet(TokenRows):
    """Tokenised pairs of at most `max_tokens` a side. Make one with `from_rows`.

    `completions` are (chosen, rejected). `num_identical` pairs have two sides of the same ids:
    they stay (their loss is that of a tie, their gradient 0) and are told. `logp_ref_BS` is set by
    `with_reference`.
    """

    prompts: list[list[int]]
    completions: list[list[list[int]]]
    weights: list[float] | None
    max_tokens: int
    num_identical: int
    logp_ref_BS: np.ndarray | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        tokenizer,
        *,
        max_tokens: int,
        over_long: str = "error",
        name: str = "preferences",
    ) -> PreferenceSet:
        """Tokenise rows of {"prompt": text, "chosen": text, "rejected": text}.

        A row may also hold "weight", a number ≥ 0 (all rows or none), and the ids as sampled
        ("prompt_ids", "chosen_ids", "rejected_ids").

        Args:
            rows: records of a dataset.
            tokenizer: has encode(text, add_bos=), append_end(ids), pad_id.
            max_tokens: T, the columns of every batch.
            over_long: of the pair as a whole. "error" names the row; "drop" leaves it out; "left"
                cuts the prompt of both sides by what the longer one has too many, "right" the end
                of each side that is too long. A pair of which anything would vanish is dropped.
            name: of the dataset, for messages.

        Raises:
            ConfigError: no rows, a text or weight missing or of another type, an empty prompt, a
                pair too long under "error", or no pair left.
        """
        kept = read_rows(rows, SIDES, tokenizer, max_tokens, over_long, name)
        weights = _weights(rows, name)
        identical = sum(sides[0] == sides[1] for _, sides in kept.items)
        if identical:
            logging.getLogger(__name__).warning(
                "%s: %d of %d pairs have a chosen and a rejected side that are the same: "
                "they teach nothing",
                *(name, identical, len(kept.items)),
            )
        return cls(
            prompts=[prompt for prompt, _ in kept.items],
            completions=[sides for _, sides in kept.items],
            weights=weights and [weights[number] for number in kept.numbers],
            max_tokens=max_tokens,
            **kept.options(tokenizer.pad_id),
            num_identical=identical,
        )

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def fingerprint(self) -> str:
        """Changes with any pair, its weight, where its completions begin, or their order."""
        return fingerprint(zip(self.prompts, self.completions, self._weight(), strict=True))

    def _weight(self):
        return self.weights or [None] * len(self)

    def with_reference(self, logp_ref_BS: np.ndarray) -> PreferenceSet:
        """The same pairs with log π_ref of each side, summed over its counted tokens."""
        check_reference(self, logp_ref_BS, (2,))
        return replace(self, logp_ref_BS=logp_ref_BS)

    def take(self, index_B: np.ndarray) -> PreferenceBatch:
        """The pairs at these positions, as NumPy arrays [B, 2, T]."""
        index = [int(i) for i in index_B]
        sides = [
            padded([(self.prompts[i], self.completions[i][side]) for i in index], self)
            for side in (0, 1)
        ]
        tokens, attend, mask = (np.stack(arrays, axis=1) for arrays in zip(*sides, strict=True))
        weights = self.weights and np.asarray([self.weights[i] for i in index], np.float32)
        return PreferenceBatch(
            tokens_BST=tokens,
            attend_BST=attend,
            mask_BST=mask,
            logp_ref_BS=None if self.logp_ref_BS is None else self.logp_ref_BS[index],
            weight_B=weights,
        )


def read_rows(
    rows: Sequence[Row],
    fields: Sequence[str],
    tokenizer,
    max_tokens: int,
    over_long: str,
    name: str,
) -> Kept:
    """Items (prompt ids, ids of each field) of the rows that fit.

    Raises:
        ConfigError: as `fit_rows` and `encode_row`.
    """
    return fit_rows(
        rows,
        lambda row, where: encode_row(row, tokenizer, where, fields),
        lambda item: len(item[0]) + max(map(len, item[1])),
        lambda item, side: fit_sides(*item, max_tokens, side),
        limit=max_tokens,
        over_long=over_long,
        name=name,
    )


def _weights(rows: Sequence[Row], name: str) -> list[float] | None:
    """The rows' weights; None where no row has one."""
    if not any("weight" in row for row in rows):
        return None
    for number, row in enumerate(rows):
        check_number(f"{name}: row {number}: 'weight'", row.get("weight"), low=0)
    return [float(row["weight"]) for row in rows]


def padded(rows: Sequence[tuple[list[int], list[int]]], data) -> tuple[np.ndarray, ...]:
    """tokens, attend, mask of (prompt, completion) rows; the mask comes from lengths, not ids."""
    tokens_BT, attend_BT = pad_right([p + c for p, c in rows], data.max_tokens, data.pad_id)
    prompt_B = np.asarray([len(p) for p, _ in rows])
    return tokens_BT, attend_BT, attend_BT & (np.arange(data.max_tokens) >= prompt_B[:, None])


def check_reference(data, logp: np.ndarray, shape: tuple[int, ...] = ()) -> None:
    """Refuse log-probs that are not one (or one of each side) for every row of the set."""
    if logp.shape != (len(data), *shape):
        raise ValueError(f"reference log-probs have shape {logp.shape}, the set {len(data)} rows")
