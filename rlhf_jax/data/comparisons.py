"""Sampled and scored completions -> demonstrations, pairs, labels, rankings. Pure and seeded.

A sample row is what `loops.sampling` writes: a prompt with G completions,
    {"prompt", "prompt_ids", "completions": [G texts], "completion_ids": [G], "scores": [G],
     "ended": [G], other fields of the dataset}
Scores of None mean "no reward function applies": such completions are left out. Every row made
here carries the ids beside the texts, so that what is trained on is what was drawn.

What is drawn for a row depends on the seed and the row alone, not on the rows around it: the same
pairs come out of any subset or order.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_jax.data.prompts import read_jsonl
from rlhf_jax.errors import ConfigError, check_choice, check_number

Row = dict[str, Any]
ROWS_FILE = "rows.jsonl"
SAMPLED = {"prompt_ids", "completions", "completion_ids", "scores", "ended"}
PARTS = ("train", "held_out")


def read_samples(path: str | Path) -> list[Row]:
    """Sample rows of a folder that `loops.sampling` filled, or of one such file.

    Raises:
        ConfigError: nothing was drawn there, a damaged line, lists of different lengths, a score
            that is no finite number (nor None), or a completion that is no text.
    """
    path = Path(path)
    if not path.exists():
        raise ConfigError(
            f"{path} does not exist; draw samples first: "
            f"python -m experiments.sample_stories --out {path}"
        )
    file = path / ROWS_FILE if path.is_dir() else path
    rows = read_jsonl(file)
    for number, row in enumerate(rows):
        for name in sorted(SAMPLED - {"prompt_ids"}):
            if not isinstance(row.get(name), list):
                raise ConfigError(f"{file}: row {number} has no list {name!r}")
            if len(row[name]) != len(row["completions"]):
                raise ConfigError(
                    f"{file}: row {number} has {len(row['completions'])} completions, but "
                    f"{len(row[name])} {name}"
                )
        for g, (text, score) in enumerate(zip(row["completions"], row["scores"], strict=True)):
            where = f"{file}: row {number}, completion {g}"
            if not isinstance(text, str):
                raise ConfigError(f"{where} is {text!r}, not a string")
            if score is not None:
                check_number(f"{where}: score", score)
    return rows


def split_by_prompt(rows: Sequence[Row], held_out: int) -> tuple[list[Row], list[Row]]:
    """(training rows, held-out rows): the `held_out` prompts of smallest SHA-256 are held out.

    All rows of a prompt fall on one side, and which side depends on the prompt's text alone.

    Raises:
        ConfigError: too few prompts to leave one for training.
    """
    check_number("held_out", held_out, low=1)
    digests = sorted({_digest(row["prompt"]) for row in rows})
    if len(digests) <= held_out:
        raise ConfigError(f"{len(digests)} distinct prompts are too few to hold out {held_out}")
    last = digests[held_out - 1]
    kept = [_digest(row["prompt"]) > last for row in rows]
    train = [row for row, keep in zip(rows, kept, strict=True) if keep]
    return train, [row for row, keep in zip(rows, kept, strict=True) if not keep]


def best_of_n(rows: Sequence[Row], n: int | None = None) -> list[Row]:
    """Rejection sampling: each prompt's completion of the highest score, {"prompt", "completion"}.

    Args:
        rows: sample rows.
        n: look at the first n completions alone; None: at all. Of equal scores the first wins.

    Raises:
        ConfigError: n is more than were drawn, or no row has a score.
    """
    found = []
    for number, row in enumerate(rows):
        if n is not None and not 1 <= n <= len(row["completions"]):
            raise ConfigError(f"n={n}, but row {number} has {len(row['completions'])} completions")
        scored = [g for g in _scored(row) if n is None or g < n]
        if scored:
            best = max(scored, key=lambda g: row["scores"][g])  # max keeps the first of equals
            found.append(_one(row, best, "completion"))
    return _some(found, "no completion has a score")


def best_and_worst(rows: Sequence[Row]) -> list[Row]:
    """Of each prompt the best against the worst completion; of equals the first. No noise.

    A prompt whose scores are all equal prefers nothing and is left out.
    """
    pairs = []
    for row in rows:
        scored = _scored(row)
        if scored:
            best = max(scored, key=lambda g: row["scores"][g])
            worst = min(scored, key=lambda g: row["scores"][g])
            if row["scores"][best] > row["scores"][worst]:
                pairs.append(_pair(row, best, worst))
    return _some(pairs, "no prompt has completions of different scores")


def bt_pairs(
    rows: Sequence[Row], *, temperature: float, seed: int, pairs_per_prompt: int | None = None
) -> list[Row]:
    """Preferences as a noisy judge gives them, after Bradley and Terry (1952).

    P(i ≻ j) = σ((s_i − s_j)/τ), drawn once a pair. Two completions of the same ids are no pair:
    there is nothing to prefer.

    Args:
        rows: sample rows.
        temperature: τ > 0, in units of the score. Small: the judge is nearly always right.
        seed: of labels and of the choice of pairs.
        pairs_per_prompt: that many of a prompt's pairs, drawn without repeats; None: all of them.

    Returns:
        rows {"prompt", "chosen", "rejected"} with ids, "chosen_score" and "rejected_score".
    """
    check_number("temperature", temperature, low=0, open_low=True)
    check_number("seed", seed, low=0)
    if pairs_per_prompt is not None:
        check_number("pairs_per_prompt", pairs_per_prompt, low=1)
    pairs = []
    for row in rows:
        draw = _generator(seed, row)
        ids = row["completion_ids"]
        options = [(i, j) for i, j in combinations(_scored(row), 2) if ids[i] != ids[j]]
        order = draw.permutation(len(options))[:pairs_per_prompt]
        for i, j in (options[k] for k in sorted(order)):
            gap = (row["scores"][i] - row["scores"][j]) / temperature
            first_wins = draw.random() < _sigmoid(gap)
            pairs.append(_pair(row, i, j) if first_wins else _pair(row, j, i))
    return _some(pairs, "no prompt has two different completions with a score")


def bayes_accuracy(pairs: Sequence[Row], temperature: float) -> float:
    """What the true scores themselves would reach on labels drawn by `bt_pairs`, in expectation.

    Mean of max(p, 1 − p) = σ(|s_w − s_l|/τ), the most that any reward model can expect.

    Args:
        pairs: with "chosen_score" and "rejected_score".
        temperature: τ of the labels.
    """
    check_number("temperature", temperature, low=0, open_low=True)
    gaps = [abs(pair["chosen_score"] - pair["rejected_score"]) for pair in pairs]
    return float(np.mean([_sigmoid(gap / temperature) for gap in gaps]))


def unpaired(rows: Sequence[Row], threshold: float) -> list[Row]:
    """Every completion alone: {"prompt", "completion", "label"}; the label is score ≥ threshold."""
    check_number("threshold", threshold)
    found = [
        {**_one(row, g, "completion"), "label": row["scores"][g] >= threshold}
        for row in rows
        for g in _scored(row)
    ]
    return _some(found, "no completion has a score")


def rankings(rows: Sequence[Row]) -> list[Row]:
    """Each prompt's completions with their scores, those without one left out; ≥ 2 a row."""
    found = []
    for row in rows:
        scored = _scored(row)
        if len(scored) >= 2:
            lists = {name: [row[name][g] for g in scored] for name in SAMPLED - {"prompt_ids"}}
            found.append({**row, **lists})
    return _some(found, "no prompt has two completions with a score")


def sampled_best(
    *, samples: str, n: int | None = None, part: str = "train", held_out: int = 100
) -> list[Row]:
    """Demonstrations for an experiment: `best_of_n` of the samples in a folder.

    Args:
        samples: folder of drawn samples.
        n: completions of each prompt that are looked at; None: all.
        part: "train" or "held_out".
        held_out: prompts held out, by content: `split_by_prompt`.
    """
    return best_of_n(_part(samples, part, held_out), n)


def sampled_pairs(
    *,
    samples: str,
    temperature: float | None = None,
    pairs_per_prompt: int | None = None,
    seed: int = 0,
    part: str = "train",
    held_out: int = 100,
) -> list[Row]:
    """Preference pairs for an experiment, of the samples in a folder.

    Args:
        samples: folder of drawn samples.
        temperature: of the noisy judge (`bt_pairs`); None: best against worst, without noise.
        pairs_per_prompt: of the noisy judge; None: all.
        seed: of the noisy judge.
        part: "train" or "held_out".
        held_out: prompts held out, by content: `split_by_prompt`.
    """
    rows = _part(samples, part, held_out)
    if temperature is None:
        return best_and_worst(rows)
    return bt_pairs(rows, temperature=temperature, seed=seed, pairs_per_prompt=pairs_per_prompt)


def sampled_unpaired(
    *, samples: str, threshold: float, part: str = "train", held_out: int = 100
) -> list[Row]:
    """Labelled completions for an experiment: `unpaired` of the samples in a folder.

    Args:
        samples: folder of drawn samples.
        threshold: the least score that is desirable.
        part: "train" or "held_out".
        held_out: prompts held out, by content: `split_by_prompt`.
    """
    return unpaired(_part(samples, part, held_out), threshold)


def sampled_rankings(*, samples: str, part: str = "train", held_out: int = 100) -> list[Row]:
    """Rankings for an experiment: `rankings` of the samples in a folder.

    Args:
        samples: folder of drawn samples.
        part: "train" or "held_out".
        held_out: prompts held out, by content: `split_by_prompt`.
    """
    return rankings(_part(samples, part, held_out))


def _part(samples: str, part: str, held_out: int) -> list[Row]:
    check_choice("part", part, PARTS)
    return split_by_prompt(read_samples(samples), held_out)[PARTS.index(part)]


def _scored(row: Row) -> list[int]:
    return [g for g, score in enumerate(row["scores"]) if score is not None]


def _some(found: list[Row], why: str) -> list[Row]:
    if not found:
        raise ConfigError(f"nothing can be made of these samples: {why}")
    return found


def _common(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in SAMPLED - {"prompt_ids"}}


def _one(row: Row, g: int, name: str) -> Row:
    return {
        **_common(row),
        name: row["completions"][g],
        f"{name}_ids": row["completion_ids"][g],
        "score": row["scores"][g],
    }


def _pair(row: Row, chosen: int, rejected: int) -> Row:
    pair = _common(row)
    for name, g in (("chosen", chosen), ("rejected", rejected)):
        pair[name] = row["completions"][g]
        pair[f"{name}_ids"] = row["completion_ids"][g]
        pair[f"{name}_score"] = row["scores"][g]
    return pair


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _generator(seed: int, row: Row) -> np.random.Generator:
    """A stream of its own for each row."""
    content = json.dumps([row["prompt"], row["completion_ids"]])
    return np.random.default_rng([seed, int.from_bytes(_digest(content)[:8], "big")])


def _sigmoid(x: float) -> float:
    """σ(x), without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else 1 - _sigmoid(-x)
