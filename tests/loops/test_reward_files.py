"""What reward functions read is a part of a run: other files are refused, before it begins."""

import json
import os
import shutil
import time
from pathlib import Path

import jax.numpy as jnp
import pytest
from tiny import random_params
from toy import (
    online_config,
    online_preference_config,
    preference_config,
    say,
    sft_config,
    share_of_low_bytes,
)

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, online_preference, preference, sampling, setup, sft
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.reward import RewardNotes, export_reward_model
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.rewards.learned import learned
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


def write_reward_model(folder, policy_folder, *, seed=0):
    """A random reward model of the policy's shape."""
    model = Model(read_config(policy_folder))
    trunk = random_params(model, seed)
    trunk.pop("head", None)
    head = {"w_D": jnp.linspace(-1.0, 1.0, 32), "b": jnp.float32(0.5)}
    notes = RewardNotes(max_tokens=32)
    export_reward_model(
        folder, model.config, {"trunk": trunk, "head": head}, byte_tokenizer(), notes
    )
    later = time.time() + seed  # the clock of some file systems ticks slowly
    os.utime(folder / "config.json", (later, later))
    return folder


def nested(prompts, completions, rows, *, inner):
    return inner(prompts, completions, rows)


@pytest.fixture
def judge(policy_folder, tmp_path):
    return write_reward_model(tmp_path / "judge", policy_folder)


def test_a_run_is_not_continued_with_a_retrained_reward_model(policy_folder, judge, tmp_path):
    rewards = (bind(nested, inner=bind(learned, model=str(judge))),)
    cfg = online_config(policy_folder, tmp_path / "run", rewards=rewards, num_steps=1)
    cfg = replace(cfg, checkpoint=replace(cfg.checkpoint, every=1))
    first = online.run(cfg)
    longer = replace(cfg, num_steps=2)
    write_reward_model(judge, policy_folder, seed=1)
    for again in (cfg, longer):  # finished, and to be continued
        with pytest.raises(ConfigError, match=r"that a reward function reads of .* has changed"):
            online.run(again)
    write_reward_model(judge, policy_folder)  # the same weights written anew are the same model
    assert online.run(longer)["identity"] == first["identity"]


def identities(policy_folder, judge, tmp_path):
    """The identity of every kind of run that scores with a reward model."""
    scored = (bind(learned, model=str(judge)),)
    plain = (bind(share_of_low_bytes),)
    answers = AnswersConfig(
        prompts=bind(say), rewards=scored, max_prompt_tokens=8, max_new_tokens=4
    )
    sample = sampling.SampleConfig(
        out="o",
        model=str(policy_folder),
        prompts=bind(say),
        rewards=scored,
        sampling=online_config("m", "o").sampling,
        num_prompts=2,
    )
    imitation = sft_config(tmp_path / "sft", model=str(policy_folder), answers=answers)
    seen = {}

    def note(cfg, batches, begin, *, identity, **kw):
        seen["sft"] = identity

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sft, "run_offline", note)
        sft.run(imitation)
    return {
        **seen,
        "rewards": setup.read_inputs(online_config(policy_folder, "o", rewards=scored)).identity,
        "watch": setup.read_inputs(
            online_config(policy_folder, "o", rewards=plain, watch=scored)
        ).identity,
        "online_preference": online_preference.read_prompts(
            online_preference_config(policy_folder, "o", rewards=scored)
        ).identity,
        "preference": preference.read_inputs(
            preference_config(policy_folder, "o", answers=answers)
        ).identity,
        "sampling": sampling.read_inputs(sample)[2],
    }


def test_every_loop_knows_its_reward_model(policy_folder, judge, tmp_path):
    before = identities(policy_folder, judge, tmp_path)
    write_reward_model(judge, policy_folder, seed=1)
    after = identities(policy_folder, judge, tmp_path)
    assert before.keys() == after.keys() and len(before) == 6
    assert [name for name in before if before[name] == after[name]] == []


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda judge, policy: shutil.copytree(policy, judge), "is not a reward model"),
        (lambda judge, policy: judge.mkdir(), "config.json is missing"),
        (lambda judge, policy: judge.write_text(""), "is not a folder"),
        (lambda judge, policy: None, "is not a folder"),
    ],
    ids=["a policy", "empty", "a file", "nothing"],
)
def test_another_folder_is_refused_before_the_run(policy_folder, tmp_path, spoil, message):
    judge = tmp_path / "judge"
    spoil(judge, policy_folder)
    rewards = (bind(learned, model=str(judge)),)
    with pytest.raises(ConfigError, match=message):
        online.run(online_config(policy_folder, tmp_path / "run", rewards=rewards))
    assert not (tmp_path / "run").exists()


def no_tokenizer(judge):
    for file in judge.glob("*token*"):
        file.unlink()


def cut_short(judge):
    file = judge / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def few_positions(judge):
    raw = json.loads((judge / "config.json").read_text())
    (judge / "config.json").write_text(json.dumps({**raw, "max_position_embeddings": 16}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_tokenizer, "no tokenizer could be read from"),
        (cut_short, "is cut short or corrupt"),
        (few_positions, r"max_tokens=32 is outside \[2, 16\]"),
    ],
)
def test_a_damaged_reward_model_is_refused_before_the_run(
    policy_folder, judge, tmp_path, spoil, message
):
    spoil(judge)
    rewards = (bind(learned, model=str(judge)),)
    with pytest.raises(ConfigError, match=message):
        online.run(online_config(policy_folder, tmp_path / "run", rewards=rewards))
    assert not Path(tmp_path / "run").exists()
