"""Observations in the middle of a row are as if they were not there, in every algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import gae_row

from rlhf_jax.advantages import process_norm
from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import estimate, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.vapo import vapo
from rlhf_jax.bind import bind
from rlhf_jax.losses.correction import truncated_importance, whole_response
from rlhf_jax.types import PolicyBatch, Scored, replace

OBJECTIVES = {
    "ppo": ppo(kl_coef=0.1),
    "vapo": vapo(alpha=0.5),
    "grpo": grpo(),
    "grpo_process": replace(grpo(), advantage=bind(process_norm)),
    "dr_grpo": dr_grpo(length=5),
    "dapo": dapo(max_length=4, cache=2),
    "rloo": rloo(),
    "reinforce_pp": reinforce_pp(),
    "remax": remax(),
    "gspo": gspo(),
    "gmpo": gmpo(),
    "cispo": cispo(),
    "corrected": replace(
        grpo(), correction=bind(truncated_importance, cap=2.0, over=whole_response)
    ),
}
# Where each row's tokens stand: without its observations, and with them.
CLOSE = [[2, 3, 4, 5, 6], [2, 3, 4], [2, 3, 4, 5, 6], [2, 3]]
APART = [[2, 3, 6, 7, 8], [2, 5, 6], [2, 3, 4, 5, 6], [2, 9]]
WIDTH = {"close": 8, "apart": 10}
GROUP_B = jnp.array([0, 0, 1, 1])


def laid_out(x, columns, width, fill):
    """Rows of numbers in their columns of [B, width]."""
    out_BT = np.full((len(x), width), fill)
    for b, row in enumerate(x):
        out_BT[b, columns[b]] = row[: len(columns[b])]
    return jnp.asarray(out_BT, np.asarray(x).dtype if fill is False else jnp.float32)


def row_values(seed, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(4, 5))


def scored(columns, width, fill):
    def field(x):
        return laid_out(x, columns, width, fill)

    logp = -np.abs(row_values(0)) - 0.1
    step_end = np.zeros((4, 5), bool)
    for b, row in enumerate(columns):
        step_end[b, [1, len(row) - 1]] = True
    return Scored(
        score_BC=jnp.array([[1.0], [0.3], [0.0], [0.7]]),
        valid_BC=jnp.ones((4, 1), bool),
        group_B=GROUP_B,
        mask_BT=laid_out(np.ones((4, 5), bool), columns, width, False),
        truncated_B=jnp.array([False, True, False, False]),
        logp_sampler_BT=field(logp + row_values(1, 0.3)),
        logp_full_BT=field(logp + row_values(2, 0.01)),
        logp_old_BT=field(logp),
        logp_ref_BT=field(logp + row_values(3, 0.4)),
        value_BT=field(row_values(4)),
        last_value_B=jnp.array([0.1, 0.2, 0.3, 0.4]),
        baseline_B=jnp.array([0.5, 0.5, 0.2, 0.2]),
        entropy_BT=field(np.abs(row_values(5))),
    ), dict(
        step_end_BT=laid_out(step_end, columns, width, False), step_score_BT=field(row_values(6))
    )


def labelled(name, columns, width, fill):
    """Advantages, returns, metrics, loss and its gradient of one rollout."""
    objective, (record, steps) = OBJECTIVES[name], scored(columns, width, fill)
    if objective.needs_steps:
        record = replace(record, **steps)
    labels = estimate(objective, record)
    batch = PolicyBatch(
        tokens_BT=jnp.zeros(record.mask_BT.shape, jnp.int32),
        attend_BT=record.mask_BT,
        mask_BT=labels.mask_BT,
        group_B=GROUP_B,
        advantage_BT=labels.advantage_BT,
        logp_old_BT=record.logp_old_BT,
        logp_ref_BT=record.logp_ref_BT,
        logp_full_BT=record.logp_full_BT,
        correction_BT=labels.correction_BT,
        value_old_BT=record.value_BT,
        return_BT=labels.return_BT,
    )
    weight_BT = objective.aggregate(batch.mask_BT, GROUP_B)
    logp_BT = record.logp_old_BT + laid_out(row_values(7, 0.3), columns, width, 0.0)
    value_BT = record.value_BT + laid_out(row_values(8, 0.3), columns, width, 0.0)

    def loss(logp_BT, value_BT):
        return policy_loss(objective, logp_BT, batch, weight_BT, value_BT=value_BT)[0]

    value, gradients = jax.value_and_grad(loss, argnums=(0, 1))(logp_BT, value_BT)
    tokens = {"advantage": labels.advantage_BT, "logp": gradients[0], "value": gradients[1]}
    tokens |= {} if labels.return_BT is None else {"return": labels.return_BT}
    return value, labels.metrics, jax.device_get(tokens)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_gap_changes_nothing_and_gets_no_gradient(name):
    close = labelled(name, CLOSE, WIDTH["close"], 0.0)
    for fill in (99.0, np.nan):
        apart = labelled(name, APART, WIDTH["apart"], fill)
        np.testing.assert_allclose(apart[0], close[0], rtol=1e-6)
        assert apart[1].keys() == close[1].keys()
        for metric, value in close[1].items():
            np.testing.assert_allclose(apart[1][metric], value, rtol=2e-5, err_msg=metric)
        for what, x_BT in apart[2].items():
            for b in range(4):
                here, there = x_BT[b, APART[b]], close[2][what][b, CLOSE[b]]
                np.testing.assert_allclose(here, there, rtol=2e-5, atol=1e-7, err_msg=what)
            outside = np.delete(x_BT[1], APART[1])
            assert (outside == 0).all(), (what, outside)
    moved = np.abs(close[2]["logp"]).sum()
    assert moved > 1e-3, "nothing was tried"


def test_ppo_on_a_row_with_a_gap_token_by_token():
    """Reward: score at the last token, −β·k1 at each sampled one; GAE carries over the gap."""
    record, _ = scored(APART, WIDTH["apart"], 99.0)
    objective = replace(ppo(kl_coef=0.1, gamma=0.9, lam=0.8), whiten=None)
    labels = estimate(objective, record)
    for b, columns in enumerate(APART):
        logp, ref, value = (
            [float(x[b, t]) for t in columns]
            for x in (record.logp_old_BT, record.logp_ref_BT, record.value_BT)
        )
        reward = [-0.1 * (a - r) for a, r in zip(logp, ref, strict=True)]
        reward[-1] += float(record.score_BC[b, 0])
        wanted = gae_row(reward, value, [True] * len(columns), gamma=0.9, lam=0.8)
        np.testing.assert_allclose(labels.advantage_BT[b, np.array(columns)], wanted, rtol=2e-5)
        kl = sum(a - r for a, r in zip(logp, ref, strict=True))
        total = sum(reward)
        assert total == pytest.approx(float(record.score_BC[b, 0]) - 0.1 * kl)
    kl_B = [
        sum(float(record.logp_old_BT[b, t] - record.logp_ref_BT[b, t]) for t in columns)
        for b, columns in enumerate(APART)
    ]
    assert float(labels.metrics["kl_response"]) == pytest.approx(np.mean(kl_B), rel=1e-5)
    assert float(labels.metrics["length"]) == np.mean([len(columns) for columns in APART])
