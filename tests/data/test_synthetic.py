import numpy as np
import pytest

from rlhf_jax.data.synthetic import (
    demonstrations,
    sum_prompts,
    sum_row,
    sum_splits,
)
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.exact import exact_answer


def test_a_row():
    assert sum_row(27, 45) == {
        "question": "27+45",
        "prompt": "27+45=",
        "answer": "072",
        "metadata": {"a": 27, "b": 45, "carries": 1},
    }


@pytest.mark.parametrize(("a", "b", "carries"), [(11, 22, 0), (5, 5, 1), (60, 50, 1), (55, 45, 2)])
def test_carries(a, b, carries):
    assert sum_row(a, b)["metadata"]["carries"] == carries


def test_splits_are_disjoint_distinct_and_follow_the_seed():
    splits = sum_splits(warmup=300, rl=200, held_out=100, seed=1)
    assert [len(rows) for rows in splits] == [300, 200, 100]
    questions = [row["question"] for rows in splits for row in rows]
    assert len(set(questions)) == 600
    assert splits == sum_splits(warmup=300, rl=200, held_out=100, seed=1)
    assert splits != sum_splits(warmup=300, rl=200, held_out=100, seed=2)
    assert sum_prompts(warmup=300, rl=200, held_out=100, seed=1) == splits[1:]


def test_all_ten_thousand():
    splits = sum_splits(warmup=9000, rl=900, held_out=100)
    assert len({row["question"] for rows in splits for row in rows}) == 10_000
    with pytest.raises(ConfigError, match="10001: there are 10000 distinct"):
        sum_splits(warmup=9000, rl=900, held_out=101)
    with pytest.raises(ConfigError, match="rl=0"):
        sum_splits(rl=0)


def test_the_reward_checks_the_answer():
    row = sum_row(95, 7)
    assert row["prompt"] == "95+07="
    completions = ["102", " 102\n", "12", "", "102.", "x"]
    scores = exact_answer([row["prompt"]] * 6, completions, [row] * 6)
    assert scores == [1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("a", "b", "slip", "answers"),
    [
        (27, 45, 1.0, {"062"}),
        (60, 50, 1.0, {"010"}),
        (95, 10, 1.0, {"005"}),
        # without the ten there is no hundred to carry
        (55, 45, 1.0, {"090"}),
        (75, 45, 1.0, {"010"}),
        (11, 22, 1.0, {"033"}),
        (27, 45, 0.0, {"072"}),
        (75, 45, 0.5, {"120", "110", "020", "010"}),
    ],
)
def test_the_teachers_answers(a, b, slip, answers):
    rows = demonstrations([sum_row(a, b)], slip=slip, seed=0, draws=64)
    assert {row["completion"] for row in rows} == answers


def test_the_teacher_is_right_as_often_as_stated():
    rows, _, _ = sum_splits(seed=3)
    worked = demonstrations(rows, slip=0.7, seed=3, draws=2)
    assert len(worked) == 8000
    for carries in (0, 1, 2):
        of_kind = [row for row in worked if row["metadata"]["carries"] == carries]
        right = np.mean([row["completion"] == row["answer"] for row in of_kind])
        # a carry forgotten can undo the next one, never mend an answer
        assert right == pytest.approx(0.3**carries, abs=0.03)


def test_demonstrations_follow_the_seed_and_leave_the_problems_alone():
    rows, _, _ = sum_splits(warmup=200, rl=1, held_out=1)
    worked = demonstrations(rows, slip=0.5, seed=1)
    assert worked == demonstrations(rows, slip=0.5, seed=1)
    assert worked != demonstrations(rows, slip=0.5, seed=2)
    assert all("completion" not in row for row in rows)
    assert [row["answer"] for row in worked] == [row["answer"] for row in rows]
    with pytest.raises(ConfigError, match=r"slip=1\.5"):
        demonstrations(rows, slip=1.5, seed=0)
