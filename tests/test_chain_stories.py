"""The chain: each stage starts from the policy, the samples and the reward model it should."""

import json
from pathlib import Path

import pytest

from experiments import chain_stories
from experiments.chain_stories import ChainConfig, main
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import replace

NUMBERS = {"score": 0.5, "kl": 1.0, "distinct_2": 0.9, "ref_perplexity": 4.0}


@pytest.fixture
def stages(monkeypatch):
    """Configs of the stages in the order they ran; each leaves what it would."""
    ran = {}

    def stage(folder):
        def run(cfg):
            ran[Path(cfg.out).name] = cfg
            (Path(cfg.out) / folder).mkdir(parents=True)

        return run

    for module in ("sft", "online", "preference"):
        monkeypatch.setattr(getattr(chain_stories, module), "run", stage("policy"))
    monkeypatch.setattr(chain_stories.sampling, "run", stage("rows"))
    monkeypatch.setattr(chain_stories.reward_model, "run", stage("reward_model"))
    return ran


@pytest.fixture
def asked(monkeypatch):
    """Which policies were measured, and against what."""
    pairs = []

    def answer(cfg, policy, reference, *, like):
        pairs.append((policy, reference, like.seed))
        return NUMBERS | {"score": 0.1 * len(pairs)}

    monkeypatch.setattr(chain_stories, "answer_from_folder", answer)
    return pairs


def test_each_stage_goes_on_where_it_should(stages, asked, tmp_path, capsys):
    told = main(ChainConfig(out=str(tmp_path / "c"), model="base", seed=3))
    out = f"{tmp_path}/c"
    assert list(stages) == [
        *("sft", "samples", "rejection_sampling", "reward", "ppo", "ppo_samples", "dpo")
    ]
    assert {name: cfg.model.removeprefix(f"{out}/") for name, cfg in stages.items()} == {
        "sft": "base",
        "samples": "sft/policy",
        "rejection_sampling": "sft/policy",
        "reward": "sft/policy",
        "ppo": "rejection_sampling/policy",
        "ppo_samples": "ppo/policy",
        "dpo": "ppo/policy",
    }
    assert all(cfg.seed == 3 for cfg in stages.values())
    for name, samples in (
        ("rejection_sampling", "samples"),
        ("reward", "samples"),
        ("dpo", "ppo_samples"),
    ):
        data = [v for v in vars_of(stages[name]) if "samples=" in repr(v)]
        assert len(data) == 2  # to learn from and held out
        assert all(bound.kw["samples"] == f"{out}/{samples}" for bound in data)
        assert {bound.kw["part"] for bound in data} == {"train", "held_out"}
    ppo = stages["ppo"]
    assert ppo.critic_from == ppo.rewards[0].kw["model"] == f"{out}/reward/reward_model"
    # every policy is measured against the start; the reward model is none
    policies = [
        "base",
        *(f"{out}/{name}/policy" for name in ("sft", "rejection_sampling", "ppo", "dpo")),
    ]
    assert asked == [(policy, "base", 3) for policy in policies]
    assert list(told) == ["start", "sft", "rejection_sampling", "ppo", "dpo"]
    assert told["dpo"]["score"] == pytest.approx(0.5)
    assert json.loads((tmp_path / "c" / "result.json").read_text()) == told
    assert "after ppo: VADER 0.400, KL to the start 1.0" in capsys.readouterr().out


def vars_of(cfg):
    return [getattr(cfg, name) for name in cfg.__dataclass_fields__]


@pytest.mark.parametrize("part", ["sft", "samples", "rejection", "reward", "ppo", "dpo"])
def test_what_the_chain_sets_is_not_an_option_of_a_part(part):
    for option, value in (("out", "x"), ("model", "x"), ("seed", 1), ("restart", True)):
        with pytest.raises(ConfigError, match=rf"{part}.{option} is set by the chain"):
            ChainConfig(**{part: replace(getattr(chain_stories.CONFIG, part), **{option: value})})


def test_policies_must_be_measured():
    with pytest.raises(ConfigError, match=r"sft.answers says how every policy is measured"):
        ChainConfig(sft=replace(chain_stories.SFT, answers=None))
