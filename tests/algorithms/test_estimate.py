"""From scores to frozen labels: the order of the steps, pinned one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference import MASK_BT, sample_scored

from rlhf_jax.advantages import gae, group_norm, mixed_group, reward_to_go
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import PolicyObjective, estimate, total_score
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.select import drop_truncated, top_entropy
from rlhf_jax.algorithms.shaping import (
    clip_score,
    missing_end_penalty,
    overlong_penalty,
    scale_score,
    standardise_score,
)
from rlhf_jax.algorithms.vapo import vapo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.correction import rejected, truncated_importance, whole_response
from rlhf_jax.losses.kl import KL, k1
from rlhf_jax.losses.value import ValueTerm, squared
from rlhf_jax.ops.masked import whiten
from rlhf_jax.types import Scored, replace

OBJECTIVES = {
    "grpo": grpo(),
    "dr_grpo": dr_grpo(length=5),
    "ppo": ppo(),
    "rloo": rloo(),
    "reinforce_pp": reinforce_pp(),
    "reinforce_pp_baseline": reinforce_pp_baseline(),
    "dapo": dapo(max_length=4, cache=2),
    "gspo": gspo(),
    "remax": remax(),
    "vapo": vapo(alpha=0.5),
    "corrected": replace(grpo(), correction=bind(truncated_importance, cap=2.0)),
    "shaped": replace(
        ppo(missing_end=-1.0, score_limit=2.0, whiten_reward=bind(whiten, shift_mean=False)),
        shape_score=(
            bind(missing_end_penalty, penalty=0.5),
            bind(scale_score, gain=2.0, bias=0.1),
            bind(standardise_score),
            bind(clip_score, limit=1.0),
        ),
        correction=bind(rejected, least=0.5, most=2.0, over=whole_response),
        select=(bind(top_entropy, share=0.5), bind(drop_truncated)),
    ),
}
JITTED = jax.jit(estimate)


def rollout(scores, *, mask=None, valid=None, group=None, **fields):
    """Rows of full length 3 (unless masked), one reward function, one group."""
    score_BC = jnp.asarray(scores, jnp.float32)
    score_BC = score_BC[:, None] if score_BC.ndim == 1 else score_BC
    rows = score_BC.shape[0]
    return Scored(
        score_BC=score_BC,
        valid_BC=jnp.ones_like(score_BC, bool) if valid is None else jnp.asarray(valid, bool),
        group_B=jnp.zeros(rows, jnp.int32) if group is None else jnp.asarray(group),
        mask_BT=jnp.ones((rows, 3), bool) if mask is None else jnp.asarray(mask, bool),
        truncated_B=jnp.zeros(rows, bool),
        **{k: jnp.asarray(v, jnp.float32) for k, v in fields.items()},
    )


@pytest.mark.parametrize("name", OBJECTIVES)
def test_junk_in_the_padding_and_invalid_scores_changes_nothing(name):
    clean = JITTED(OBJECTIVES[name], sample_scored())
    junk = JITTED(OBJECTIVES[name], sample_scored(fill=np.nan))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(junk), strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.all(np.isfinite(a))
    assert not np.any(np.asarray(clean.advantage_BT)[~np.asarray(clean.mask_BT)])


def test_jit_changes_nothing():
    for objective in (OBJECTIVES["ppo"], OBJECTIVES["dapo"]):
        eager, jitted = estimate(objective, sample_scored()), JITTED(objective, sample_scored())
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(jitted), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_eight_devices_equal_one():
    @jax.jit
    def run(scored):
        names = ("ppo", "rloo", "dapo", "corrected", "shaped", "remax")  # between them every part
        return [estimate(OBJECTIVES[name], scored) for name in names]

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put(sample_scored(), NamedSharding(mesh, PartitionSpec("data")))
    one, eight = run(sample_scored()), run(spread)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(eight), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# --- scores ------------------------------------------------------------------------------------


def test_scores_of_several_functions_are_added_where_they_apply():
    # weighted already: 2·1 + .5, and a function that does not apply (its NaN is not read)
    scored = rollout([[2.0, 0.5], [np.nan, 0.5]], valid=[[1, 1], [0, 1]])
    np.testing.assert_allclose(total_score(scored), [2.5, 0.5])


def test_functions_that_cancel_leave_nothing_to_learn():
    objective = grpo(ddof=1, eps=1e-4)
    cancelled = estimate(objective, rollout([[3, -3], [-3, 3]]))
    assert not np.any(cancelled.advantage_BT)
    assert cancelled.metrics["groups_equal"] == 1
    weighted_BT = estimate(objective, rollout([[6, -3], [-6, 3]])).advantage_BT
    np.testing.assert_allclose(weighted_BT[:, 0], [0.707090, -0.707090], atol=1e-6)


def test_a_row_that_none_could_score_leaves_the_batch():
    scored = rollout([2.5, 0.5, 9.0], valid=[[1], [1], [0]])
    labels = estimate(dr_grpo(length=3), scored)
    np.testing.assert_allclose(labels.advantage_BT[:, 0], [1, -1, 0])  # mean 1.5 of two rows
    np.testing.assert_array_equal(np.any(labels.mask_BT, axis=1), [1, 1, 0])
    np.testing.assert_allclose(labels.metrics["unscored"], 1 / 3, rtol=1e-6)
    np.testing.assert_allclose(labels.metrics["score"], 1.5)


def test_a_row_without_tokens_enters_no_baseline():
    mask = [[1, 1, 1], [1, 1, 0], [0, 0, 0]]
    labels = estimate(dr_grpo(length=3), rollout([1.0, 0.0, 0.0], mask=mask))
    np.testing.assert_allclose(labels.advantage_BT, [[0.5] * 3, [-0.5, -0.5, 0], [0] * 3])


def test_a_group_of_one_has_no_advantage():
    for objective in (grpo(), grpo(ddof=1), dr_grpo(length=3), rloo(kl_coef=None)):
        labels = estimate(objective, rollout([0.7]))
        assert not np.any(labels.advantage_BT)


# --- filters and shaping -----------------------------------------------------------------------


def test_groups_are_judged_before_shaping():
    """Raw scores [1, 1], penalty [0, −1]: dropped. Judged on the shaped score it would stay."""
    mask, group = [[1, 1, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]], [0, 0, 1, 1]
    objective = PolicyObjective(
        advantage=bind(group_norm),
        shape_score=bind(overlong_penalty, max_length=3, cache=1),
        keep_group=bind(mixed_group),
    )
    labels = estimate(objective, rollout([1.0, 1.0, 1.0, 0.0], mask=mask, group=group))
    np.testing.assert_array_equal(np.any(labels.mask_BT, axis=1), [0, 0, 1, 1])
    np.testing.assert_allclose(labels.advantage_BT[:, 0], [0, 0, 1, -1], atol=1e-5)
    assert labels.metrics["groups_kept"] == labels.metrics["groups_equal"] == 0.5
    # without the filter the penalty tells the rows apart
    unfiltered = estimate(replace(objective, keep_group=None), rollout([1.0, 1.0], mask=mask[:2]))
    np.testing.assert_allclose(unfiltered.advantage_BT[:, 0], [1, -1], atol=1e-5)
    assert unfiltered.metrics["groups_kept"] == 1


def test_filtered_rows_do_not_count_in_the_whitening():
    scored = rollout([1.0, 3.0, 50.0, 50.0], group=[0, 0, 1, 1])
    objective = replace(reinforce_pp(kl_coef=None), keep_group=bind(mixed_group))
    labels = estimate(objective, scored)
    np.testing.assert_allclose(labels.advantage_BT[:, 0], [-1, 1, 0, 0], atol=1e-5)


# --- KL in the reward --------------------------------------------------------------------------

PIPELINE = {
    "logp_old_BT": [[-1.0, -0.5, -2.0]],
    "logp_ref_BT": [[-1.2, -0.9, -1.5]],
    "value_BT": [[0.2, 0.3, 0.5]],
}


def test_token_pipeline_golden():
    """Score .8, β .1: rewards [−.02, −.04, .85] → GAE(1, .95) → returns → whitened."""
    labels = estimate(ppo(kl_coef=0.1), rollout([0.8], **PIPELINE))
    np.testing.assert_allclose(labels.return_BT, [[0.747875, 0.7925, 0.85]], atol=1e-6)
    expected_BT = [[1.012779, 0.348424, -1.361203]]
    np.testing.assert_allclose(labels.advantage_BT, expected_BT, atol=1e-5)
    np.testing.assert_allclose(labels.metrics["reward"], 0.8 - 0.1 * 0.1, atol=1e-6)
    np.testing.assert_allclose(labels.metrics["kl_response"], 0.1, atol=1e-6)  # .2 + .4 − .5


def test_critic_targets_may_have_their_own_lambda():
    # policy λ 0: Â = δ = [.08, .16, .35]; critic λ 1: Monte Carlo [.79, .81, .85]
    objective = replace(
        ppo(kl_coef=0.1, lam=0.0), whiten=None, value=ValueTerm(loss=squared, coef=0.1, lam=1.0)
    )
    labels = estimate(objective, rollout([0.8], **PIPELINE))
    np.testing.assert_allclose(labels.advantage_BT, [[0.08, 0.16, 0.35]], atol=1e-6)
    np.testing.assert_allclose(labels.return_BT, [[0.79, 0.81, 0.85]], atol=1e-6)


def test_sampler_logprobs_stand_in_where_the_trainer_has_not_scored():
    fields = {**PIPELINE, "logp_full_BT": PIPELINE["logp_old_BT"]}
    scored = rollout([0.8], **fields)
    without = replace(scored, logp_old_BT=None)
    a, b = (estimate(ppo(kl_coef=0.1), s) for s in (scored, without))
    np.testing.assert_array_equal(a.advantage_BT, b.advantage_BT)
    assert a.metrics["sampler_gap"] == 0 and "sampler_gap" not in b.metrics


def test_reinforce_pp_golden():
    """Token rewards [−.01, .02, 1] and [0, −.02]: returns, then whitened over all five tokens."""
    scored = rollout(
        [1.0, 0.0],
        mask=[[1, 1, 1], [1, 1, 0]],
        logp_old_BT=[[0.01 - 2, -0.02 - 2, -2], [-2, 0.02 - 2, -9]],
        logp_ref_BT=[[-2, -2, -2], [-2, -2, -1]],
    )
    labels = estimate(reinforce_pp(kl_coef=1.0), scored)
    expected_BT = [[0.816432, 0.836249, 0.796616], [-1.224649, -1.224649, 0]]
    np.testing.assert_allclose(labels.advantage_BT, expected_BT, atol=1e-4)


def test_leave_one_out_sees_the_kl_of_the_whole_response():
    """R = score − β·Σk1 = [1 − .1·.6, 0 − .1·(−.3)] = [.94, .03]; Â = ±.91."""
    scored = rollout(
        [1.0, 0.0],
        mask=[[1, 1, 1], [1, 1, 0]],
        logp_old_BT=[[-1.0, -1.0, -1.0], [-1.0, -1.0, 0.0]],
        logp_ref_BT=[[-1.1, -1.2, -1.3], [-0.9, -0.8, 7.0]],
    )
    labels = estimate(rloo(kl_coef=0.1), scored)
    np.testing.assert_allclose(labels.advantage_BT, [[0.91] * 3, [-0.91, -0.91, 0]], atol=1e-6)


# --- correction --------------------------------------------------------------------------------


def test_correction_uses_the_distribution_drawn_from_and_counts_nan():
    scored = rollout(
        [1.0, 0.0],
        logp_old_BT=[[-3.0, -2.5, -1.8]] * 2,
        logp_sampler_BT=[[-3.0, -3.0, -3.0], [-3.0, -3.0, np.nan]],
    )
    labels = estimate(OBJECTIVES["corrected"], scored)
    expected_BT = [[1, 1.648721, 2.0], [1, 1.648721, 1.0]]
    np.testing.assert_allclose(labels.correction_BT, expected_BT, rtol=1e-6)
    np.testing.assert_allclose(labels.metrics["sampler_nan"], 1 / 6, rtol=1e-6)


def drop_far(logp_old_BT, logp_sampler_BT, mask_BT):
    """A rejection: acts on the mask, weights stay 1."""
    near_BT = jnp.abs(logp_old_BT - logp_sampler_BT) < 1
    return jnp.ones_like(logp_old_BT), mask_BT & near_BT


def test_a_rejection_changes_the_mask_and_so_the_denominators():
    scored = rollout([1.0, 0.0], logp_old_BT=[[-1.0] * 3] * 2, logp_sampler_BT=[[-1, -1, -5]] * 2)
    objective = replace(grpo(beta=None), correction=drop_far)
    labels = estimate(objective, scored)
    np.testing.assert_array_equal(labels.mask_BT, [[1, 1, 0]] * 2)
    weight_BT = objective.aggregate(labels.mask_BT, scored.group_B)
    np.testing.assert_allclose(weight_BT, [[0.25, 0.25, 0]] * 2)


# --- what is missing, what is measured ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ppo", "logp_ref_BT"),
        ("ppo", "value_BT"),
        ("corrected", "logp_old_BT"),
        ("corrected", "logp_sampler_BT"),
    ],
)
def test_a_missing_input_is_named(name, field):
    with pytest.raises(ConfigError, match=field):
        estimate(OBJECTIVES[name], replace(sample_scored(), **{field: None}))


def test_metrics_of_the_rollout():
    metrics = JITTED(ppo(), sample_scored()).metrics
    scored = sample_scored()
    scored_rows = np.asarray(scored.valid_BC).any(1) & MASK_BT.any(1)
    np.testing.assert_allclose(metrics["length"], MASK_BT.sum(1).mean())
    np.testing.assert_allclose(metrics["truncated"], 2 / 8)
    np.testing.assert_allclose(metrics["unscored"], 1 - scored_rows.mean())
    score_B = np.where(scored.valid_BC, scored.score_BC, 0).sum(1)
    np.testing.assert_allclose(metrics["score"], score_B[scored_rows].mean(), rtol=1e-5)
    assert metrics["groups_equal"] == 0 and metrics["groups_kept"] == 1


def test_lengths_of_better_and_worse_rows():
    """Better are the rows of 2 and 3 tokens, worse those of 1 and 3, neither the last two."""
    mask = [[1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]
    scored = rollout([0.0, 1.0, 0.7, 0.3, 0.1, 0.1], mask=mask, group=[0, 0, 1, 1, 2, 2])
    metrics = JITTED(dapo(), scored).metrics
    assert (metrics["length_better"], metrics["length_worse"]) == (2.5, 2.0)
    equal = JITTED(dapo(), rollout([0.1] * 6, mask=mask, group=[0, 0, 0, 1, 1, 1])).metrics
    assert np.isnan(equal["length_better"]) and np.isnan(equal["length_worse"])


def test_fractions_of_groups_count_groups_and_not_rows():
    scored = rollout([1.0, 1.0, 1.0, 1.0, 0.0], group=[0, 0, 0, 1, 1])
    metrics = JITTED(dapo(), scored).metrics
    assert metrics["groups_equal"] == metrics["groups_kept"] == 0.5  # by rows .6 and .4


def test_explained_variance_of_the_critic():
    perfect = rollout([1.0, 0.0], value_BT=[[1.0] * 3, [0.0] * 3])
    objective = PolicyObjective(
        advantage=bind(gae, gamma=1.0, lam=1.0), value=ValueTerm(loss=squared, coef=0.1)
    )
    assert estimate(objective, perfect).metrics["value_explained"] == 1
    blind = replace(perfect, value_BT=jnp.full((2, 3), 0.5))
    np.testing.assert_allclose(estimate(objective, blind).metrics["value_explained"], 0, atol=1e-6)


def test_labels_carry_no_gradient():
    def total(logp_BT):
        scored = replace(rollout([0.8], **PIPELINE), logp_old_BT=logp_BT)
        objective = PolicyObjective(
            advantage=bind(reward_to_go), reward_kl=KL(estimator=bind(k1), coef=0.1)
        )
        return jnp.sum(estimate(objective, scored).advantage_BT ** 2)

    assert not np.any(jax.grad(total)(jnp.array(PIPELINE["logp_old_BT"])))
