"""Each algorithm is its paper's sentence: parts pinned, worked losses, sequence gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import GROUP_B, MASK_BT, numeric_gradient, rows_of, sample_batch

from rlhf_jax.advantages import group_centre, group_norm, mixed_group, reward_to_go
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import PolicyObjective, estimate, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.shaping import overlong_penalty
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import constant_length, sequence_mean, sequence_sum, token_mean
from rlhf_jax.losses.kl import KL, k1, k2, k3
from rlhf_jax.losses.surrogate import clipped, geometric_ratio, product_ratio, unclipped
from rlhf_jax.losses.value import clipped_squared
from rlhf_jax.ops.masked import whiten
from rlhf_jax.ops.totals import metric_values
from rlhf_jax.types import PolicyBatch, Scored, replace


def differences(a, b):
    """Names of the parts in which two objectives differ."""
    return {name for name in a.__dataclass_fields__ if getattr(a, name) != getattr(b, name)}


def test_dr_grpo_differs_from_grpo_in_exactly_three_parts():
    assert differences(grpo(), dr_grpo(length=1024)) == {"advantage", "aggregate", "loss_kl"}


def test_dapo_differs_from_grpo_as_its_paper_says():
    assert differences(grpo(), dapo()) == {"surrogate", "aggregate", "loss_kl", "keep_group"}
    assert differences(dapo(), dapo(max_length=20480, cache=4096)) == {"shape_score"}


def test_an_ablation_is_one_line():
    no_std = replace(grpo(), advantage=bind(group_centre))
    by_hand = replace(no_std, aggregate=bind(constant_length, length=1024), loss_kl=None)
    assert by_hand == dr_grpo(length=1024)
    assert differences(grpo(), replace(grpo(), surrogate=bind(clipped, low=0.2, high=0.28))) == {
        "surrogate"
    }
    in_reward = replace(grpo(), loss_kl=None, reward_kl=KL(estimator=bind(k1), coef=0.04))
    assert differences(grpo(), in_reward) == {"loss_kl", "reward_kl"}


def test_grpo():
    objective = grpo()
    assert objective.advantage == bind(group_norm, ddof=0, eps=1e-6)
    assert objective.aggregate == bind(sequence_mean)
    assert objective.loss_kl == KL(estimator=bind(k3), coef=0.04)
    assert grpo(beta=None).loss_kl is None


def test_ppo():
    objective = ppo()
    assert objective.advantage.kw == {"gamma": 1.0, "lam": 0.95}
    assert objective.whiten == bind(whiten) and objective.aggregate == bind(token_mean)
    assert objective.surrogate == bind(clipped, low=0.2, high=0.2)
    assert objective.reward_kl == KL(estimator=bind(k1), coef=0.05)
    assert objective.value.loss == bind(clipped_squared, clip=0.2) and objective.value.coef == 0.1
    assert ppo(kl_coef=None).reward_kl is None


def test_rloo():
    objective = rloo()
    assert objective.ratio == bind(product_ratio) and objective.surrogate == bind(unclipped)
    assert objective.aggregate == bind(sequence_sum)
    assert objective.reward_kl == KL(estimator=bind(k1), coef=0.03) and objective.whiten is None


def test_reinforce_pp():
    objective = reinforce_pp()
    assert objective.advantage == bind(reward_to_go, gamma=1.0)
    assert objective.whiten == bind(whiten) and objective.reward_kl.estimator == bind(k1)
    variant = reinforce_pp_baseline()
    assert differences(objective, variant) == {"advantage", "reward_kl", "loss_kl"}
    assert variant.advantage == bind(group_centre) and variant.loss_kl.estimator == bind(k2)


def test_dapo():
    objective = dapo(max_length=20480, cache=4096)
    assert objective.surrogate == bind(clipped, low=0.2, high=0.28)
    assert objective.keep_group == bind(mixed_group)
    assert objective.shape_score == (bind(overlong_penalty, max_length=20480, cache=4096),)
    with pytest.raises(ConfigError, match="both"):
        dapo(max_length=20480)
    with pytest.raises(ConfigError, match="cache"):
        dapo(max_length=10, cache=20)


def test_gspo():
    objective = gspo()
    assert objective.ratio == bind(geometric_ratio)
    assert objective.surrogate == bind(clipped, low=3e-4, high=4e-4)
    assert differences(objective, grpo()) == {"ratio", "surrogate", "loss_kl"}


# --- one worked batch for all group losses -----------------------------------------------------
# Two responses of 2 and 3 tokens, Â [1, −.5]. Ratios [1.349859, .904837], [1.105171, 1, .670320];
# k3 [.018731, .018731], [.005171, .018731, .005171].


def padded(*rows):
    return jnp.array([[0.0, *row, *[0.0] * (3 - len(row))] for row in rows])


NEW_BT = padded([-0.5, -1.0], [-0.9, -0.3, -2.0])
WORKED = PolicyBatch(
    tokens_BT=jnp.zeros((2, 4), jnp.int32),
    attend_BT=jnp.ones((2, 4), bool),
    mask_BT=padded([1, 1], [1, 1, 1]) > 0,
    group_B=jnp.zeros(2, jnp.int32),
    advantage_BT=padded([1, 1], [-0.5, -0.5, -0.5]),
    logp_old_BT=padded([-0.8, -0.9], [-1.0, -0.3, -1.6]),
    logp_ref_BT=padded([-0.7, -1.2], [-0.8, -0.5, -1.9]),
)


@jax.jit
def worked(objective):
    def loss(logp_BT):
        weight_BT = objective.aggregate(WORKED.mask_BT, WORKED.group_B)
        return policy_loss(objective, logp_BT, WORKED, weight_BT)

    return jax.value_and_grad(loss, has_aux=True)(NEW_BT)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (bind(sequence_mean), [-0.283543, -0.284112, -0.304112]),
        (bind(token_mean), [-0.129918, -0.130450, -0.146450]),
        (bind(constant_length, length=4), [-0.081199, -0.081531, -0.091531]),
        (bind(sequence_sum), [-0.324795, -0.326126, -0.366126]),
    ],
    ids=repr,
)
def test_full_loss_golden(aggregate, expected):
    """ε .2 and β .04; ε .2 without KL; ε .2/.28 without KL."""
    kinds = [grpo(), grpo(beta=None), grpo(beta=None, high=0.28)]
    losses = [worked(replace(kind, aggregate=aggregate))[0][0] for kind in kinds]
    np.testing.assert_allclose(losses, expected, atol=1e-6)


def test_full_gradient_golden():
    (_, metrics), gradient_BT = worked(grpo())
    expected_BT = padded([0.001813, -0.224397], [0.091396, 0.084542, -0.000701])
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-6)
    values = metric_values(metrics)
    np.testing.assert_allclose(values["clip_low"] + values["clip_high"], 0.4, rtol=1e-6)
    np.testing.assert_allclose(values["kl_k3"], (3 * 0.018731 + 2 * 0.005171) / 5, atol=1e-6)


def test_full_loss_of_the_papers_own_records():
    losses = [worked(o)[0][0] for o in (grpo(), dr_grpo(length=4), dapo())]
    np.testing.assert_allclose(losses, [-0.283543, -0.081531, -0.146450], atol=1e-6)


def test_gspo_golden():
    # s = [e^.1, e^−.1]; at 3e-4/4e-4 both rows are clipped, at .2 neither
    np.testing.assert_allclose(worked(gspo())[0][0], -0.250275, atol=1e-6)
    (loss, _), gradient_BT = worked(gspo(low=0.2, high=0.2))
    np.testing.assert_allclose(loss, -0.326376, atol=1e-6)
    # −s·Â/(|y|·B): −1.105171/4 and .904837·.5/6
    expected_BT = padded([-0.276293] * 2, [0.075403] * 3)
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-6)
    assert not np.any(worked(gspo())[1])


# --- sequence objectives -----------------------------------------------------------------------

LOGP_BT, BATCH = sample_batch()
ROW_BT = jnp.where(MASK_BT, BATCH.advantage_BT[:, 2:3], 0)  # one advantage a row
ROWS = replace(BATCH, advantage_BT=ROW_BT, correction_BT=None)


def sequence_logs(logp_BT):
    """(log of the row's product ratio, its length, its advantage) of every row."""
    old_BT, advantage_BT, mask_BT = map(rows_of, (ROWS.logp_old_BT, ROW_BT, MASK_BT))
    for b, mask_T in enumerate(mask_BT):
        at = [t for t, m in enumerate(mask_T) if m]
        if at:
            yield sum(logp_BT[b][t] - old_BT[b][t] for t in at), len(at), advantage_BT[b][at[0]]


def gradient_of(objective):
    weight_BT = objective.aggregate(ROWS.mask_BT, ROWS.group_B)
    return jax.grad(lambda x: policy_loss(objective, x, ROWS, weight_BT)[0])(LOGP_BT)


def test_gspo_has_the_gradient_of_its_sequence_objective():
    low, high, rows = 0.05, 0.1, 7  # seven rows with tokens

    def objective(logp_BT):
        total = 0.0
        for log, length, advantage in sequence_logs(logp_BT):
            s = np.exp(log / length)
            total -= min(s * advantage, min(max(s, 1 - low), 1 + high) * advantage) / rows
        return total

    expected_BT = numeric_gradient(objective, LOGP_BT, MASK_BT)
    gradient_BT = gradient_of(gspo(low=low, high=high))
    np.testing.assert_allclose(gradient_BT, expected_BT, atol=1e-5)
    live_B = np.any(gradient_BT, axis=1)
    assert np.any(live_B) and np.any(~live_B & MASK_BT.any(1))  # some rows clipped, some not


def test_rloo_has_the_gradient_of_its_sequence_objective():
    def objective(logp_BT):
        return -sum(np.exp(log) * advantage for log, _, advantage in sequence_logs(logp_BT)) / 8

    expected_BT = numeric_gradient(objective, LOGP_BT, MASK_BT)
    np.testing.assert_allclose(gradient_of(rloo()), expected_BT, rtol=1e-4, atol=1e-5)


# --- where the KL pulls the policy -------------------------------------------------------------
# One state, three actions, ref [.5, .3, .2], score [0, 1, 2], β = 1. Exact expected gradients.


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        # Gibbs: π ∝ ref·exp(score/β)
        ({"reward_kl": KL(estimator=k1, coef=1.0)}, [0.179000, 0.291944, 0.529056]),
        ({"loss_kl": KL(estimator=k2, coef=1.0)}, [0.179000, 0.291944, 0.529056]),
        # k3 in the loss pulls towards the other KL: π = β·ref/(β + J − score)
        ({"loss_kl": KL(estimator=k3, coef=1.0)}, [0.212456, 0.221659, 0.565885]),
    ],
)
def test_fixed_points(kl, expected):
    ref_V, score_V = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.0, 1.0, 2.0])
    objective = PolicyObjective(advantage=reward_to_go, surrogate=unclipped, **kl)
    one_BT = jnp.ones((3, 1), bool)

    def loss(logits_V):
        logp_BT = jax.nn.log_softmax(logits_V)[:, None]
        sampled_BT = jax.lax.stop_gradient(logp_BT)
        scored = Scored(
            score_BC=score_V[:, None],
            valid_BC=one_BT,
            group_B=jnp.zeros(3, jnp.int32),
            mask_BT=one_BT,
            truncated_B=one_BT[:, 0],
            logp_old_BT=sampled_BT,
            logp_ref_BT=jnp.log(ref_V)[:, None],
        )
        batch = PolicyBatch(
            tokens_BT=jnp.arange(3)[:, None],
            attend_BT=one_BT,
            mask_BT=one_BT,
            group_B=scored.group_B,
            advantage_BT=estimate(objective, scored).advantage_BT,
            logp_ref_BT=scored.logp_ref_BT,
        )
        # each action once, weighed by its probability: the expectation, not an estimate of it
        return policy_loss(objective, logp_BT, batch, jnp.exp(sampled_BT))[0]

    def step(logits_V, _):
        return logits_V - 0.5 * jax.grad(loss)(logits_V), None

    logits_V, _ = jax.jit(lambda z: jax.lax.scan(step, z, length=400))(jnp.log(ref_V))
    np.testing.assert_allclose(jax.nn.softmax(logits_V), expected, atol=1e-4)


def test_length_bias_of_the_row_mean():
    """Wrong answers of length 2 and 8: the row mean pushes a long one down 4 times less a token."""
    mask_BT = np.arange(8) < np.array([[2], [8]])
    by_row = sequence_mean(mask_BT, GROUP_B[:2])
    np.testing.assert_allclose(by_row[0, 0] / by_row[1, 0], 4.0)
    constant = constant_length(mask_BT, GROUP_B[:2], length=10)
    assert constant[0, 0] == constant[1, 0]
