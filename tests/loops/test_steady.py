"""After the second step nothing is compiled; what adapts and what is refreshed survives."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from toy import online_config

from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.loops import online
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.losses.kl import KL, adaptive_coef, k1
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device")
STEPS = 6


def lines_of(cfg):
    lines = Path(cfg.out, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def numbers_of(cfg):
    clocks = {"time", "memory", "seconds", "reward_seconds"}
    return [{k: v for k, v in x.items() if k.split("/")[0] not in clocks} for x in lines_of(cfg)]


@pytest.fixture(scope="module")
def cfg(policy_folder, tmp_path_factory):
    """PPO with everything that moves: minibatches, an adaptive β, a reference that is renewed."""
    controller = bind(adaptive_coef, target=0.05, horizon=64.0, batch=16)
    return online_config(
        policy_folder,
        tmp_path_factory.mktemp("runs") / "whole",
        objective=replace(
            ppo(), reward_kl=KL(estimator=bind(k1), coef=0.15, controller=controller)
        ),
        num_steps=STEPS,
        minibatch_rows=8,
        micro_rows=4,
        refresh_reference_every=2,
        evaluation=EvalConfig(every=1),
    )


@pytest.fixture(scope="module")
def compiled(cfg, one_device):
    """Run it; the number of programs compiled before each step, and after the last."""
    count, before = [0], []

    def event(name, duration, **kw):
        count[0] += name == "/jax/core/compile/backend_compile_duration"

    fill, train = online.fill_batch, online.train

    def counting_fill(*args, **kw):
        before.append(count[0])
        return fill(*args, **kw)

    def counting_train(*args):
        state = train(*args)
        before.append(count[0])
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(online, "fill_batch", counting_fill)
        patch.setattr(online, "train", counting_train)
        jax.monitoring.register_event_duration_secs_listener(event)
        try:
            online.run(cfg)
        finally:
            jax.monitoring.unregister_event_duration_listener(event)
    return before


def test_nothing_is_compiled_after_the_second_step(compiled):
    assert len(compiled) == STEPS + 1
    assert compiled[1] > compiled[0] > 0, "the count counts nothing"
    # step 2 renews the reference for the first time
    assert compiled[2:] == [compiled[2]] * (STEPS - 1)


def test_the_coefficient_adapts(cfg, compiled):
    steps = [line for line in lines_of(cfg) if "kl_coef" in line]
    coef, kl = ([line[name] for line in steps] for name in ("kl_coef", "kl_response"))
    assert len(coef) == STEPS and coef[0] == pytest.approx(0.15)
    for now, measured, then in zip(coef, kl, coef[1:], strict=False):
        error = np.clip(measured / 0.05 - 1, -0.2, 0.2)
        assert then == pytest.approx(now * (1 + error * 16 / 64), rel=1e-5)
    assert len(set(coef)) > 3


def test_a_renewed_reference_is_the_policy(cfg, compiled):
    kl = {line["step"]: line["eval/kl"] for line in lines_of(cfg) if "eval/kl" in line}
    assert [kl[step] for step in (0, 2, 4, 6)] == [0, 0, 0, 0]
    assert min(abs(kl[step]) for step in (1, 3, 5)) > 1e-3
    # a saw-tooth in training too: steps 3 and 5 are the first after a renewal
    kl = {line["step"]: line["kl_response"] for line in lines_of(cfg) if "kl_response" in line}
    assert max(abs(kl[step]) for step in (1, 3, 5)) < 1e-6
    assert min(abs(kl[step]) for step in (2, 4, 6)) > 1e-3
    result = json.loads(Path(cfg.out, "result.json").read_text())
    assert result["steps"] == STEPS and result["updates"] == 2 * STEPS


def test_all_of_it_survives_a_resume(cfg, compiled, tmp_path):
    parts = replace(cfg, out=str(tmp_path / "parts"))
    online.run(replace(parts, num_steps=3))
    online.run(parts)
    assert numbers_of(parts) == numbers_of(cfg)
    policies = [Path(c.out, "policy", "model.safetensors").read_bytes() for c in (parts, cfg)]
    assert policies[0] == policies[1]


def test_keys_depend_on_seed_step_purpose_and_draw():
    keys = {
        tuple(jax.random.key_data(step_key(*args)).tolist())
        for args in [
            (0, 0, "sample"),
            (1, 0, "sample"),
            (0, 1, "sample"),
            (0, 0, "shuffle"),
            (0, 0, "sample", 1),
            (0, 0, "evaluate"),
            (0, 0, "init"),
        ]
    }
    assert len(keys) == 7
    again = jax.random.key_data(step_key(0, 0, "sample"))
    assert tuple(again.tolist()) in keys
