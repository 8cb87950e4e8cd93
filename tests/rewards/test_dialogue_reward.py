"""The sum of what an environment gave."""

import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.dialogue import dialogue_reward


def row(*rewards):
    return {"dialogue": [{"text": "", "observation": None, "reward": r} for r in rewards]}


def test_rewards_add_up_and_none_is_none():
    rows = [row(0.5, 0.25), row(None, 1.0), row(0.0), row(None, None), row(-1.0)]
    assert dialogue_reward([""] * 5, [""] * 5, rows) == [0.75, 1.0, 0.0, None, -1.0]


def test_without_dialogues_it_is_a_message():
    with pytest.raises(ConfigError, match="set dialogue=DialogueConfig"):
        dialogue_reward(["", ""], ["", ""], [row(1.0), {}])
