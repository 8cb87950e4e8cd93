"""Noisy rankings, true scores and lengths: labels, and what they can tell."""

import json
import math
from itertools import combinations

import numpy as np
import pytest

from rlhf_jax.data.judges import (
    as_pairs,
    length_leads,
    length_rule_accuracy,
    noisy_rankings,
    sampled_noisy_rankings,
    true_score_accuracy,
)
from rlhf_jax.data.rankings import RankedSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import byte_tokenizer


def samples(n, scores=(0.3, 0.0, -0.2)):
    return [
        {"prompt": f"{i}", "completions": ["a", "b", "c"], "scores": list(scores)} for i in range(n)
    ]


def test_each_pair_is_bradley_terry():
    """P(i before j) = σ((s_i − s_j)/τ) for every pair of a Plackett–Luce order."""
    n, tau = 4000, 0.25
    rows = noisy_rankings(samples(n), temperature=tau, seed=0)
    rank_NS = np.array([row["ranks"] for row in rows])
    assert (np.sort(rank_NS, axis=1) == [0, 1, 2]).all()
    scores = rows[0]["scores"]
    for i, j in combinations(range(3), 2):
        p = 1 / (1 + math.exp(-(scores[i] - scores[j]) / tau))
        error = 4 * math.sqrt(p * (1 - p) / n)
        assert np.mean(rank_NS[:, i] < rank_NS[:, j]) == pytest.approx(p, abs=error)


def test_the_noise_is_of_the_row_and_the_seed():
    rows = samples(50)
    labels = {
        seed: [row["ranks"] for row in noisy_rankings(rows, temperature=0.3, seed=seed)]
        for seed in (0, 1)
    }
    assert labels[0] != labels[1]
    part = noisy_rankings(rows[::-1][:20], temperature=0.3, seed=0)
    assert [row["ranks"] for row in part] == labels[0][::-1][:20]


def test_what_is_not_ranked():
    row = {"prompt": "p", "completions": list("abacd"), "scores": [1.0, None, 1.0, 2.0, 3.0]}
    (ranked,) = noisy_rankings([row], temperature=1e-6, seed=0)
    assert ranked["completions"] == ["a", "c", "d"]  # one of two equal texts, none without a score
    assert ranked["ranks"] == [2, 1, 0]
    twos = noisy_rankings([row], temperature=1e-6, seed=0, sides=2)
    assert [row["completions"] for row in twos] == [["a", "c"]]  # "d" is left over
    with pytest.raises(ConfigError, match="no row has 4 different completions"):
        noisy_rankings([row], temperature=1.0, seed=0, sides=4)
    with pytest.raises(ConfigError, match="temperature=0"):
        noisy_rankings([row], temperature=0.0, seed=0)


def test_pairs_of_rankings():
    row = {"prompt": "p", "completions": ["a", "b", "c"], "ranks": [1, 0, 1], "scores": [5, 6, 7]}
    pairs = as_pairs([row])
    assert [(pair["chosen"], pair["rejected"]) for pair in pairs] == [("b", "a"), ("b", "c")]
    assert [(pair["chosen_score"], pair["rejected_score"]) for pair in pairs] == [(6, 5), (6, 7)]


def test_what_the_true_scores_reach():
    row = {"prompt": "p", "completions": ["a", "b", "c"], "ranks": [0, 1, 2], "scores": [3, 1, 1]}
    # a > b and a > c are so by score; of b and c a coin decides
    assert true_score_accuracy([row]) == pytest.approx(2.5 / 3)
    assert true_score_accuracy(as_pairs([row])) == pytest.approx(2.5 / 3)
    assert true_score_accuracy([{"prompt": "p", "chosen": "a", "rejected": "b"}]) is None
    unranked = {name: row[name] for name in ("prompt", "completions", "scores")}
    assert true_score_accuracy([unranked]) == 1.0  # the ranks are the scores'
    many = noisy_rankings(samples(4000), temperature=0.25, seed=0)
    gaps = [abs(a - b) / 0.25 for a, b in combinations((0.3, 0.0, -0.2), 2)]
    expected = np.mean([1 / (1 + math.exp(-gap)) for gap in gaps])
    assert true_score_accuracy(many) == pytest.approx(expected, abs=0.02)


def lengths(*pairs):
    rows = [{"prompt": "p", "chosen": "a" * c, "rejected": "b" * r} for c, r in pairs]
    return RankedSet.from_rows(rows, byte_tokenizer(), max_tokens=40)


def test_length_alone():
    train = lengths((5, 3), (9, 2), (4, 4), (3, 4))
    assert length_leads(train).tolist() == [2, 7, 0, -1]
    # beyond one token the longer wins, else the shorter: right but for the tie, which is half
    assert length_rule_accuracy(train, train) == pytest.approx(3.5 / 4)
    assert length_rule_accuracy(train, lengths((8, 5), (5, 8), (5, 6), (6, 5))) == 0.5
    shorter = lengths((2, 3), (2, 9), (1, 5))
    assert length_rule_accuracy(shorter, lengths((2, 9), (9, 2), (1, 5))) == pytest.approx(2 / 3)


def test_rankings_of_a_folder_of_samples(tmp_path):
    rows = [
        {
            "prompt": f"{i}",
            "completions": list("abcd"),
            "completion_ids": [[3], [4], [5], [6]],
            "scores": [0.0, 10.0, 20.0, None],
            "ended": [True] * 4,
        }
        for i in range(9)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = dict(samples=str(tmp_path), temperature=0.01, held_out=3)
    parts = {part: sampled_noisy_rankings(part=part, **options) for part in ("train", "held_out")}
    assert {part: len(rows) for part, rows in parts.items()} == {"train": 6, "held_out": 3}
    prompts = {part: {row["prompt"] for row in rows} for part, rows in parts.items()}
    assert not prompts["train"] & prompts["held_out"]
    assert parts["train"][0]["ranks"] == [2, 1, 0]
    pairs = sampled_noisy_rankings(part="train", pairs=True, **options)
    assert len(pairs) == 18 and pairs[0]["chosen_score"] > pairs[0]["rejected_score"]
    twos = sampled_noisy_rankings(part="train", sides=2, **options)
    assert [row["completions"] for row in twos] == [["a", "b"]] * 6
