"""Completions of one prompt in an order of preference: what a reward model learns from.

Tokenised as `models.reward` says, from the texts alone: as the trained model will meet them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import grain
import numpy as np

from rlhf_jax.data.comparisons import PARTS, read_samples, split_by_prompt
from rlhf_jax.data.lengths import OVER_LONG, tell_lengths, too_long
from rlhf_jax.data.order import batches_in_order, fingerprint, shuffled_batches
from rlhf_jax.data.padding import pad_right
from rlhf_jax.data.texts import check_encodable
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.models.reward import cut_judged, encode_judged
from rlhf_jax.types import RankedBatch

Row = dict[str, Any]


def noisy_rankings(
    rows: Sequence[Row], *, temperature: float, seed: int, sides: int | None = None
) -> list[Row]:
    """Rankings as a noisy judge gives them, after Plackett (1975) and Luce (1959).

    The best is i with probability ∝ exp(s_i/τ), then the next of those that are left, …: the order
    of s_i/τ + Gumbel noise. Of any two completions, P(i before j) = σ((s_i − s_j)/τ), which is what
    `comparisons.bt_pairs` draws, but here all pairs of a prompt agree with one order. Completions
    of equal text are one.

    Args:
        rows: {"prompt", "completions", "scores"}; a completion whose score is None is left out,
            and so is a row with less than two.
        temperature: τ > 0, in units of the score.
        seed: of the noise; a row's depends on the seed and the row alone.
        sides: completions of a ranking, taken in their order; what is left over is not ranked.
            None: all of a row.

    Returns:
        rows with "completions" and "scores", and their "ranks".
    """
    if sides is not None:
        check_number("sides", sides, low=2)
    check_number("temperature", temperature, low=0, open_low=True)
    ranked = []
    for row in rows:
        scores = {}
        for text, score in zip(row["completions"], row["scores"], strict=True):
            if score is not None:
                scores.setdefault(text, score)
        texts, size = list(scores), sides or len(scores)
        if size < 2:
            continue
        content = hashlib.sha256(json.dumps([row["prompt"], *texts]).encode()).digest()
        draw = np.random.default_rng([seed, int.from_bytes(content[:8], "big")])
        for start in range(0, len(texts) - size + 1, size):
            part = texts[start : start + size]
            true = [scores[text] for text in part]
            noisy = np.array(true) / temperature + draw.gumbel(size=size)
            ranks = np.argsort(np.argsort(-noisy)).tolist()
            columns = {"completions": part, "scores": true, "ranks": ranks}
            ranked.append({"prompt": row["prompt"], **columns})
    if not ranked:
        least = sides or 2
        raise ConfigError(f"no row has {least} different completions with a score")
    return ranked


def sampled_noisy_rankings(
    *,
    samples: str,
    temperature: float,
    seed: int = 0,
    part: str = "train",
    held_out: int = 100,
    sides: int | None = None,
    pairs: bool = False,
) -> list[Row]:
    """Rankings for an experiment: `noisy_rankings` of the samples in a folder.

    Args:
        samples: folder of drawn samples.
        temperature: of the noisy judge.
        seed: of the noisy judge.
        part: "train" or "held_out".
        held_out: prompts held out, by content: `split_by_prompt`.
        sides: completions of a ranking; None: all of a prompt's.
        pairs: each pair of a ranking as a row of its own.
    """
    check_choice("part", part, PARTS)
    rows = split_by_prompt(read_samples(samples), held_out)[PARTS.index(part)]
    rows = noisy_rankings(rows, temperature=temperature, seed=seed, sides=sides)
    return as_pairs(rows) if pairs else rows


@dataclass(frozen=True, kw_only=True)
class RankedSet:
    """Tokenised completions of at most `max_tokens`, ranked by prompt. Make one with `from_rows`.

    `ids[i][s]` is prompt and completion s of prompt i, `ranks[i][s]` its rank (lower is better),
    `margins[i]` the row's margin, a number or one for each pair of completions.
    """

    ids: list[list[list[int]]]
    ranks: list[list[float]]
    margins: list[Any] | None
    sides: int
    max_tokens: int
    pad_id: int
    num_dropped: int
    num_cut: int

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
        check_choice("over_long", over_long, OVER_LONG)
        check_number("max_tokens", max_tokens, low=2)
        if not rows:
            raise ConfigError(f"{name}: there are no rows")
        with_margin = any("margin" in row for row in rows)
        ids, ranks, margins, num_cut = [], [], [], 0
        for number, row in enumerate(rows):
            where = f"{name}: row {number}"
            completions, order = _read(row, where)
            margin = _margin(row, len(order), where) if with_margin else None
            kept, cut = _fit(row["prompt"], completions, tokenizer, max_tokens, over_long, where)
            left = [s for s, side in enumerate(kept) if side is not None]
            if len(left) >= 2:
                num_cut += cut
                ids.append([kept[s] for s in left])
                ranks.append([order[s] for s in left])
                margins.append(margin[np.ix_(left, left)] if with_margin else None)
        num_dropped = len(rows) - len(ids)
        tell_lengths(name, len(rows), num_dropped, num_cut, max_tokens)
        return cls(
            ids=ids,
            ranks=ranks,
            margins=margins if with_margin else None,
            sides=max(map(len, ids)),
            max_tokens=max_tokens,
            pad_id=tokenizer.pad_id,
            num_dropped=num_dropped,
            num_cut=num_cut,
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

    def batches(self, num_rows: int, seed: int) -> grain.MapDataset:
        """`batches(B, seed)[step]` is the step's `RankedBatch`; rules: `shuffled_batches`."""
        return shuffled_batches(len(self), num_rows, seed, self.take)

    def in_order(self, num_rows: int) -> Iterator[tuple[RankedBatch, np.ndarray]]:
        """Every row once: (batch, weight_B); rules: `batches_in_order`."""
        return batches_in_order(len(self), num_rows, self.take)


def read_judged(
    rows: Sequence[Row], tokenizer, *, max_tokens: int, over_long: str, name: str
) -> list[list[int]]:
    """Ids of rows {"prompt": text, "completion": text}, as `RankedSet.from_rows` makes them."""
    if not rows:
        raise ConfigError(f"{name}: there are no rows")
    found, cut = [], 0
    for number, row in enumerate(rows):
        where = f"{name}: row {number}"
        _check_texts(row.get("prompt"), [row.get("completion")], where)
        texts = (row["prompt"], [row["completion"]])
        (ids,), was_cut = _fit(*texts, tokenizer, max_tokens, over_long, where)
        if ids is not None:
            found.append(ids)
            cut += was_cut
    tell_lengths(name, len(rows), len(rows) - len(found), cut, max_tokens)
    return found


def as_pairs(rows: Sequence[Row]) -> list[Row]:
    """Every ordered pair of a row's completions as a row of its own, {"prompt", "chosen",
    "rejected"}, with "chosen_score" and "rejected_score" where the row has scores."""
    pairs = []
    for number, row in enumerate(rows):
        completions, rank = _read(row, f"row {number}")
        for i, j in permutations(range(len(rank)), 2):
            if rank[i] < rank[j]:
                pair = {"prompt": row["prompt"], "chosen": completions[i]}
                pair["rejected"] = completions[j]
                if "scores" in row:
                    pair["chosen_score"] = row["scores"][i]
                    pair["rejected_score"] = row["scores"][j]
                pairs.append(pair)
    return pairs


def true_score_accuracy(rows: Sequence[Row]) -> float | None:
    """Share of ordered pairs that the scores behind the labels put in the same order.

    The measure of a reward model that learns from labels drawn at random: no more can be expected
    of it than of the true scores themselves. Equal scores are half right, for they leave a coin
    to be tossed.

    Args:
        rows: with "ranks" and "scores", or "chosen_score" and "rejected_score"; None is returned
            where rows lack them, or where the ranks are the scores' own.
    """
    right = []
    for row in rows if all("chosen_score" in row for row in rows) else as_pairs(rows):
        if "chosen_score" not in row or "rejected_score" not in row:
            return None
        lead = row["chosen_score"] - row["rejected_score"]
        right.append(0.5 if lead == 0 else float(lead > 0))
    return float(np.mean(right)) if right else None


def _fit(prompt, completions, tokenizer, max_tokens, over_long, where):
    """Ids of each completion with its prompt, None where it is dropped; was any cut?"""
    kept, cut = [], False
    for text in completions:
        parts = encode_judged(tokenizer, prompt, text)
        long = sum(map(len, parts)) > max_tokens
        if long and over_long == "error":
            name, number = where.rsplit(": row ", 1)
            raise too_long(name, int(number), sum(map(len, parts)), "max_tokens", max_tokens)
        drop = long and over_long == "drop"
        kept.append(None if drop else cut_judged(*parts, max_tokens, over_long))
        cut = cut or (long and not drop and kept[-1] is not None)
    return kept, cut


def _read(row: Row, where: str) -> tuple[list[str], list[float]]:
    """Completions and their ranks."""
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
