"""Scores before they are rewards, tokens that teach, and whitened rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import MASK_BT, rows_of, sample_scored
from test_estimate import rollout

from rlhf_jax.advantages import gae, group_centre, group_norm, reward_to_go
from rlhf_jax.algorithms.objective import PolicyObjective, estimate
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.select import drop_truncated, top_entropy
from rlhf_jax.algorithms.shaping import (
    clip_score,
    missing_end_penalty,
    missing_end_score,
    scale_score,
    standardise_score,
)
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.correction import truncated_importance
from rlhf_jax.losses.value import ValueTerm, squared
from rlhf_jax.ops.masked import whiten
from rlhf_jax.types import replace


def cut(scores, truncated, **fields):
    return replace(rollout(scores, **fields), truncated_B=jnp.asarray(truncated, bool))


@pytest.mark.parametrize(
    ("shape", "scores", "truncated", "expected"),
    [
        (bind(missing_end_penalty, penalty=0.5), [1.0, 1.0], [0, 1], [1.0, 0.5]),
        (bind(missing_end_score, score=-1.0), [3.0, 3.0], [0, 1], [3.0, -1.0]),
        (bind(missing_end_score, score=0.0), [1.0, 1.0], [0, 1], [1.0, 0.0]),
        (bind(clip_score, limit=10.0), [20.0, -30.0, 3.0], [0, 0, 0], [10.0, -10.0, 3.0]),
        # mean 2, deviation 4: gain .25, bias −.5
        (bind(scale_score, gain=0.25, bias=-0.5), [2.0, 6.0], [0, 0], [0.0, 1.0]),
        (bind(standardise_score), [1.0, 3.0], [0, 0], [-1.0, 1.0]),
    ],
    ids=repr,
)
def test_shapes_golden(shape, scores, truncated, expected):
    shaped_B = jax.jit(lambda s, x: shape(s, x))(cut(scores, truncated), jnp.array(scores))
    np.testing.assert_allclose(shaped_B, expected, atol=1e-6)


def test_standardising_leaves_out_rows_that_cannot_be_scored():
    scored = rollout([1.0, 3.0, 9.0], valid=[[1], [1], [0]])
    shaped_B = standardise_score(scored, jnp.array([1.0, 3.0, 0.0]))
    np.testing.assert_allclose(shaped_B[:2], [-1, 1], atol=1e-6)


def test_shapes_are_applied_in_their_order():
    """20 → clip 10 → −1 for the cut row; the other way round the −1 would be clipped to itself."""
    scored = cut([20.0, 20.0, 4.0], [0, 1, 0])
    clip, end = bind(clip_score, limit=10.0), bind(missing_end_penalty, penalty=15.0)
    for shapes, expected in (((clip, end), [10.0, -5.0, 4.0]), ((end, clip), [10.0, 5.0, 4.0])):
        objective = PolicyObjective(advantage=bind(reward_to_go), shape_score=shapes)
        np.testing.assert_allclose(estimate(objective, scored).advantage_BT[:, 0], expected)


@pytest.mark.parametrize(
    ("scores", "expected"), [([20.0, 0.0], [10, -10]), ([20.0, 0.0, 0.0], [10, -5, -5])]
)
def test_scores_are_clipped_before_the_baseline(scores, expected):
    """A choice: clipped after it the second would be [10, −10, −10]."""
    objective = replace(rloo(kl_coef=None), shape_score=bind(clip_score, limit=10.0))
    advantage_BT = estimate(objective, rollout(scores)).advantage_BT
    np.testing.assert_allclose(advantage_BT[:, 0], expected, rtol=1e-6)


# --- whitened rewards ----------------------------------------------------------------------------


def test_whitened_rewards_golden():
    """[−.02, .01, −.03, 1] with the mean kept: [−.352, −.284, −.375, 1.971] (population, 1e-8)."""
    reward_T = [-0.02, 0.01, -0.03, 1.0]
    reward_BT = whiten(jnp.array([reward_T]), jnp.ones((1, 4), bool), shift_mean=False)
    expected_BT = [[-0.352211, -0.283879, -0.374988, 1.971077]]
    np.testing.assert_allclose(reward_BT, expected_BT, atol=2e-6)


def test_rewards_are_whitened_after_the_kl_and_before_the_advantage():
    scored = rollout(
        [0.8],
        logp_old_BT=[[-1.0, -0.5, -2.0]],
        logp_ref_BT=[[-1.2, -0.9, -1.5]],
        value_BT=[[0.2, 0.3, 0.5]],
    )
    objective = ppo(
        kl_coef=0.1, whiten_reward=bind(whiten, shift_mean=False), whiten_advantage=None
    )
    labels = estimate(objective, scored)
    reward_BT = whiten(jnp.array([[-0.02, -0.04, 0.85]]), scored.mask_BT, shift_mean=False)
    expected_BT = gae(scored, reward_BT)
    np.testing.assert_allclose(labels.advantage_BT, expected_BT, rtol=1e-5)
    np.testing.assert_allclose(labels.return_BT, expected_BT + scored.value_BT, rtol=1e-5)
    # the metric is the reward before whitening: score − β·ΣKL
    np.testing.assert_allclose(labels.metrics["reward"], 0.8 - 0.1 * 0.1, atol=1e-6)


# --- step rewards as rewards ---------------------------------------------------------------------


def test_step_scores_are_rewards_at_the_end_of_their_step():
    end_BT = [[1, 0, 0], [0, 1, 1]]
    scored = rollout([1.0, 0.0], step_score_BT=[[0.5, 9.0, 9.0], [9.0, 0.25, 0.125]])
    scored = replace(scored, step_end_BT=jnp.asarray(end_BT, bool))
    labels = estimate(PolicyObjective(advantage=bind(reward_to_go)), scored)
    np.testing.assert_allclose(labels.advantage_BT, [[1.5, 1, 1], [0.375, 0.375, 0.125]])


def test_a_row_with_only_step_scores_counts():
    scored = rollout([0.0, 0.0], valid=[[0], [0]], step_score_BT=[[1.0, 0, 0], [3.0, 0, 0]])
    scored = replace(scored, step_end_BT=jnp.asarray([[1, 0, 0], [1, 0, 0]], bool))
    labels = estimate(PolicyObjective(advantage=bind(group_centre)), scored)
    np.testing.assert_allclose(labels.advantage_BT[:, 0], [-1, 1])


# --- which tokens teach --------------------------------------------------------------------------


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_top_entropy_equals_numpys_quantile(share, jit):
    fn = jax.jit(top_entropy) if jit else top_entropy
    scored = sample_scored()
    weight_BT, mask_BT = fn(scored, share=share)
    entropy_BT = np.asarray(scored.entropy_BT)
    threshold = np.quantile(entropy_BT[MASK_BT], 1 - share)
    np.testing.assert_array_equal(weight_BT, MASK_BT & (entropy_BT >= threshold - 1e-6))
    np.testing.assert_array_equal(mask_BT, MASK_BT)  # a weight: the denominators stay
    junk_BT, _ = fn(sample_scored(fill=np.nan), share=share)
    np.testing.assert_array_equal(junk_BT, weight_BT)


def test_top_entropy_of_nothing_and_without_entropies():
    empty = replace(sample_scored(), mask_BT=jnp.zeros(MASK_BT.shape, bool))
    assert not np.any(top_entropy(empty)[0])
    with pytest.raises(ConfigError, match="entropy_BT"):
        top_entropy(replace(empty, entropy_BT=None))


def test_truncated_rows_leave_the_mask_and_stay_in_the_baseline():
    """Lengths 2 and 3, the second cut short: weights 1/2 each, not 1/5; its score still counts."""
    scored = cut([1.0, 0.0], [0, 1], mask=[[1, 1, 0], [1, 1, 1]])
    objective = PolicyObjective(advantage=bind(group_norm), select=(drop_truncated,))
    labels = estimate(objective, scored)
    np.testing.assert_allclose(labels.advantage_BT, [[1, 1, 0], [0, 0, 0]], atol=1e-5)
    weight_BT = token_mean(labels.mask_BT, scored.group_B)
    np.testing.assert_array_equal(weight_BT, [[0.5, 0.5, 0], [0, 0, 0]])
    np.testing.assert_allclose(labels.metrics["unused"], 0.6)
    everything = estimate(objective, cut([1.0, 0.0], [1, 1]))
    assert not np.any(token_mean(everything.mask_BT, scored.group_B))


def test_selection_and_correction_weights_multiply():
    scored = rollout(
        [1.0, 0.0],
        logp_old_BT=[[-1.0] * 3] * 2,
        logp_sampler_BT=[[-1.5, -1.0, -1.0]] * 2,
        entropy_BT=[[0.1, 0.2, 0.9], [0.8, 0.7, 0.3]],
    )
    objective = PolicyObjective(
        advantage=bind(group_norm),
        correction=bind(truncated_importance, cap=2.0),
        select=(bind(top_entropy, share=0.5),),
    )
    labels = estimate(objective, scored)
    expected_BT = [[0, 0, 1], [1.648721, 1, 0]]
    np.testing.assert_allclose(labels.correction_BT, expected_BT, rtol=1e-6)
    np.testing.assert_allclose(labels.metrics["unused"], 0.5)


def test_a_dropped_row_teaches_the_critic_nothing_either():
    scored = cut([1.0, 0.0], [0, 1], value_BT=[[0.5] * 3] * 2)
    objective = PolicyObjective(
        advantage=bind(gae), select=(drop_truncated,), value=ValueTerm(loss=squared, coef=0.1)
    )
    labels = estimate(objective, scored)
    assert rows_of(labels.return_BT[1]) == [0, 0, 0] and np.all(labels.return_BT[0] != 0)
