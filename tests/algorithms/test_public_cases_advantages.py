"""Bugs that were reported in public, as small cases: scores, advantages, filters, whole losses.

Each test bears the name of a report; "wrong" is what the defect gave there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference import sample_batch
from test_estimate import rollout

from rlhf_jax.advantages import (
    group_centred,
    group_leave_one_out,
    group_leave_one_out_normalised,
    group_norm_each,
    group_normalise,
    reward_to_go,
)
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.objective import PolicyObjective, estimate, policy_loss
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.select import top_entropy
from rlhf_jax.algorithms.shaping import clip_score, missing_end_penalty
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import constant_length, sequence_mean, token_mean
from rlhf_jax.ops.masked import masked_var, whiten
from rlhf_jax.ops.shaping import soft_overlong
from rlhf_jax.types import replace, take_rows


def group(scores, fn, **numbers):
    scores_B = jnp.asarray(scores, jnp.float32)
    return np.asarray(fn(scores_B, jnp.zeros(len(scores), jnp.int32), **numbers))


def first_token(objective, scored):
    return np.asarray(estimate(objective, scored).advantage_BT[:, 0])


# --- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ddof", [0, 1])
def test_trl_4662_group_of_one(ddof):
    """A choice: 0, never NaN, and not the raw score as in verl."""
    assert group([0.7], group_normalise, ddof=ddof, eps=0.0) == 0
    assert group([0.7], group_leave_one_out) == 0


@pytest.mark.parametrize("scores", [[1, 1, 1, 1], [0.1] * 3, [0.7] * 8])
def test_nemo_1519_all_rewards_equal(scores):
    labels = estimate(grpo(eps=0.0), rollout(scores))
    assert not np.any(labels.advantage_BT) and labels.metrics["groups_equal"] == 1


@pytest.mark.parametrize(
    ("ddof", "eps", "expected"), [(1, 1e-4, 0.865875), (1, 1e-6, 0.866024), (0, 0.0, 1.0)]
)
def test_trl_verl_ddof_and_eps_of_the_std(ddof, eps, expected):
    """A choice: ddof 0 and eps 1e-6 unless said."""
    advantages = group([0, 0, 1, 1], group_normalise, ddof=ddof, eps=eps)
    np.testing.assert_allclose(advantages, np.array([-1, -1, 1, 1]) * expected, atol=1e-6)
    assert grpo().advantage.kw == {"ddof": 0, "eps": 1e-6}


def test_verl_6348_near_equal_rewards():
    # float32 keeps 1.00001 as 1 + 1.0014e-5; a floor under the variance would give ±.005
    advantages = group([1, 1.00001], group_normalise, ddof=1, eps=1e-6)
    np.testing.assert_allclose(advantages, [-0.619497, 0.619497], atol=2e-4)


def test_openrlhf_1250_leave_one_out():
    expected = [-2.666667, -1.333333, 0, 4]
    np.testing.assert_allclose(group([1, 2, 3, 6], group_leave_one_out), expected, atol=1e-5)
    centred = group([1, 2, 3, 6], group_centred)
    np.testing.assert_allclose(4 / 3 * centred, expected, atol=1e-5)


@pytest.mark.parametrize("jit", [False, True])
def test_nemo_1519_leave_one_out_where_the_others_do_not_differ(jit):
    """[0, 0, 1]: the third's others have no spread; 1, not 1/eps = 1e6."""

    def fn(scores_B):
        return group_leave_one_out_normalised(scores_B, jnp.zeros(3, int), ddof=0, eps=1e-6)

    advantages = (jax.jit(fn) if jit else fn)(jnp.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(advantages, [-1, -1, 1], atol=1e-5)  # ±.5 over a spread of .5
    scaled = (jax.jit(fn) if jit else fn)(jnp.array([0.7, 0.1, 0.1]))
    np.testing.assert_allclose(scaled, [0.6, -1, -1], atol=1e-5)


def test_trl_3491_rows_of_a_group_not_adjacent():
    """Prompts [0, 1, 0, 1]. Wrong (neighbours reshaped into pairs): ∓5."""
    scored = rollout([0.0, 10.0, 1.0, 11.0], group=[0, 1, 0, 1])
    advantages = first_token(dr_grpo(length=3), scored)
    np.testing.assert_allclose(advantages, [-0.5, -0.5, 0.5, 0.5])


# --- several reward functions --------------------------------------------------------------------


def test_trl_5353_none_rewards_and_weights():
    """f1 [1, None]·2, f2 [.5, .5]: totals [2.5, .5]; a row that nothing scores leaves the group."""
    scored = rollout([[2.0, 0.5], [np.nan, 0.5], [np.nan, np.nan]], valid=[[1, 1], [0, 1], [0, 0]])
    labels = estimate(dr_grpo(length=3), scored)
    np.testing.assert_allclose(labels.advantage_BT[:, 0], [1, -1, 0])
    np.testing.assert_allclose(labels.metrics["score"], 1.5)


def test_trl_3857_functions_that_cancel():
    cancel, weighted = rollout([[3, -3], [-3, 3]]), rollout([[6, -3], [-6, 3]])
    summed = grpo(ddof=1, eps=1e-4)
    each = replace(summed, advantage=bind(group_norm_each, ddof=1, eps=1e-4))
    assert not np.any(first_token(summed, cancel)) and not np.any(first_token(each, cancel))
    np.testing.assert_allclose(first_token(summed, weighted), [0.707090, -0.707090], atol=1e-6)
    with_weights = replace(each, advantage=each.advantage.replace(weights=(2.0, 1.0)))
    np.testing.assert_allclose(first_token(with_weights, weighted), [0.70709, -0.70709], atol=1e-4)


# --- rows ----------------------------------------------------------------------------------------


def test_trl_4454_filtering_rows_with_their_old_logprobs():
    _, batch = sample_batch()
    old_BT = jnp.broadcast_to(-jnp.arange(1.0, 9.0)[:, None], batch.mask_BT.shape)
    kept = take_rows(replace(batch, logp_old_BT=old_BT), np.array([0, 2]))
    np.testing.assert_array_equal(kept.logp_old_BT[:, 0], [-1, -3])  # wrong [−1, −2]
    np.testing.assert_array_equal(kept.tokens_BT, batch.tokens_BT[np.array([0, 2])])


def test_nemo_2478_dynamic_sampling_judges_the_raw_score():
    """Scores [1, 1], over-length penalty [0, −1]: the group is dropped."""
    scored = rollout([1.0, 1.0], mask=[[1, 1, 0], [1, 1, 1]])
    labels = estimate(dapo(max_length=3, cache=1), scored)
    assert not np.any(labels.mask_BT) and labels.metrics["groups_kept"] == 0


def test_trl_3506_clipped_fraction_is_global():
    """Four rows on each of two devices, 1 and 3 cut short: .5 on one device or two."""
    scored = replace(rollout([0.0] * 8), truncated_B=jnp.array([1, 0, 0, 0, 1, 1, 1, 0], bool))
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    spread = jax.device_put(scored, NamedSharding(mesh, PartitionSpec("data")))
    run = jax.jit(lambda s: estimate(dr_grpo(length=3), s).metrics["truncated"])
    assert run(scored) == run(spread) == 0.5


# --- whitening, returns --------------------------------------------------------------------------


def test_verl_1527_whitening_over_padded_tokens():
    """A [1, 3, pad]: ±1 by the population, ±.707 by the sample deviation; wrong: three entries."""
    x_BT, mask_BT = jnp.array([[1.0, 3.0, 0.0]]), jnp.array([[True, True, False]])
    np.testing.assert_allclose(whiten(x_BT, mask_BT), [[-1, 1, 0]], atol=1e-6)
    sample = (x_BT - 2.0) / jnp.sqrt(masked_var(x_BT, mask_BT, ddof=1))
    np.testing.assert_allclose(sample[0, :2], [-0.707107, 0.707107], atol=1e-6)


def test_openrlhf_924_reinforce_pp_returns_then_whitening():
    """k1 [.1, .2, .3], β .5, outcome 1: rewards [−.05, −.10, .85], returns [.70, .75, .85]."""
    scored = rollout([1.0], logp_old_BT=[[-0.9, -0.8, -0.7]], logp_ref_BT=[[-1.0, -1.0, -1.0]])
    objective = reinforce_pp(kl_coef=0.5)
    plain = estimate(replace(objective, whiten=None), scored).advantage_BT
    np.testing.assert_allclose(plain, [[0.70, 0.75, 0.85]], atol=1e-6)
    returns = np.array([0.70, 0.75, 0.85])
    expected = (returns - returns.mean()) / np.sqrt(returns.var() + 1e-8)
    np.testing.assert_allclose(estimate(objective, scored).advantage_BT[0], expected, atol=1e-4)


# --- lengths -------------------------------------------------------------------------------------


def test_openrlhf_1250_dr_grpo_has_no_std_and_a_constant_denominator():
    advantages = first_token(dr_grpo(length=3000), rollout([1.0, 0.0, 0.0, 0.0]))
    np.testing.assert_allclose(advantages, [0.75, -0.25, -0.25, -0.25])
    weight_BT = dr_grpo(length=3000).aggregate(jnp.ones((4, 3), bool), jnp.zeros(4, int))
    np.testing.assert_allclose(weight_BT, np.full((4, 3), 1 / (4 * 3000)), rtol=1e-6)


def test_trl_2881_length_bias_of_the_row_mean():
    """Two wrong answers of 2 and 8 tokens: weight a token."""
    mask_BT, group_B = np.arange(8) < np.array([[2], [8]]), jnp.zeros(2, int)
    fns = (sequence_mean, token_mean, bind(constant_length, length=10))
    by_row = [[float(fn(mask_BT, group_B)[b, 0]) for b in range(2)] for fn in fns]
    np.testing.assert_allclose(by_row, [[0.25, 0.0625], [0.1, 0.1], [0.05, 0.05]], rtol=1e-6)


@pytest.mark.parametrize(
    ("stop", "expected"), [(0.5, -0.193147), (0.2, -0.202359), (0.1, -0.155843)]
)
def test_dr_grpo_length_bias_of_wrong_answers(stop, expected):
    """Geometric lengths, the score of the "go on" logit L·s − 1: E[score/|y|] < 0 pushes a wrong
    answer (Â < 0) to go on; with a constant denominator the mean is 0."""
    length = np.arange(1, 400)
    chance, score = stop * (1 - stop) ** (length - 1), length * stop - 1
    mask_BT = np.arange(399) < length[:, None]
    row_mean = np.asarray(sequence_mean(mask_BT, np.zeros(399, int)))[:, 0] * 399
    constant = np.asarray(constant_length(mask_BT, np.zeros(399, int), length=1))[:, 0] * 399
    np.testing.assert_allclose(np.sum(chance * score * row_mean), expected, atol=1e-6)
    np.testing.assert_allclose(np.sum(chance * score * constant), 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "lengths", "expected"),
    [
        # a choice: the penalty stays at its floor beyond the limit (uncapped elsewhere: −.7)
        (dict(max_length=25, cache=5, floor=-0.5), [10, 20, 22, 25, 27], [0, 0, -0.2, -0.5, -0.5]),
        (dict(max_length=25, cache=0, floor=-0.5), [10, 25, 27], [0, 0, -0.5]),
        (dict(max_length=100, cache=20), [50, 80, 90, 100, 110], [0, 0, -0.5, -1, -1]),
    ],
)
def test_verl_5216_overlong_edges(settings, lengths, expected):
    np.testing.assert_allclose(soft_overlong(jnp.array(lengths), **settings), expected, atol=1e-6)


# --- scores --------------------------------------------------------------------------------------


def test_trl_727_scores_are_clipped_before_the_baseline():
    """A choice: [20, 0, 0] at ±10 gives [10, −5, −5]; clipped after the baseline [10, −10, −10]."""
    objective = replace(rloo(kl_coef=None), shape_score=bind(clip_score, limit=10.0))
    np.testing.assert_allclose(first_token(objective, rollout([20.0, 0.0])), [10, -10])
    np.testing.assert_allclose(first_token(objective, rollout([20.0, 0.0, 0.0])), [10, -5, -5])


def test_trl_3750_missing_end_penalty():
    scored = replace(rollout([1.0, 1.0]), truncated_B=jnp.array([False, True]))
    objective = PolicyObjective(
        advantage=bind(reward_to_go), shape_score=bind(missing_end_penalty, penalty=0.5)
    )
    np.testing.assert_allclose(first_token(objective, scored), [1, 0.5])


def test_trl_3715_entropy_mask_over_padding():
    """[.1, .9, .5, .7] and four pads, top half: threshold .6. Wrong (pads counted): all four."""
    mask_BT = jnp.arange(8)[None] < 4
    scored = rollout([1.0], mask=mask_BT, entropy_BT=[[0.1, 0.9, 0.5, 0.7, 0, 0, 0, 0]])
    weight_BT, _ = top_entropy(scored, share=0.5)
    np.testing.assert_array_equal(weight_BT, [[0, 1, 0, 1, 0, 0, 0, 0]])


# --- whole losses --------------------------------------------------------------------------------


def test_trl_3175_clip_ratio_knows_the_sign():
    """Ratios [1.5, .5, 1.5, .5], Â [1, 1, −1, −1]: the first and the last. Wrong: all."""
    _, batch = sample_batch()
    mask_BT, logp_BT = jnp.ones((1, 4), bool), jnp.log(jnp.array([[1.5, 0.5, 1.5, 0.5]])) - 3
    batch = replace(
        take_rows(batch, slice(0, 1)),
        mask_BT=mask_BT,
        advantage_BT=jnp.array([[1.0, 1.0, -1.0, -1.0]]),
        logp_old_BT=jnp.full((1, 4), -3.0),
        logp_ref_BT=None,
        logp_full_BT=None,
        correction_BT=None,
    )
    _, metrics = policy_loss(grpo(beta=None), logp_BT, batch, mask_BT / 4)
    assert metrics["clip_low"].value() + metrics["clip_high"].value() == 0.5


def test_trl_3452_a_loss_of_zero_is_no_alarm():
    """On-policy, centred, no KL: the loss is 0 by construction and its gradient is not."""
    scored = rollout([1.0, 0.0, 0.0, 1.0])
    labels = estimate(grpo(beta=None), scored)
    _, batch = sample_batch()
    batch = replace(
        take_rows(batch, slice(0, 4)),
        mask_BT=labels.mask_BT,
        advantage_BT=labels.advantage_BT,
        logp_old_BT=None,
        logp_ref_BT=None,
        logp_full_BT=None,
        correction_BT=None,
    )
    weight_BT = grpo().aggregate(labels.mask_BT, scored.group_B)

    def loss(logp_BT):
        return policy_loss(grpo(beta=None), logp_BT, batch, weight_BT)[0]

    value, gradient_BT = jax.value_and_grad(loss)(jnp.full((4, 3), -1.0))
    np.testing.assert_allclose(value, 0.0, atol=1e-7)
    assert np.all(np.abs(gradient_BT) > 0.05)
