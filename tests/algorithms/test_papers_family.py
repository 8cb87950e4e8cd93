"""The younger relatives and the options of PPO: parts pinned, sequence gradients, fixed points."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch
from test_papers import WORKED, differences, padded, worked

from rlhf_jax.advantages import (
    gae_adaptive,
    greedy_baseline,
    reward_to_go,
)
from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import PolicyObjective, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.algorithms.shaping import clip_score, missing_end_score
from rlhf_jax.algorithms.vapo import vapo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError, ConfigWarning
from rlhf_jax.losses import reweighted
from rlhf_jax.losses.aggregate import sequence_mean, sequence_sum
from rlhf_jax.losses.kl import KL, adaptive_coef, k1, k2, k3, with_gradient
from rlhf_jax.losses.surrogate import token_ratio, unclipped
from rlhf_jax.losses.value import ValueTerm, clipped_squared, squared
from rlhf_jax.ops.masked import whiten
from rlhf_jax.types import replace


def test_cispo():
    assert differences(cispo(), grpo()) == {"surrogate", "aggregate", "loss_kl"}
    assert cispo(high=0.28).surrogate == bind(reweighted.cispo, high=0.28, low=None)


def test_sapo():
    assert differences(sapo(), grpo(beta=None)) == {"surrogate"}
    assert sapo().surrogate.kw == {"tau_positive": 1.0, "tau_negative": 1.05}


def test_gmpo():
    assert differences(gmpo(), grpo(beta=None)) == {"surrogate"}
    assert gmpo().surrogate.kw == {"low": 0.4, "high": 0.4}


def test_remax():
    objective = remax()
    assert objective.advantage == bind(greedy_baseline) and objective.whiten is None
    assert objective.surrogate == bind(unclipped) and objective.aggregate == bind(sequence_sum)
    assert objective.reward_kl == KL(estimator=bind(k1), coef=0.05)
    assert remax(kl_coef=None).reward_kl is None


def test_vapo():
    objective = vapo()
    assert objective.advantage == bind(gae_adaptive, gamma=1.0, alpha=0.05)
    assert objective.value == ValueTerm(loss=bind(squared), coef=0.1, lam=1.0)
    assert objective.surrogate == dapo().surrogate and objective.reward_kl is None


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kl_coef": 0.15, "kl_target": 6.0, "kl_batch": 512}, "reward_kl"),
        ({"value_clip": None}, "value"),
        ({"missing_end": -1.0}, "shape_score"),
        ({"score_limit": 5.0}, "shape_score"),
        ({"whiten_reward": bind(whiten, shift_mean=False)}, "whiten_reward"),
        ({"whiten_advantage": None}, "whiten"),
        ({"gamma": 0.99}, "advantage"),
        ({"lam": 1.0}, "advantage"),
        ({"clip": 0.1}, "surrogate"),
        ({"value_coef": 0.5}, "value"),
    ],
    ids=str,
)
def test_each_detail_of_ppo_is_one_part(options, part):
    assert differences(ppo(), ppo(**options)) == {part}


def test_details_of_ppo():
    adaptive = ppo(kl_coef=0.15, kl_target=6.0, kl_batch=512).reward_kl
    assert adaptive.controller == bind(adaptive_coef, target=6.0, horizon=1e4, batch=512)
    assert adaptive.coef == 0.15
    ends = ppo(missing_end=-1.0, score_limit=5.0).shape_score
    assert ends == (bind(missing_end_score, score=-1.0), bind(clip_score, limit=5.0))
    assert ppo().value.loss == bind(clipped_squared, clip=0.2)
    assert ppo(value_clip=None).value.loss == bind(squared)
    assert ppo().shape_score == () and ppo().whiten_reward is None
    for missing in ({"kl_coef": None, "kl_batch": 8}, {}):
        with pytest.raises(ConfigError, match="kl_batch"):
            ppo(kl_target=6.0, **missing)


# --- the worked batch of test_papers -------------------------------------------------------------


def test_cispo_golden():
    # ε_high .28: −Σ min(r, 1.28)·Â·log π / 5 = .045438
    (loss, _), gradient_BT = worked(cispo(high=0.28))
    np.testing.assert_allclose(loss, 0.045438, atol=1e-6)
    expected_BT = padded([-0.256, -0.180967], [0.110517, 0.1, 0.067032])
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-6)


def test_sapo_golden():
    # −4σ(r − 1)·Â of [1.349859, .904837] and (4/1.05)σ(1.05(r − 1))/2 of [1.105171, 1, .670320]
    gates = [[4 / (1 + np.exp(1 - r)) for r in (1.349859, 0.904837)]]
    gates += [[4 / 1.05 / (1 + np.exp(1.05 * (1 - r))) for r in (1.105171, 1.0, 0.670320)]]
    expected = (-np.mean(gates[0]) + 0.5 * np.mean(gates[1])) / 2
    np.testing.assert_allclose(worked(sapo())[0][0], expected, rtol=1e-6)


def test_gmpo_worked():
    # Δ [.3, −.1] → bounded above at .2: mean .05; [.1, 0, −.4] → below at −.2: mean −.1/3
    (loss, _), gradient_BT = worked(gmpo(low=0.2, high=0.2))
    s = np.exp([0.05, -0.1 / 3])
    np.testing.assert_allclose(loss, (-s[0] + 0.5 * s[1]) / 2, rtol=1e-6)
    expected_BT = padded([0.0, -s[0] / 4], [s[1] / 12, s[1] / 12, 0.0])
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-6)


# --- objectives of whole rows --------------------------------------------------------------------

LOGP_BT, BATCH = sample_batch()
ROW_BT = jnp.where(MASK_BT, BATCH.advantage_BT[:, 2:3], 0)


def gradient_of(objective, advantage_BT):
    batch = replace(BATCH, advantage_BT=advantage_BT, correction_BT=None)
    weight_BT = objective.aggregate(batch.mask_BT, batch.group_B)
    return jax.grad(lambda x: policy_loss(objective, x, batch, weight_BT)[0])(LOGP_BT)


def rows(advantage_BT, logp_BT):
    columns = (logp_BT, rows_of(BATCH.logp_old_BT), rows_of(advantage_BT), rows_of(MASK_BT))
    for logp_T, old_T, advantage_T, mask_T in zip(*columns, strict=True):
        at = [t for t, m in enumerate(mask_T) if m]
        if at:
            yield [logp_T[t] - old_T[t] for t in at], [advantage_T[t] for t in at]


def test_gmpo_has_the_gradient_of_its_sequence_objective():
    def objective(logp_BT):
        total = 0.0
        for gaps, advantages in rows(ROW_BT, logp_BT):
            sign = 1 if advantages[0] > 0 else -1
            bounded = [sign * min(sign * gap, 0.2) for gap in gaps]
            total -= np.exp(np.mean(bounded)) * advantages[0] / 7  # seven rows with tokens
        return total

    expected_BT = numeric_gradient(objective, LOGP_BT, MASK_BT)
    gradient_BT = gradient_of(gmpo(low=0.2, high=0.2), ROW_BT)
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-5)
    assert np.any((gradient_BT == 0) & MASK_BT)  # some tokens are clipped


def test_gspo_token_form():
    """s_{i,t} = sg[s_i]·π/sg[π]: with advantages by token the gradient is −s_i·Â_{i,t}/(|y|·B′)."""
    wide = gspo(low=10.0, high=10.0)
    by_token_BT = gradient_of(wide, BATCH.advantage_BT)
    lengths_B = MASK_BT.sum(axis=1)
    s_B = np.exp(
        np.where(MASK_BT, LOGP_BT - BATCH.logp_old_BT, 0).sum(1) / np.maximum(lengths_B, 1)
    )
    weight_BT = np.asarray(sequence_mean(MASK_BT, BATCH.group_B))
    expected_BT = -weight_BT * s_B[:, None] * np.asarray(BATCH.advantage_BT)
    np.testing.assert_allclose(by_token_BT, expected_BT, rtol=1e-5, atol=1e-8)


def test_the_share_of_tokens_without_gradient_is_zero_only_in_cispo():
    """After several updates: the clip silences tokens, the clipped weight none."""
    for objective, silent in ((grpo(beta=None), True), (cispo(high=0.2), False)):
        batch = replace(BATCH, correction_BT=None)
        weight_BT = objective.aggregate(batch.mask_BT, batch.group_B)
        _, metrics = policy_loss(objective, LOGP_BT, batch, weight_BT)
        share = metrics["clip_low"].value() + metrics["clip_high"].value()
        assert (share > 0) == silent


def test_remax_and_rloo_differ_in_the_baseline_and_its_ratio():
    assert differences(remax(kl_coef=None), rloo(kl_coef=None)) == {"advantage", "ratio"}


# --- where each placement of a KL pulls ----------------------------------------------------------
# One state, three actions, ref [.5, .3, .2], score [0, 1, 2]; exact expected gradients.

REF_V, SCORE_V = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.0, 1.0, 2.0])
ONE_BT = jnp.ones((3, 1), bool)


@jax.jit
def ascend(objective):
    """The policy after 1500 exact gradient steps of 1 on the expected objective."""

    def loss(logits_V):
        logp_BT = jax.nn.log_softmax(logits_V)[:, None]
        sampled_BT = jax.lax.stop_gradient(logp_BT)
        scored_BT = SCORE_V[:, None]
        if objective.reward_kl is not None:
            kl_BT = objective.reward_kl.estimator(sampled_BT, jnp.log(REF_V)[:, None])
            scored_BT = scored_BT - objective.reward_kl.coef * kl_BT
        batch = replace(
            WORKED,
            tokens_BT=jnp.zeros((3, 1), jnp.int32),
            attend_BT=ONE_BT,
            mask_BT=ONE_BT,
            group_B=jnp.zeros(3, jnp.int32),
            advantage_BT=scored_BT,
            logp_old_BT=None,
            logp_ref_BT=jnp.log(REF_V)[:, None],
        )
        return policy_loss(objective, logp_BT, batch, jnp.exp(sampled_BT))[0]

    def step(logits_V, _):
        return logits_V - jax.grad(loss)(logits_V), None

    return jax.nn.softmax(jax.lax.scan(step, jnp.log(REF_V), length=1500)[0])


GIBBS = {0.5: [0.036667, 0.162559, 0.800774], 1.0: [0.179, 0.291944, 0.529056]}
GIBBS[2.0] = [0.32504, 0.32154, 0.35342]
REVERSE = {0.5: [0.117192, 0.132362, 0.750446], 1.0: [0.212456, 0.221659, 0.565885]}
REVERSE[2.0] = [0.327605, 0.292332, 0.380063]


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("place", "estimator", "ratio", "expected"),
    [
        ("reward_kl", bind(k1), None, GIBBS),
        ("loss_kl", bind(k2), None, GIBBS),
        ("loss_kl", bind(k3), None, REVERSE),
        ("loss_kl", bind(with_gradient, value=k3, gradient=k2), None, GIBBS),
        ("loss_kl", bind(k1), bind(token_ratio), GIBBS),
        ("loss_kl", bind(k3), bind(token_ratio), GIBBS),
    ],
)
def test_fixed_points(place, estimator, ratio, expected, beta):
    """Gibbs π ∝ ref·exp(score/β), or for k3 in the loss π = β·ref/(β + J − score)."""
    kl = KL(estimator=estimator, coef=beta, ratio=ratio)
    objective = PolicyObjective(advantage=reward_to_go, surrogate=unclipped, **{place: kl})
    np.testing.assert_allclose(ascend(objective), expected[beta], atol=1e-5)


def test_k1_in_the_loss_lets_the_policy_collapse():
    """Its expected gradient is 0: as without any KL the best action takes all, whatever β."""
    with pytest.warns(ConfigWarning):
        objective = PolicyObjective(
            advantage=reward_to_go, surrogate=unclipped, loss_kl=KL(estimator=k1, coef=1.0)
        )
    policy_V, free_V = ascend(objective), ascend(replace(objective, loss_kl=None))
    assert policy_V[2] > 0.99
    np.testing.assert_allclose(policy_V, free_V, atol=1e-4)


def test_the_gibbs_policy_has_the_value_beta_log_z():
    # β = 1: Z = 2.793296, J = E[r] − KL = 1.350056 − .322834 = 1.027222 = log Z
    policy_V = np.array(GIBBS[1.0])
    kl = np.sum(policy_V * np.log(policy_V / REF_V))
    np.testing.assert_allclose(policy_V @ np.asarray(SCORE_V) - kl, 1.027222, atol=1e-5)
    np.testing.assert_allclose(np.log(np.sum(REF_V * np.exp(SCORE_V))), 1.027222, atol=1e-5)
