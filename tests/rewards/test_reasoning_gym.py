import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("reasoning_gym")

from rlhf_jax.bind import bind
from rlhf_jax.data.reasoning_gym import reasoning_gym as tasks
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.reasoning_gym import reasoning_gym

ONE_DIGIT = {"task": "chain_sum", "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_rows_are_prompts_and_no_question_is_in_both_parts():
    train, held_out = tasks(**ONE_DIGIT, train=200, held_out=30, suffix=" Only a number.")
    assert (len(train), len(held_out)) == (200, 30)
    assert not {r["question"] for r in train} & {r["question"] for r in held_out}
    assert len({r["question"] for r in held_out}) == 30
    assert all(r["prompt"] == r["question"] + " Only a number." for r in train)
    assert (train, held_out) == tasks(**ONE_DIGIT, train=200, held_out=30, suffix=" Only a number.")
    assert train != tasks(**ONE_DIGIT, train=200, held_out=30, seed=1)[0]


@pytest.mark.parametrize("task", ["chain_sum", "countdown", "sudoku", "spiral_matrix", "gcd"])
def test_the_right_answer_scores_1_also_after_a_trip_through_json(task):
    train, held_out = tasks(task=task, train=3, held_out=2)
    rows = json.loads(json.dumps(train + held_out))
    answers = [f"<think>?</think><answer>\n{row['answer']}\n</answer>" for row in rows]
    assert reasoning_gym(["?"] * 5, answers, rows) == [1.0] * 5
    assert max(reasoning_gym(["?"] * 5, ["I do not know"] * 5, rows)) < 0.1


@pytest.mark.parametrize(
    ("find", "completion", "right"),
    [
        ("tag", "{}", 1),
        ("tag", "no <answer>{}</answer> it is", 1),
        ("final", "9 + 9 = 3, so \\boxed{{{}}}.", 1),
        ("final", "#### {}", 1),
        ("last_number", "1 + 1 = 3. The sum is {}!", 1),
        ("last_number", "{} is more than 1000", 0),
        ("last_number", "none", 0),
        ("tag", "<think>{}", 0),
    ],
)
def test_where_the_answer_is_found(find, completion, right):
    row = tasks(**ONE_DIGIT, train=1, held_out=1)[0][0]
    text = completion.format(row["answer"])
    assert reasoning_gym(["?"], [text], [row], find=find) == [right]


def test_an_answer_that_is_evaluated_harms_nothing(tmp_path):
    row = tasks(task="countdown", train=1, held_out=1)[0][0]
    mark = tmp_path / "mark"
    evil = [
        f"__import__('os').system('touch {mark}')",
        f"open('{mark}', 'w')",
        "__import__('os')._exit(0)",
        "9**9**9**9",
    ]
    found = score_completions(
        [bind(reasoning_gym, seconds=3.0)],
        None,
        ["?"] * 5,
        [*evil, row["answer"]],
        [row] * 5,
    )
    assert found.score_BC[:4].max() < 0.1 and found.score_BC[4, 0] == 1
    assert not mark.exists()


REFUSED = """
import errno, pyseccomp
rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
rules.add_rule(pyseccomp.ERRNO(errno.EPERM), "unshare")
rules.load()
from rlhf_jax.data.reasoning_gym import reasoning_gym as tasks
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.reasoning_gym import reasoning_gym
for task in ("chain_sum", "countdown"):
    row = tasks(task=task, train=1, held_out=1)[0][0]
    try:
        print(task, reasoning_gym(["?"], [row["answer"]], [row]))
    except ConfigError as error:
        print(error)
"""


def test_without_walls_only_scorers_that_evaluate_no_text_are_run():
    pytest.importorskip("pyseccomp")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", REFUSED], env=env, capture_output=True, text=True)
    first, second = found.stdout.splitlines()
    assert first == "chain_sum [1.0]"
    assert second.startswith("the scorer of countdown evaluates text: unshare failed")


def test_rows_of_another_kind_are_not_scored():
    found = score_completions([reasoning_gym], None, ["?"], ["4"], [{"answer": "4"}])
    assert not found.valid_BC.any()
    assert found.numbers["reward_unreadable_gold/reasoning_gym"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "chain_sums"}, "task='chain_sums' is unknown; did you mean chain_sum"),
        ({"task": "chain_sum", "min_term": 2}, "task chain_sum with .*min_term"),
        ({"task": "chain_sum", "min_terms": 5, "max_terms": 2}, "task chain_sum with"),
        ({**ONE_DIGIT, "held_out": 1000}, "gives too few questions"),
        ({"task": "chain_sum", "train": 0}, "train=0 is outside"),
    ],
)
def test_what_cannot_be_made_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        tasks(**options)
