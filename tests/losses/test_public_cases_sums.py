"""Bugs that were reported in public, as small cases: reductions, KL, critic, metrics.

Each test bears the name of a report; "wrong" is what the defect gave there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_public_cases import ones, row

from rlhf_jax.advantages import gae_advantages
from rlhf_jax.losses import aggregate as weights
from rlhf_jax.losses.aggregate import weighted_sum
from rlhf_jax.losses.kl import KL, k1, k2, k3, kl_tokens
from rlhf_jax.losses.surrogate import token_ratio
from rlhf_jax.losses.value import squared
from rlhf_jax.ops.logprobs import shift_right
from rlhf_jax.ops.shaping import place_at_last, subtract_kl
from rlhf_jax.ops.totals import Total, total

# --- reductions ----------------------------------------------------------------------------------


def ragged(*rows):
    length = max(map(len, rows))
    mask_BT = jnp.array([[t < len(r) for t in range(length)] for r in rows])
    loss_BT = jnp.array([list(r) + [jnp.nan] * (length - len(r)) for r in rows], jnp.float32)
    return loss_BT, mask_BT, jnp.zeros(len(rows), int)


def reduce(fn, loss_BT, mask_BT, group_B, **numbers):
    return float(weighted_sum(loss_BT, fn(mask_BT, group_B, **numbers)))


def test_verl_5366_aggregation_modes():
    batch = ragged([1, 2], [3, 4, 5], [7])
    values = [reduce(fn, *batch) for fn in (weights.token_mean, weights.sequence_mean)]
    values += [reduce(weights.sequence_sum, *batch)]
    values += [reduce(weights.constant_length, *batch, length=4)]
    np.testing.assert_allclose(values, [3.666667, 4.166667, 7.333333, 1.833333], rtol=1e-6)


def test_open_instruct_1685_fully_masked_row():
    loss_BT, mask_BT = jnp.array([[1.0, 3], [5, 7]]), jnp.array([[True, True], [False, False]])
    group_B = jnp.zeros(2, int)
    assert reduce(weights.sequence_mean, loss_BT, mask_BT, group_B) == 2.0  # wrong 1.0 or NaN
    gradient_BT = jax.grad(
        lambda x: weighted_sum(x, weights.sequence_mean(mask_BT & False, group_B))
    )(loss_BT)
    assert not np.any(gradient_BT)
    # a choice: means of rows or of tokens, [[1, 2], [4]] gives 2.75 or 7/3
    uneven = ragged([1, 2], [4])
    assert reduce(weights.sequence_mean, *uneven) == 2.75
    np.testing.assert_allclose(reduce(weights.token_mean, *uneven), 7 / 3, rtol=1e-6)


def test_trl_2615_gradient_accumulation_is_no_mean_of_means():
    """Token losses [1, 2, 3] and [10] in two micro-batches: 4. Wrong: 6, or 12."""
    loss_BT, mask_BT, group_B = ragged([1, 2, 3], [10])
    weight_BT = weights.token_mean(mask_BT, group_B)
    parts = [weighted_sum(loss_BT[i : i + 1], weight_BT[i : i + 1]) for i in range(2)]
    np.testing.assert_allclose(sum(parts), 4.0)


@pytest.mark.parametrize(("truncated", "expected"), [([0, 1], 1.0), ([1, 1], 0.0)])
def test_trl_6439_token_count_after_truncated_rows_are_masked(truncated, expected):
    loss_BT, mask_BT, group_B = ragged([1, 1], [1, 1, 1])
    kept_BT = mask_BT & ~jnp.array(truncated, bool)[:, None]
    assert reduce(weights.token_mean, loss_BT, kept_BT, group_B) == expected  # wrong .4


def test_trl_4112_global_count():
    """Eight tokens over two ranks, local sums 4: the loss is 1."""
    weight_BT = weights.token_mean(jnp.ones((2, 4), bool), jnp.zeros(2, int))
    parts = [weighted_sum(jnp.ones((1, 4)), weight_BT[i : i + 1]) for i in range(2)]
    assert sum(parts) == 1.0


# --- KL ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logp", "ref", "expected"),
    [
        (-1.0, -1.5, [0.5, 0.125, 0.106531]),
        (-1.5, -1.0, [-0.5, 0.125, 0.148721]),
        (-1.0, 0.0, [-1.0, 0.5, 0.718282]),
    ],
)
def test_verl_179_kl_estimators_and_their_sign(logp, ref, expected):
    values = [fn(jnp.float32(logp), jnp.float32(ref)) for fn in (k1, k2, k3)]
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_nemo_876_kl_overflow():
    """A choice: the log-ratio is clamped to ±20, not the estimate; the gradient there is 0."""
    value, gradient = jax.value_and_grad(k3)(jnp.float32(-39.9), jnp.float32(0.0))
    np.testing.assert_allclose(value, 485165174.4, rtol=1e-6)  # unclamped 2.1e17
    assert gradient == 0


def test_trl_925_negative_kl_is_an_alarm_about_the_sampling():
    """π [.6, .4], ref [.7, .3], always the first token: k1 −.154 for a KL of .023."""
    policy, ref = jnp.log(jnp.array([0.6, 0.4])), jnp.log(jnp.array([0.7, 0.3]))
    np.testing.assert_allclose(k1(policy, ref)[0], -0.154151, atol=1e-6)
    np.testing.assert_allclose(k3(policy, ref)[0], 0.012516, atol=1e-6)
    np.testing.assert_allclose(jnp.exp(policy) @ k1(policy, ref), 0.022582, atol=1e-6)


def test_verl_3916_kl_in_the_reward_after_the_mask():
    mask = jnp.array([[True, False, True]])
    reward = subtract_kl(place_at_last(jnp.ones(1), mask), row(0.5, 9, 0.2), 0.1, mask)
    np.testing.assert_allclose(reward, [[-0.05, 0, 0.98]], atol=1e-6)  # wrong −.9 in the middle


def test_trl_off_policy_kl_correction():
    """k3 .106531 at ratio 2: .213061."""
    kl = KL(estimator=k3, coef=0.1, ratio=token_ratio)
    value = kl_tokens(kl, row(-1), row(-1 - np.log(2)), row(-1.5), ones(1))
    np.testing.assert_allclose(value, [[0.213061]], atol=1e-6)


def test_trl_3004_kl_metric_is_a_token_mean():
    """Rows [.1, .3] and [.8]: .4, not the .5 of row means."""
    value_BT, mask_BT, _ = ragged([0.1, 0.3], [0.8])
    np.testing.assert_allclose(total(value_BT, mask_BT).value(), 0.4, rtol=1e-6)


# --- critic --------------------------------------------------------------------------------------


def test_trl_1893_score_on_the_last_real_token():
    """A choice: on the end token (index 2), not on the pad after it (3)."""
    mask = jnp.array([[True, True, True, False, False], [True] * 5])
    np.testing.assert_array_equal(
        place_at_last(jnp.ones(2), mask), [[0, 0, 1, 0, 0], [0, 0, 0, 0, 1]]
    )


def test_openrlhf_reward_of_a_row_without_tokens():
    assert not np.any(place_at_last(jnp.ones(1), jnp.zeros((1, 3), bool)))  # wrong: index −1


def test_verl_1850_no_bootstrap_from_a_padded_value():
    """Wrong: [1.278, 1.24, 1.2] with .9 at the pad."""
    reward, value = row(0, 0, 1, 0), row(0.5, 0.6, 0.7, 0.9)
    advantage = gae_advantages(reward, value, row(1, 1, 1, 0) > 0, gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantage, [[0.46575, 0.385, 0.3, 0]], atol=1e-6)


def test_verl_gae_skips_observation_tokens():
    mask = row(1, 0, 1) > 0
    advantage = gae_advantages(row(0, 0, 1), row(0.5, 99, 0.7), mask, gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantage, [[0.485, 0, 0.3]], atol=1e-6)


def test_verl_1758_value_of_token_t_is_read_before_it():
    """Heads read at [v0 … v4], response at columns 2–4: [v1, v2, v3], not [v2, v3, v4]."""
    np.testing.assert_array_equal(shift_right(row(0, 1, 2, 3, 4))[0, 2:], [1, 2, 3])


def test_verl_6957_critic_loss_over_micro_batches():
    """Squared errors [1, 2, 3] and [10]: ½·4 = 2, whatever the cut."""
    error_BT, mask_BT, group_B = ragged([1, 2, 3], [10])
    value_BT = jnp.sqrt(error_BT)
    loss_BT = squared(value_BT, value_BT, 0 * value_BT, mask_BT)
    weight_BT = weights.token_mean(mask_BT, group_B)
    parts = [weighted_sum(loss_BT[i : i + 1], weight_BT[i : i + 1]) for i in range(2)]
    np.testing.assert_allclose(sum(parts), 2.0, rtol=1e-6)


# --- metrics -------------------------------------------------------------------------------------


def test_trl_5620_token_metrics_by_ranks():
    """One token of 10 and nine of 0: 1.0. Wrong: 5.0, the mean of means."""
    ranks = [Total(sum=jnp.float32(10), count=jnp.float32(1))]
    ranks += [total(jnp.zeros((1, 9)), ones(9))]
    assert (ranks[0] + ranks[1]).value() == 1.0
