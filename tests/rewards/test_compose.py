import asyncio
import threading
import time

import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.compose import check_rewards, reward_names, score_completions, score_steps
from rlhf_jax.rewards.notes import note, overlaps


class Unreadable:
    """An array that NumPy cannot read."""

    def __array__(self, dtype=None, copy=None):
        raise TypeError("on another device")


def length(prompts, completions, rows, *, scale=1.0):
    return [scale * len(text) for text in completions]


def only_even(prompts, completions, rows):
    return [None if row["n"] % 2 else True for row in rows]


def score(*rewards, weights=None, completions=("a", "bbb", "")):
    return scores(*rewards, weights=weights, completions=completions)[:2]


def scores(*rewards, weights=None, completions=("a", "bbb", ""), errors="raise"):
    rows = [{"n": i} for i in range(len(completions))]
    prompts = ["p"] * len(rows)
    return score_completions(rewards, weights, prompts, completions, rows, errors=errors)


def test_scores_times_weights_and_none_where_it_does_not_apply():
    score_BC, valid_BC = score(bind(length, scale=2.0), only_even, weights=(0.5, -3.0))
    assert score_BC.tolist() == [[1, -3], [3, 0], [0, -3]]
    assert valid_BC.tolist() == [[True, True], [True, False], [True, True]]
    assert score_BC.dtype == np.float32


@pytest.mark.parametrize(
    "made",
    [
        np.arange,
        jnp.arange,
        lambda n: jnp.arange(n, dtype=jnp.bfloat16),
        range,
        lambda n: tuple(range(n)),
        lambda n: [jnp.float32(i) for i in range(n)],
    ],
    ids=["numpy", "jax", "bfloat16", "range", "tuple", "list of arrays"],
)
def test_arrays_are_lists_too(made):
    assert score(lambda p, c, rows: made(len(rows)))[0].ravel().tolist() == [0, 1, 2]


def test_one_row_that_fails_does_not_shift_the_others():
    score_BC, valid_BC = score(lambda p, c, r: [0.0, None, 1.0])
    assert score_BC[:, 0].tolist() == [0, 0, 1] and valid_BC[:, 0].tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1.0, 2.0], "bad returned 2 scores for 3 completions"),
        ([1.0, float("nan"), 2.0], "bad, row 1: the score is nan"),
        ([1.0, 2.0, float("-inf")], "bad, row 2: the score is -inf"),
        ([1e39, 2.0, 3.0], "bad, row 0: the score is 1e"),
        (["1.0", 2.0, 3.0], "bad, row 0: '1.0' is not a number"),
        ([[1.0, 2.0], 2.0, 3.0], r"bad, row 0: \[1.0, 2.0\] is not a number"),
        (3.0, "bad returned a float, not a list"),
        (None, "bad returned a NoneType, not a list"),
        ([1.0, 10**400, 2.0], "bad, row 1: the score is too large"),
        ([1.0, 2.0, -(10**5000)], "bad, row 2: the score is too large"),
        ("123", "bad returned a str, not a list"),
        ({0: 1.0, 1: 2.0, 2: 3.0}, "bad returned a dict, not a list"),
        ((x for x in (1.0, 2.0, 3.0)), "bad returned a generator, not a list"),
        (np.zeros((3, 1)), "bad returned a ndarray with 2 axes, not a list"),
        (jnp.zeros(2), "bad returned 2 scores for 3"),
        (np.array(["1", "2", "3"]), "bad, row 0: .* is not a number"),
        (Unreadable(), "bad returned a Unreadable that is no list: on another device"),
    ],
)
def test_what_a_reward_may_not_return(returned, message):
    def bad(prompts, completions, rows):
        return returned

    with pytest.raises(ConfigError, match=message):
        score(length, bad)


def test_weights_and_lists_are_checked():
    with pytest.raises(ConfigError, match="1 reward weights for 2 reward functions"):
        score(length, only_even, weights=(1.0,))
    with pytest.raises(ConfigError, match="weight of reward length=nan"):
        score(length, weights=(float("nan"),))
    with pytest.raises(ConfigError, match="no reward functions"):
        score()
    with pytest.raises(ValueError, match="1 prompts, 2 completions, 1 rows"):
        score_completions([length], None, ["p"], ["a", "b"], [{}])


def test_a_reward_cannot_change_what_the_next_one_sees():
    def greedy(prompts, completions, rows):
        completions.clear()
        return [0.0] * len(rows)

    assert score(greedy, length)[0][:, 1].tolist() == [1, 3, 0]


def test_names():
    twice = [length, bind(length, scale=2.0), only_even]
    assert reward_names(twice) == ["length_1", "length_2", "only_even"]


def steps_of(returned, completions=("abcd", "ab")):
    def process(prompts, completions, rows):
        return returned

    count = len(completions)
    return score_steps(process, ["p"] * count, completions, [{}] * count)


def test_steps_are_read():
    assert steps_of([[(2, 0.5), (np.int64(4), np.float32(1))], None]) == [[(2, 0.5), (4, 1.0)], []]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "process reward process must return a list of 2 rows"),
        ([[]], "must return a list of 2 rows"),
        ([[], [(1, 2, 3)]], r"row 1: \(1, 2, 3\) is not an \(end, score\) pair"),
        ([[(0, 1.0)], []], r"row 0: a step ends at character 0; .* lie in 1\.\.4"),
        ([[(3, 1.0), (3, 1.0)], []], "row 0: a step ends at character 3; ends must grow"),
        ([[], [(3, 1.0)]], r"row 1: a step ends at character 3; .* lie in 1\.\.2"),
        ([[(1.0, 1.0)], []], "row 0: a step ends at character 1.0"),
        ([[(1, None)], []], "row 0: None is not a number"),
        ([[(1, float("nan"))], []], "row 0: the score is nan"),
    ],
)
def test_what_a_process_reward_may_not_return(returned, message):
    with pytest.raises(ConfigError, match=message):
        steps_of(returned)


async def in_a_moment(prompts, completions, rows):
    await asyncio.sleep(0.2)
    note("answers", len(rows))
    return [float(len(text)) for text in completions]


async def also_in_a_moment(prompts, completions, rows):
    return await in_a_moment(prompts, completions, rows)


@overlaps
def waits(prompts, completions, rows):
    time.sleep(0.2)
    return [threading.get_ident()] * len(rows)


def thread_of(prompts, completions, rows):
    return [float(threading.get_ident() == threading.main_thread().ident)] * len(rows)


class AsyncObject:
    async def __call__(self, prompts, completions, rows):
        return await in_a_moment(prompts, completions, rows)


def test_async_functions_wait_beside_each_other_and_the_others_stay_here():
    began = time.monotonic()
    found = scores(in_a_moment, also_in_a_moment, waits, AsyncObject(), thread_of)
    assert time.monotonic() - began < 0.7, "four waits of 0.2 s, one after another"
    assert found.score_BC[:, 0].tolist() == found.score_BC[:, 1].tolist() == [1, 3, 0]
    assert found.score_BC[:, 4].tolist() == [1, 1, 1]
    assert found.numbers["reward_answers/in_a_moment"] == 3
    assert found.numbers["reward_answers/also_in_a_moment"] == 3
    assert 0.2 <= found.numbers["reward_seconds/waits"] < 0.7


def test_an_async_function_alone_and_within_a_running_loop():
    assert score(in_a_moment)[0].ravel().tolist() == [1, 3, 0]

    async def notebook():
        return score(bind(in_a_moment))[0].ravel().tolist()

    assert asyncio.run(notebook()) == [1, 3, 0]


def test_an_async_function_that_raises_is_named():
    async def broken(prompts, completions, rows):
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError, match="no answer") as caught:
        score(length, broken)
    assert "raised by reward broken, asked for 3 scores" in caught.value.__notes__


def picky(prompts, completions, rows):
    if "bbb" in completions:
        raise ZeroDivisionError("bbb")
    note("seen", len(rows))
    return [float(len(text)) for text in completions]


def test_nemo_rl_3635_a_row_that_fails_is_skipped_and_shifts_no_other():
    found = scores(picky, length, errors="skip")
    assert found.score_BC.tolist() == [[1, 1], [0, 3], [0, 0]]
    assert found.valid_BC.tolist() == [[True, True], [False, True], [True, True]]
    assert found.numbers["reward_failures/picky"] == 1 and found.numbers["reward_seen/picky"] == 2
    assert "reward_failures/length" not in found.numbers
    with pytest.raises(ZeroDivisionError):
        scores(picky, length)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "1", 10**400])
def test_a_score_that_is_none_is_skipped_too(bad):
    found = scores(lambda p, c, r: [1.0, bad, 2.0], errors="skip")
    assert found.score_BC[:, 0].tolist() == [1, 0, 2]
    assert found.valid_BC[:, 0].tolist() == [True, False, True]
    assert found.numbers["reward_failures/<lambda>"] == 1


def test_what_is_no_rows_fault_is_never_skipped():
    def unusable(prompts, completions, rows):
        raise ConfigError("install it")

    with pytest.raises(ConfigError, match="install it"):
        scores(unusable, errors="skip")
    with pytest.raises(ConfigError, match="returned 2 scores for 3"):
        scores(lambda p, c, r: [1.0, 2.0], errors="skip")
    with pytest.raises(ConfigError, match="errors='ignore' is unknown"):
        scores(length, errors="ignore")
    with pytest.raises(ConfigError, match="reward_errors='ignore' is unknown"):
        check_rewards((length,), (), "ignore")


def test_counts_outside_a_call_go_nowhere():
    note("seen")
    assert scores(length).numbers.keys() == {"reward_seconds/length"}
