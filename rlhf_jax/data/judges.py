"""Judges: rankings from a noisy one, and what can be said of labels without a reward model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import permutations
from typing import Any

import numpy as np

from rlhf_jax.data.comparisons import PARTS, read_samples, split_by_prompt
from rlhf_jax.data.rankings import RankedSet, read_ranking
from rlhf_jax.errors import ConfigError, check_choice, check_number

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


def as_pairs(rows: Sequence[Row]) -> list[Row]:
    """Every ordered pair of a row's completions as a row of its own, {"prompt", "chosen",
    "rejected"}, with "chosen_score" and "rejected_score" where the row has scores."""
    pairs = []
    for number, row in enumerate(rows):
        completions, rank = read_ranking(row, f"row {number}")
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


def length_rule_accuracy(train: RankedSet, held_out: RankedSet) -> float:
    """Share of held-out ordered pairs that the best rule of length alone gets right.

    The rule: the longer completion wins where it is longer by more than t tokens and the shorter
    one otherwise, or the other way round; t ≥ 0 and the way are those that are right most often
    on the training pairs. Equal lengths are half right. What a reward model must beat to have
    read anything.
    """
    known, asked = length_leads(train), length_leads(held_out)
    rules = [(t, way) for t in np.unique([0, *abs(known)]) for way in (1, -1)]
    best = max(rules, key=lambda rule: _right(known, *rule))
    return _right(asked, *best)


def length_leads(data: RankedSet) -> np.ndarray:
    """By how many tokens the preferred completion of each ordered pair is longer."""
    leads = [
        len(ids[i]) - len(ids[j])
        for ids, rank in zip(data.ids, data.ranks, strict=True)
        for i, j in permutations(range(len(rank)), 2)
        if rank[i] < rank[j]
    ]
    return np.asarray(leads, int)


def _right(leads: np.ndarray, t: int, way: int) -> float:
    said = way * np.where(abs(leads) > t, leads, -leads)
    return float(np.mean((np.sign(said) + 1) / 2)) if len(leads) else 0.5
