"""Who trains on what in the outer loop: each part is known by the config that it is run with."""

import pytest

from experiments import iterative_grpo_stories as iterative
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import replace


def test_reference_samples_and_reward_model_follow_the_policy(monkeypatch, tmp_path):
    ran = []

    def online(cfg):
        ran.append(("rl", cfg))
        return {"after": {"watch/vader": 0.5, "kl": 2.0}}

    monkeypatch.setattr(iterative.online, "run", online)
    monkeypatch.setattr(iterative.sampling, "run", lambda cfg: ran.append(("draw", cfg)))
    monkeypatch.setattr(iterative.reward_model, "run", lambda cfg: ran.append(("reward", cfg)))
    cfg = replace(iterative.CONFIG, out=str(tmp_path), seed=7, iterations=3)
    iterative.main(cfg)

    names = [name for name, _ in ran]
    assert names == ["rl", "draw", "reward", "rl", "draw", "reward", "rl"]
    assert {part.seed for _, part in ran} == {7}
    policies = [cfg.model, f"{tmp_path}/rl_1/policy", f"{tmp_path}/rl_2/policy"]
    rewards = [cfg.first_reward_model, f"{tmp_path}/reward_1/reward_model"]
    rewards.append(f"{tmp_path}/reward_2/reward_model")
    rl = [part for name, part in ran if name == "rl"]
    assert [part.model for part in rl] == policies  # the first policy is the reference too
    assert [part.rewards[0].kw["model"] for part in rl] == rewards
    draws = [part for name, part in ran if name == "draw"]
    assert [part.model for part in draws] == policies[1:]
    trained = [part for name, part in ran if name == "reward"]
    assert [part.model for part in trained] == rewards[:2]
    drawn = [cfg.first_samples, f"{tmp_path}/draw_1", f"{tmp_path}/draw_2"]
    for number, part in enumerate(trained, start=2):
        for rows in (part.rankings, part.held_out):
            assert rows.kw["samples"] == tuple(drawn[:number])
        assert (part.rankings.kw["part"], part.held_out.kw["part"]) == ("train", "held_out")
        assert part.rankings.kw["share"] == 0.1


def test_what_the_outer_loop_sets_is_not_an_option_of_a_part():
    part = replace(iterative.CONFIG.draw, seed=3)
    with pytest.raises(ConfigError, match=r"draw\.seed is set by the outer loop"):
        replace(iterative.CONFIG, draw=part)
