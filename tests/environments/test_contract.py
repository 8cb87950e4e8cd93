"""What an environment may return, and how it is named when it does not."""

import numpy as np
import pytest

from rlhf_jax.bind import bind
from rlhf_jax.environments.calculator import Calculator
from rlhf_jax.environments.contract import Step, answered, begin, check_environment
from rlhf_jax.errors import ConfigError


class World:
    """Returns what it is told to."""

    def __init__(self, *, says=("ok", 1.0, False), begins=None):
        self.says, self.begins = says, begins

    def reset(self, row):
        row.clear()
        if isinstance(self.begins, Exception):
            raise self.begins
        return self.begins

    def step(self, text):
        if isinstance(self.says, Exception):
            raise self.says
        return self.says


@pytest.mark.parametrize(
    ("says", "step"),
    [
        (("ok", 1, False), Step("ok", 1.0, False)),
        (Step("", None, False), Step("", None, False)),
        (("read by nobody", np.float32(0.5), np.bool_(True)), Step("read by nobody", 0.5, True)),
        ((None, -2.0, True), Step(None, -2.0, True)),
        (("ok", True, False), Step("ok", 1.0, False)),
    ],
)
def test_what_it_says(says, step):
    found = answered(World(says=says), "hi", "environment World")
    assert found == step
    assert type(found.done) is bool and type(found.reward) in (float, type(None))


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("done", "not \\(observation, reward, done\\)"),
        (("ok", 1.0), "not \\(observation, reward, done\\)"),
        ((None, 0.0, False), "the observation is None, not a text"),
        ((84, 0.0, True), "the observation is 84, not a text"),
        (("ok", float("nan"), False), "the reward is nan"),
        (("ok", float("-inf"), False), "the reward is -inf"),
        (("ok", 10**400, False), "the reward is 1000"),
        (("ok", "1", False), "the reward is '1'"),
        (("ok", 1.0, None), "done is None"),
        (("ok", 1.0, "no"), "done is 'no'"),
    ],
)
def test_what_it_may_not_say(says, why):
    with pytest.raises(ConfigError, match=f"step of environment World, prompt 3.*{why}"):
        answered(World(says=says), "hi", "environment World, prompt 3")


def test_errors_carry_the_place():
    with pytest.raises(KeyError) as error:
        answered(World(says=KeyError("x")), "hi", "environment World, prompt 3")
    assert error.value.__notes__ == ["raised by step of environment World, prompt 3"]
    with pytest.raises(KeyError) as error:
        begin(bind(World, begins=KeyError("x")), {}, "environment World, prompt 3")
    assert error.value.__notes__ == ["raised by reset of environment World, prompt 3"]
    with pytest.raises(ConfigError, match=r"^reset of environment World, prompt 3: no number$"):
        begin(bind(World, begins=ConfigError("no number")), {}, "environment World, prompt 3")


def test_a_dialogue_begins_with_the_rows_prompt_and_a_copy_of_the_row():
    row = {"prompt": "hi"}
    begin(bind(World), row, "here")
    assert row == {"prompt": "hi"}
    with pytest.raises(ConfigError, match="returned 'hi': what a policy reads first is the row's"):
        begin(bind(World, begins="hi"), {}, "here")


def test_an_environment_is_a_bound_class():
    check_environment(bind(Calculator, call_cost=0.1))
    for other in (Calculator, Calculator(), bind(answered), bind(Step), None):
        with pytest.raises(ConfigError, match=r"give bind\(Class, \.\.\.\)"):
            check_environment(other)
    with pytest.raises(TypeError, match="takes no"):
        bind(Calculator, call_price=0.1)
