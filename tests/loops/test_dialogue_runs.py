"""Whole runs on dialogues: they learn, compile nothing on the way, and resume to the bit."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from dialogue_toy import PROMPT, TURN, TURNS, Counting, dialogue_config, write_talker
from toy import online_preference_config

from rlhf_jax.advantages import process_norm
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.bind import bind
from rlhf_jax.loops import online, online_preference
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.rewards.dialogue import dialogue_reward
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")
STEPS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_talker(tmp_path_factory.mktemp("models") / "talker")


def lines_of(cfg, name="metrics.jsonl"):
    clocks = {"time", "memory", "seconds", "reward_seconds"}
    lines = [json.loads(line) for line in Path(cfg.out, name).read_text().splitlines()]
    return [{k: v for k, v in x.items() if k.split("/")[0] not in clocks} for x in lines]


@pytest.fixture(scope="module")
def finished(one_device, folder, tmp_path_factory):
    """A run, what it returned, and how many programs were compiled before each step."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    cfg = dialogue_config(
        folder, out, num_steps=STEPS, minibatch_rows=8, evaluation=EvalConfig(every=2)
    )
    count, before, fill = [0], [], online.fill_batch

    def event(name, duration, **kw):
        count[0] += name == "/jax/core/compile/backend_compile_duration"

    def counting_fill(*args, **kw):
        before.append(count[0])
        return fill(*args, **kw)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "fill_batch", counting_fill)
        jax.monitoring.register_event_duration_secs_listener(event)
        try:
            result = online.run(cfg)
        finally:
            jax.monitoring.unregister_event_duration_listener(event)
    return cfg, result, before


def test_the_score_rises(finished):
    cfg, result, _ = finished
    lines = [line for line in lines_of(cfg) if "loss" in line]
    score = [line["score"] for line in lines]
    assert len(score) == STEPS and np.mean(score[-4:]) > np.mean(score[:4]) + 0.2
    assert result["after"]["score"] > result["before"]["score"]
    for line in lines:
        assert None not in line.values()
        assert 1 <= line["turns"] <= TURNS and line["length"] <= TURNS * TURN
        assert line["sampler_gap"] < 1e-5  # the trainer sees what the sampler saw, turn for turn
    evaluated = [line for line in lines_of(cfg) if "eval/score" in line]
    assert len(evaluated) == 1 + STEPS // 2 and all("eval/turns" in line for line in evaluated)
    # counted are the sampled tokens alone
    tokens = sum(round(16 * line["length"]) for line in lines)
    assert result["tokens_drawn"] == result["tokens_trained"] == tokens


def test_the_samples_show_the_observations(finished):
    samples = lines_of(finished[0], "samples.jsonl")
    assert any("<1:" in sample["completion"] for sample in samples)


def test_nothing_is_compiled_after_the_second_step(finished):
    before = finished[2]
    assert len(before) == STEPS and before[1] > before[0] > 0
    assert before[2:] == [before[2]] * (STEPS - 2)


def test_a_resumed_run_ends_the_same_to_the_bit(finished, tmp_path):
    whole = replace(finished[0], num_steps=4)
    parts = replace(whole, out=str(tmp_path / "parts"))
    online.run(replace(parts, num_steps=2))
    online.run(parts)
    straight = replace(whole, out=str(tmp_path / "straight"))
    online.run(straight)
    assert lines_of(parts) == lines_of(straight)
    assert lines_of(parts, "samples.jsonl") == lines_of(straight, "samples.jsonl")
    policies = [Path(c.out, "policy", "model.safetensors").read_bytes() for c in (parts, straight)]
    assert policies[0] == policies[1]
    # and as the first steps of the longer run, which drew the same dialogues
    steps = [[x for x in lines_of(c) if "loss" in x][:4] for c in (parts, finished[0])]
    assert [x["score"] for x in steps[0]] == [x["score"] for x in steps[1]]


class Failing(Counting):
    """Raises at every dialogue about every fourth row."""

    def step(self, text):
        if self._until == 3:
            raise RuntimeError("out of order")
        return super().step(text)


def test_failures_are_counted_in_training_and_evaluation(folder, tmp_path):
    cfg = dialogue_config(
        folder,
        tmp_path,
        environment=bind(Failing),
        reward_errors="skip",
        num_steps=2,
        minibatch_rows=8,
    )
    online.run(cfg)
    steps = [line for line in lines_of(cfg) if "loss" in line]
    failed = [line.get("reward_failures/Failing", 0) for line in steps]
    assert [line["unscored"] for line in steps] == [n / 16 for n in failed] and max(failed) > 0
    evaluated = [line for line in lines_of(cfg) if "eval/score" in line]
    # of held-out rows 16 … 21, and 18, 19 once more to fill the second batch of 4, row 19
    assert {line["eval/reward_failures/Failing"] for line in evaluated} <= {1, 2}


@pytest.mark.parametrize(
    "objective",
    [ppo(), remax(), replace(grpo(), advantage=bind(process_norm))],
    ids=["critic", "greedy baseline", "turns as steps"],
)
def test_what_needs_more_than_a_score_trains(objective, folder, tmp_path):
    cfg = dialogue_config(folder, tmp_path, objective=objective, num_steps=1, num_epochs=2)
    online.run(cfg)
    step = next(line for line in lines_of(cfg) if "loss" in line)
    assert None not in step.values() and step["updates"] == 2 and step["grad_norm"] > 0


def test_online_preferences_of_dialogues(folder, tmp_path):
    like = dialogue_config(folder, tmp_path)
    cfg = online_preference_config(
        folder,
        tmp_path,
        dialogue=like.dialogue,
        rewards=(bind(dialogue_reward),),
        num_steps=1,
        sampling=replace(like.sampling, num_samples=2, max_prompt_tokens=PROMPT),
    )
    online_preference.run(cfg)
    step = next(line for line in lines_of(cfg) if "loss" in line)
    assert step["turns"] > 1 and None not in step.values()
