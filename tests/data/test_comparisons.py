"""Demonstrations, pairs, labels and rankings made of sampled and scored completions."""

import copy
import json
import math

import numpy as np
import pytest

from rlhf_jax.data.comparisons import (
    bayes_accuracy,
    best_and_worst,
    best_of_n,
    bt_pairs,
    rankings,
    read_samples,
    sampled_best,
    sampled_pairs,
    sampled_rankings,
    sampled_unpaired,
    split_by_prompt,
    unpaired,
)
from rlhf_jax.errors import ConfigError


def sample(prompt, scores, texts=None):
    texts = texts or [f"{prompt} {g}" for g in range(len(scores))]
    return {
        "prompt": prompt,
        "answer": "42",
        "prompt_ids": [1, 7],
        "completions": texts,
        "completion_ids": [[ord(c) for c in text] for text in texts],
        "scores": scores,
        "ended": [True] * len(scores),
    }


ROWS = [
    sample("a", [0.2, 0.9, 0.9, -1.0]),
    sample("b", [None, 0.1, None, 0.3]),
    sample("c", [0.5, 0.5, 0.5, 0.5]),
    sample("d", [None, None, None, None]),
]


def test_the_best_of_n_is_the_first_of_equals():
    best = best_of_n(ROWS)
    assert [row["completion"] for row in best] == ["a 1", "b 3", "c 0"]  # d has no score
    assert [row["score"] for row in best] == [0.9, 0.3, 0.5]
    assert best[0]["completion_ids"] == ROWS[0]["completion_ids"][1]
    assert best[0]["answer"] == "42" and "scores" not in best[0]


def test_the_best_of_the_first_n():
    assert [row["completion"] for row in best_of_n(ROWS, 1)] == ["a 0", "c 0"]
    assert [row["completion"] for row in best_of_n(ROWS, 2)] == ["a 1", "b 1", "c 0"]
    with pytest.raises(ConfigError, match="n=5, but row 0 has 4"):
        best_of_n(ROWS, 5)


def test_best_against_worst_needs_a_difference():
    pairs = best_and_worst(ROWS)
    assert [(p["chosen"], p["rejected"]) for p in pairs] == [("a 1", "a 3"), ("b 3", "b 1")]
    assert (pairs[0]["chosen_score"], pairs[0]["rejected_score"]) == (0.9, -1.0)
    assert pairs[0]["rejected_ids"] == ROWS[0]["completion_ids"][3]


def test_every_pair_once_without_scoreless_completions():
    pairs = bt_pairs(ROWS, temperature=0.1, seed=0)
    assert len(pairs) == 6 + 1 + 6
    sides = [frozenset((p["chosen"], p["rejected"])) for p in pairs]
    assert len(set(sides)) == len(sides) and all(len(side) == 2 for side in sides)


def test_a_text_is_never_preferred_to_itself():
    twice = sample("e", [0.0, 1.0, 1.0], ["x", "y", "y"])
    pairs = bt_pairs([twice], temperature=1.0, seed=0)
    assert sorted(sorted((p["chosen"], p["rejected"])) for p in pairs) == [["x", "y"], ["x", "y"]]


@pytest.mark.parametrize(("gap", "temperature"), [(0.0, 1.0), (1.0, 1.0), (0.3, 0.2), (-0.4, 0.5)])
def test_labels_follow_bradley_terry(gap, temperature):
    rows = [sample(f"p{i}", [gap, 0.0]) for i in range(4000)]
    pairs = bt_pairs(rows, temperature=temperature, seed=3)
    first_won = np.mean([p["chosen"].endswith(" 0") for p in pairs])
    chance = 1 / (1 + math.exp(-gap / temperature))
    assert abs(first_won - chance) < 4 * math.sqrt(chance * (1 - chance) / 4000)


def test_a_cold_judge_is_right_and_large_gaps_do_not_overflow():
    rows = [sample(f"p{i}", [1e4, -1e4]) for i in range(50)]
    pairs = bt_pairs(rows, temperature=1e-3, seed=0)
    assert all(p["chosen_score"] == 1e4 for p in pairs)
    assert bayes_accuracy(pairs, 1e-3) == 1.0


def test_the_bayes_rate_is_what_the_true_scores_reach():
    rows = [sample(f"p{i}", [i % 7 / 7, i % 3 / 3]) for i in range(6000)]
    pairs = bt_pairs(rows, temperature=0.4, seed=1)
    won = [p["chosen_score"] - p["rejected_score"] for p in pairs]
    reached = np.mean([1.0 if d > 0 else 0.5 if d == 0 else 0.0 for d in won])
    assert reached == pytest.approx(bayes_accuracy(pairs, 0.4), abs=4 * 0.5 / math.sqrt(6000))
    one = bt_pairs([sample("a", [1.0, 0.0])], temperature=0.5, seed=0)
    assert bayes_accuracy(one, 0.5) == pytest.approx(0.880797, abs=1e-6)  # σ(2)
    tie = bt_pairs([sample("a", [1.0, 1.0])], temperature=0.5, seed=0)
    assert bayes_accuracy(tie, 0.5) == 0.5


def test_labels_depend_on_seed_and_row_alone():
    rows = [sample(f"p{i}", [0.1, 0.0, 0.2, 0.15]) for i in range(30)]
    pairs = bt_pairs(rows, temperature=0.1, seed=5)
    backwards = bt_pairs(rows[::-1], temperature=0.1, seed=5)
    assert sorted(pairs, key=str) == sorted(backwards, key=str)
    assert bt_pairs(rows[:10], temperature=0.1, seed=5) == pairs[:60]
    assert bt_pairs(rows, temperature=0.1, seed=6) != pairs


def test_some_pairs_of_a_prompt():
    rows = [sample(f"p{i}", [0.1, 0.0, 0.2, 0.15]) for i in range(30)]
    pairs = bt_pairs(rows, temperature=0.1, seed=0, pairs_per_prompt=2)
    assert len(pairs) == 60
    sides = {(p["prompt"], frozenset((p["chosen"], p["rejected"]))) for p in pairs}
    assert len(sides) == 60
    chosen = {frozenset((p["chosen"][-1], p["rejected"][-1])) for p in pairs}
    assert len(chosen) == 6  # not the same two of every prompt
    assert len(bt_pairs(rows, temperature=0.1, seed=0, pairs_per_prompt=99)) == 180


def test_labels_at_and_above_the_threshold():
    found = unpaired(ROWS[:2], 0.3)
    assert [(row["completion"], row["label"]) for row in found] == [
        ("a 0", False),
        ("a 1", True),
        ("a 2", True),
        ("a 3", False),
        ("b 1", False),
        ("b 3", True),
    ]


def test_rankings_leave_out_what_has_no_score():
    found = rankings(ROWS)
    assert [row["prompt"] for row in found] == ["a", "b", "c"]
    assert found[1]["completions"] == ["b 1", "b 3"]
    assert found[1]["scores"] == [0.1, 0.3]
    assert found[1]["completion_ids"] == [ROWS[1]["completion_ids"][g] for g in (1, 3)]


def test_the_split_is_by_prompt_and_content():
    rows = [sample(f"p{i}", [0.0, 1.0]) for i in range(20)] * 2
    train, held_out = split_by_prompt(rows, 5)
    assert len(train) == 30 and len(held_out) == 10
    names = {row["prompt"] for row in held_out}
    assert len(names) == 5 and not names & {row["prompt"] for row in train}
    again = split_by_prompt(rows[::-1], 5)[1]
    assert {row["prompt"] for row in again} == names
    with pytest.raises(ConfigError, match="20 distinct prompts are too few to hold out 20"):
        split_by_prompt(rows, 20)


def test_nothing_is_changed_in_place():
    rows = copy.deepcopy(ROWS)
    best_of_n(rows), best_and_worst(rows), rankings(rows), unpaired(rows, 0.5)
    bt_pairs(rows, temperature=0.1, seed=0)
    assert rows == ROWS


def test_samples_without_use_are_refused():
    for make in (best_of_n, best_and_worst, rankings, lambda rows: unpaired(rows, 0.0)):
        with pytest.raises(ConfigError, match="nothing can be made of these samples"):
            make(ROWS[3:])
    with pytest.raises(ConfigError, match="two different completions"):
        bt_pairs([sample("a", [1.0])], temperature=1.0, seed=0)
    with pytest.raises(ConfigError, match="temperature=0"):
        bt_pairs(ROWS, temperature=0.0, seed=0)


def write(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def test_loading_for_an_experiment(tmp_path):
    rows = [sample(f"p{i}", [0.1 * g for g in range(4)]) for i in range(10)]
    samples = write(tmp_path / "s", rows)
    assert read_samples(samples) == rows == read_samples(tmp_path / "s" / "rows.jsonl")
    train, held_out = split_by_prompt(rows, 3)
    where = dict(samples=samples, held_out=3)
    assert sampled_best(**where) == best_of_n(train)
    assert sampled_best(part="held_out", n=2, **where) == best_of_n(held_out, 2)
    assert sampled_pairs(**where) == best_and_worst(train)
    noisy = dict(temperature=0.1, seed=2, pairs_per_prompt=3)
    assert sampled_pairs(**noisy, **where) == bt_pairs(train, **noisy)
    assert sampled_unpaired(threshold=0.2, **where) == unpaired(train, 0.2)
    assert sampled_rankings(part="held_out", **where) == rankings(held_out)
    with pytest.raises(ConfigError, match="did you mean held_out"):
        sampled_best(part="heldout", **where)


def test_samples_that_are_missing_or_damaged(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist; draw samples first: python -m"):
        read_samples(tmp_path / "none")
    row = sample("a", [0.0, 1.0])
    with pytest.raises(ConfigError, match="row 0 has 2 completions, but 1 scores"):
        read_samples(write(tmp_path / "short", [{**row, "scores": [1.0]}]))
    with pytest.raises(ConfigError, match="row 1 has no list 'ended'"):
        read_samples(write(tmp_path / "lacks", [row, {**row, "ended": None}]))
