"""Completions of one prompt in an order of preference: what a reward model learns from.

Tokenised as `models.reward` says, from the texts alone: as the trained model will meet them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.padding import pad_right
from rlhf_jax.data.rows import TokenRows, check_rows, fit_rows
from rlhf_jax.data.texts import check_encodable
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.models.reward import cut_judged, encode_judged
from rlhf_jax.types import RankedBatch

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RankedSet(TokenRows):
    """Tokenised completions of at most `max_tokens`, ranked by prompt. Make one with `from_rows`.

    `ids[i][s]` is prompt and completion s of prompt i, `ranks[i][s]` its rank (lower is better),
    `margins[i]` the row's margin, a number or one for each pair of completions.
    """

    ids: list[list[list[int]]]
    ranks: list[list[float]]
    margins: list[Any] | None
    sides: int
    max_tokens: int

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        tokenizer,
        *,
        max_tokens: int,
        over_long: str = "error",
        name: str = "rankings",
    ) -> RankedSet:
        """Tokenise rows of {"prompt": text, "completions": [texts], "ranks" or "scores": numbers}.

        Or of {"prompt", "chosen", "rejected"}: two completions, the first preferred. Ranks: lower
        is better; scores: higher is better; equal is a tie, of which nothing is learnt. A row may
        hold "margin": by how much the better should lead, a number ≥ 0 or a matrix of them, one
        for each pair of completions (Llama 2, 2307.09288, eq. 2); all rows or none.

        Args:
            rows: records of a dataset.
            tokenizer: has encode(text, add_bos=), append_end(ids), pad_id.
            max_tokens: T, the columns of every batch.
            over_long: what becomes of a completion that is too long with its prompt: "error"
                names the row; "drop" leaves the completion out; "left" cuts the beginning of its
                prompt, "right" the completion before its end token. A row with less than two
                completions left is dropped.
            name: of the dataset, for messages.

        Raises:
            ConfigError: no rows, a field missing or of another type, lists of unequal length,
                fewer than two completions, a completion too long under "error", or no row left.
        """
        check_rows(rows, name)
        with_margin = any("margin" in row for row in rows)

        def encode(row: Row, where: str) -> tuple:
            completions, ranks = read_ranking(row, where)
            sides = [encode_judged(tokenizer, row["prompt"], text) for text in completions]
            return sides, ranks, _margin(row, len(ranks), where) if with_margin else None

        def fit(item: tuple, side: str) -> tuple | None:
            sides, ranks, margin_SS = item
            found = [cut_judged(*parts, max_tokens, side) for parts in sides]
            left = [s for s, parts in enumerate(found) if parts is not None]
            if with_margin:
                margin_SS = margin_SS[np.ix_(left, left)]
            fitting = [found[s] for s in left], [ranks[s] for s in left], margin_SS
            return fitting if len(left) >= 2 else None

        kept = fit_rows(
            rows,
            encode,
            lambda item: max(map(_length, item[0])),
            fit,
            limit=max_tokens,
            over_long=over_long,
            name=name,
            drop=lambda item: fit(item, "drop"),
        )
        ids = [[prompt + completion for prompt, completion in sides] for sides, _, _ in kept.items]
        return cls(
            ids=ids,
            ranks=[ranks for _, ranks, _ in kept.items],
            margins=[margin_SS for _, _, margin_SS in kept.items] if with_margin else None,
            sides=max(map(len, ids)),
            max_tokens=max_tokens,
            **kept.options(tokenizer.pad_id),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """Changes with any text, rank or margin, or the order of the rows."""
        return fingerprint(zip(self.ids, self.ranks, self.margins or self.ranks, strict=True))

    def take(self, index_B: np.ndarray) -> RankedBatch:
        """The rows at these positions, as NumPy arrays [B, S, T]."""
        index, width = [int(i) for i in index_B], self.sides
        shape = (len(index), width)
        valid_BS = np.zeros(shape, bool)
        rank_BS = np.zeros(shape, np.float32)
        margin_BSS = np.zeros((*shape, width), np.float32)
        flat = []
        for b, i in enumerate(index):
            n = len(self.ids[i])
            valid_BS[b, :n], rank_BS[b, :n] = True, self.ranks[i]
            if self.margins:
                margin_BSS[b, :n, :n] = self.margins[i]
            flat += self.ids[i] + [[]] * (width - n)
        tokens, attend = pad_right(flat, self.max_tokens, self.pad_id)
        return RankedBatch(
            tokens_BST=tokens.reshape(*shape, -1),
            attend_BST=attend.reshape(*shape, -1),
            rank_BS=rank_BS,
            valid_BS=valid_BS,
            margin_BSS=margin_BSS if self.margins else None,
        )


def read_judged(
    rows: Sequence[Row], tokenizer, *, max_tokens: int, over_long: str, name: str
) -> list[list[int]]:
    """Ids of rows {"prompt": text, "completion": text}, as `RankedSet.from_rows` makes them."""

    def encode(row: Row, where: str) -> tuple[list[int], list[int]]:
        _check_texts(row.get("prompt"), [row.get("completion")], where)
        return encode_judged(tokenizer, row["prompt"], row["completion"])

    def fit(parts, side: str):
        return cut_judged(*parts, max_tokens, side)

    options = dict(limit=max_tokens, over_long=over_long, name=name)
    kept = fit_rows(rows, encode, _length, fit, **options)
    return [prompt + completion for prompt, completion in kept.items]


def _length(parts: tuple[list[int], list[int]]) -> int:
    return sum(map(len, parts))


def read_ranking(row: Row, where: str) -> tuple[list[str], list[float]]:
    """Completions and their ranks, from ranks, scores or a pair.

    Raises:
        ConfigError: as `RankedSet.from_rows`.
    """
    if "chosen" in row:
        row = {**row, "completions": [row["chosen"], row.get("rejected")], "ranks": [0, 1]}
    completions = row.get("completions")
    if not isinstance(completions, list) or len(completions) < 2:
        raise ConfigError(
            f"{where}: 'completions' is {completions!r}, not a list of at least two texts (and "
            "there is no pair of 'chosen' and 'rejected')"
        )
    _check_texts(row.get("prompt"), completions, where)
    field, sign = ("ranks", 1) if "ranks" in row else ("scores", -1)
    numbers = row.get(field)
    if not isinstance(numbers, list) or len(numbers) != len(completions):
        raise ConfigError(
            f"{where}: {field!r} is {numbers!r}, not a list of {len(completions)} numbers"
        )
    for value in numbers:
        check_number(f"{where}: {field!r}", value)
    numbers = [sign * value for value in numbers]
    # places, since scores need not stay distinct as float32
    return completions, [float(sum(x < y for x in numbers)) for y in numbers]


def _check_texts(prompt: Any, completions: Sequence[Any], where: str) -> None:
    for field, text in [("prompt", prompt), *(("completion", text) for text in completions)]:
        if not isinstance(text, str):
            raise ConfigError(f"{where}: {field!r} is {text!r}, not a string")
        check_encodable(where, field, text)


def _margin(row: Row, sides: int, where: str) -> np.ndarray:
    """The row's margins of every pair."""
    try:
        margin = np.asarray(row.get("margin"), np.float32)
        margin_SS = np.broadcast_to(margin, (sides, sides))
        if margin.ndim not in (0, 2) or not (np.isfinite(margin_SS) & (margin_SS >= 0)).all():
            raise ValueError
    except (TypeError, ValueError):
        raise ConfigError(
            f"{where}: 'margin' is {row.get('margin')!r}, neither a number ≥ 0 nor "
            f"{sides} x {sides} of them (all rows have one, or none has)"
        ) from None
    return margin_SS
