"""Number guessing: what is told, what ends it, what it pays."""

import pytest

from rlhf_jax.environments.guessing import Guessing
from rlhf_jax.errors import ConfigError


def played(*guesses, number=42, **options):
    world = Guessing(**options)
    world.reset({"number": number})
    return [world.step(guess) for guess in guesses]


def test_each_guess_is_told_where_the_number_lies():
    steps = played("50", "25", "x", " 42\n")
    assert [step.observation for step in steps] == ["<", ">", "?", None]
    assert [step.done for step in steps] == [False, False, False, True]
    assert [step.reward for step in steps] == [0, 0, 0, 0.75]  # 1 − .5·3/6


@pytest.mark.parametrize(("guess", "reward"), [(1, 1.0), (2, 0.75), (3, 0.5), (4, 0.25), (5, 0.0)])
def test_the_reward_falls_with_the_number_of_guesses(guess, reward):
    steps = played(*["1"] * (guess - 1), "42", tries=5, slope=1.0)
    assert steps[-1] == (None, reward, True)
    assert played(*["1"] * (guess - 1), "42", tries=5, slope=0.0)[-1].reward == 1.0


def test_the_last_guess_ends_it():
    assert played("1", "2", tries=2) == [(">", 0.0, False), (None, 0.0, True)]
    assert played("42", tries=1) == [(None, 1.0, True)]
    assert played("junk", tries=1) == [(None, 0.0, True)]


def test_junk_is_no_guess_but_counts():
    junk = ["", "-", "4 2", "42.0", "forty", "٤٢", "9" * 30, "4²"]
    assert [step.observation for step in played(*junk, tries=20)] == ["?"] * len(junk)
    assert played("-5", number=-5)[0].done and played("042")[0].done


def test_dialogues_do_not_share_their_count():
    one, other = Guessing(tries=2), Guessing(tries=2)
    for world in (one, other):
        world.reset({"number": 3})
    assert not one.step("1").done and not other.step("1").done
    one.reset({"number": 4})
    assert not one.step("1").done


def test_options_out_of_range_are_refused():
    for option in (dict(tries=0), dict(slope=1.5), dict(slope=float("nan"))):
        with pytest.raises(ConfigError, match=next(iter(option))):
            Guessing(**option)


def test_a_row_without_a_number_is_refused():
    for row in ({}, {"number": "42"}):
        with pytest.raises(ConfigError, match=r"'number' is .* not a whole number"):
            Guessing().reset(row)
