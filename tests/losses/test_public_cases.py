"""Bugs that were reported in public, as small cases: log-probs, corrections, surrogates.

Each test bears the name of a report; "wrong" is what the defect gave there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.losses import aggregate as weights
from rlhf_jax.losses.correction import (
    each_token,
    geometric_mean,
    masked_importance,
    rejected,
    truncated_importance,
    whole_response,
)
from rlhf_jax.losses.kl import k1, k3
from rlhf_jax.losses.reweighted import cispo, dro, off_policy_masked, probability_masked, sapo
from rlhf_jax.losses.surrogate import (
    clipped,
    dual_clipped,
    geometric_ratio,
    token_ratio,
    unclipped,
)
from rlhf_jax.ops.logprobs import token_logprobs
from rlhf_jax.ops.masked import masked_mean


def row(*x):
    return jnp.array([x], jnp.float32)


def ones(n):
    return jnp.ones((1, n), bool)


def surrogate(fn, ratio, advantage, **numbers):
    """Losses of one row with these ratios, log π −1 throughout unless given."""
    ratio, advantage = row(*ratio), row(*advantage)
    logp = numbers.pop("logp", jnp.full(ratio.shape, -1.0))
    return np.asarray(
        fn(logp, logp - jnp.log(ratio), ratio, advantage, ones(ratio.shape[1]), **numbers)
    )[0]


# --- log-probs -----------------------------------------------------------------------------------


def scored(logits, token, temperature):
    hidden_BTD = jnp.array([[logits, logits]], jnp.float32)
    head_DV, tokens_BT = jnp.eye(len(logits)), jnp.array([[0, token]])
    return token_logprobs(hidden_BTD, head_DV, tokens_BT, temperature=temperature)[0][0, 1]


def test_trl_3029_temperature_not_applied_when_scoring():
    np.testing.assert_allclose(scored([2.0, 0.0], 0, 0.5), -0.018150, atol=1e-6)  # wrong −.126928


def test_nemo_316_top_p_renormalised():
    """Probabilities [.5, .3, .2], top-p .8: the sampler's .625 enters no ratio; wrong .8."""
    full, drawn = row(-0.693147), row(-0.470004)
    assert token_ratio(full, full, ones(1))[0, 0] == 1.0
    # it is what a correction for the sampler sees
    weight, _ = truncated_importance(full, drawn, ones(1), cap=2.0)
    np.testing.assert_allclose(weight, [[0.8]], atol=1e-6)


def test_nemo_3297_logprob_of_the_sampled_token():
    np.testing.assert_allclose(
        scored([2.0, 1.0, 0.0], 1, 1.0), -1.407606, atol=1e-6
    )  # not −.407606


@pytest.mark.parametrize(
    ("logp", "ref", "ratio", "k3_value", "in_bfloat16"),
    [(-10.04, -10.02, -0.02, 0.000201, -0.0625), (-5.30, -5.31, 0.01, 0.00005, 0.0)],
)
def test_openrlhf_620_bf16_logprobs_blow_up_the_kl(logp, ref, ratio, k3_value, in_bfloat16):
    at = jnp.float32(logp), jnp.float32(ref)
    np.testing.assert_allclose(k1(*at), ratio, atol=1e-5)
    np.testing.assert_allclose(k3(*at), k3_value, atol=1e-6)
    low = [x.astype(jnp.bfloat16).astype(jnp.float32) for x in at]
    np.testing.assert_allclose(k1(*low), in_bfloat16, atol=1e-6)
    # so log-probs leave the model in float32, whatever it computes in
    hidden, head = jnp.ones((1, 2, 4), jnp.bfloat16), jnp.ones((4, 3), jnp.bfloat16)
    logp_BT, entropy_BT = token_logprobs(hidden, head, jnp.zeros((1, 2), int))
    assert logp_BT.dtype == entropy_BT.dtype == jnp.float32


# --- the sampler's log-probs ---------------------------------------------------------------------


def test_trl_5001_nan_from_the_sampler():
    weight, mask = truncated_importance(row(-1, -2), row(-1, jnp.nan), ones(2), cap=2.0)
    np.testing.assert_array_equal(weight, [[1, 1]])
    assert np.all(mask)


@pytest.mark.parametrize(
    ("fn", "numbers", "over", "expected"),
    [
        (truncated_importance, {"cap": 1e3}, each_token, [1.648721, 2.718282]),
        (truncated_importance, {"cap": 2.0}, each_token, [1.648721, 2.0]),
        (masked_importance, {"least": 0.5, "most": 2.0}, each_token, [1.648721, 0.0]),
        (truncated_importance, {"cap": 1e3}, whole_response, [4.481689] * 2),
        (truncated_importance, {"cap": 3.0}, whole_response, [3.0] * 2),
        (masked_importance, {"least": 0.0, "most": 3.0}, whole_response, [0.0] * 2),
        (truncated_importance, {"cap": 1e3}, geometric_mean, [2.117000] * 2),
    ],
)
def test_verl_token_or_sequence_correction(fn, numbers, over, expected):
    """Log differences [.5, 1]. Wrong: the mean of the logs where the sequence is meant."""
    weight, _ = fn(row(-1, -1), row(-1.5, -2), ones(2), over=over, **numbers)
    np.testing.assert_allclose(weight[0], expected, rtol=1e-6)


def test_verl_icepop_is_a_weight_and_rejection_a_mask():
    """Ratios .4, .8, 6 and a band [.5, 5]: two thirds are outside."""
    logp, band = jnp.log(row(0.4, 0.8, 6.0)), dict(least=0.5, most=5.0)
    weight, mask = masked_importance(logp, 0 * logp, ones(3), **band)
    np.testing.assert_allclose(weight, [[0, 0.8, 0]], rtol=1e-6)
    assert np.all(mask) and np.mean(weight == 0) == pytest.approx(2 / 3)
    weight, mask = rejected(logp, 0 * logp, ones(3), weigh=_uncapped, **band)
    np.testing.assert_allclose(weight, [[0.4, 0.8, 6.0]], rtol=1e-6)
    np.testing.assert_array_equal(mask, [[0, 1, 0]])
    group = jnp.zeros(1, int)
    assert weights.token_mean(mask, group).sum() == 1 and weights.token_mean(mask, group)[0, 1] == 1


def _uncapped(logp_old_BT, logp_sampler_BT, mask_BT):
    return truncated_importance(logp_old_BT, logp_sampler_BT, mask_BT, cap=1e6)


# --- surrogates ----------------------------------------------------------------------------------


def test_openrlhf_feeb0283_clip_direction_by_the_sign():
    losses = surrogate(clipped, [1.5, 1.5, 0.5, 0.5], [1, -1, 1, -1], low=0.2, high=0.2)
    np.testing.assert_allclose(losses, [-1.2, 1.5, -0.5, 0.8], rtol=1e-6)


def test_verl_972_dual_clip_only_for_negative_advantages():
    numbers = dict(low=0.2, high=0.2, cap=3.0)
    np.testing.assert_allclose(
        surrogate(dual_clipped, [10, 10], [-1, 1], **numbers), [3, -1.2], rtol=1e-6
    )
    losses = surrogate(dual_clipped, [0.5, 1, 10], [1, -1, -4], **numbers)
    np.testing.assert_allclose(losses, [-0.5, 1, 12], rtol=1e-5)
    np.testing.assert_allclose(losses.mean(), 4.166667, rtol=1e-5)


def test_trl_two_sided_delta_cap():
    np.testing.assert_allclose(
        surrogate(dual_clipped, [10], [-1], low=0.2, high=0.2, cap=4.0), [4], rtol=1e-6
    )


def test_verl_ratio_overflow():
    ratio = token_ratio(row(-1), row(-200), ones(1))
    np.testing.assert_allclose(ratio, [[485165195.4]], rtol=1e-6)  # wrong: inf
    loss = unclipped(row(-1), row(-200), ratio, row(-1), ones(1))
    assert np.isfinite(loss)


def test_open_instruct_1269_cispo_needs_the_logprob():
    """log π −1, r 2, Â 1, cap 1.5: loss 1.5, gradient −1.5. Wrong: −1.5 with gradient 0."""

    def loss(logp):
        return cispo(logp, logp, row(2), row(1), ones(1), high=0.5)[0, 0]

    value, gradient = jax.value_and_grad(loss)(row(-1))
    np.testing.assert_allclose((value, gradient[0, 0]), (1.5, -1.5))


def test_trl_4499_cispo_bounds():
    """A choice: 1 + high as an upper bound, a lower one on request. Cap 5.0 elsewhere: high 4."""
    logp = row(-1.69315, -1, -0.59453)
    ratio = token_ratio(logp, row(-1, -1, -1), ones(3))
    args = (logp, row(-1, -1, -1), ratio, row(1, -1, 2), ones(3))
    losses = cispo(*args, low=0.2, high=0.2)
    np.testing.assert_allclose(losses, [[1.35452, -1, 1.426872]], rtol=1e-5)
    np.testing.assert_allclose(losses.mean(), 0.593797, rtol=1e-5)
    np.testing.assert_allclose(cispo(*args, high=0.2)[0, 0], 0.5 * 1.69315, rtol=1e-5)
    high = cispo(row(-1), row(-4), row(20), row(1), ones(1), high=4.0)
    np.testing.assert_allclose(high, [[5.0]])


def test_openrlhf_1b23ecf0_gspo_ratio():
    ratio = geometric_ratio(row(0.2, -0.1, 0.5), row(0, 0, 0), ones(3))
    np.testing.assert_allclose(ratio, np.full((1, 3), 1.221403), rtol=1e-6)  # wrong 1.822119
    logp = row(-1.69315, -1, -0.59453)
    ratio = geometric_ratio(logp, row(-1, -1, -1), ones(3))
    np.testing.assert_allclose(ratio[0, 0], 0.908561, rtol=1e-5)
    losses = clipped(logp, row(-1, -1, -1), ratio, row(1, -1, 2), ones(3), low=0.2, high=0.2)
    np.testing.assert_allclose(losses.mean(), -0.605707, rtol=1e-5)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.0, 1, -2.0), (1.5, 1, -2.489837), (1.5, -1, 2.393585), (0.5, -1, 1.415938)],
)
def test_sapo_values(ratio, advantage, loss):
    numbers = dict(tau_positive=1.0, tau_negative=1.05)
    np.testing.assert_allclose(surrogate(sapo, [ratio], [advantage], **numbers), [loss], rtol=1e-5)
    if ratio == 1:
        slope = jax.grad(lambda r: sapo(0 * r, 0 * r, r, row(1), ones(1), **numbers)[0, 0])(row(1))
        np.testing.assert_allclose(slope, [[-1.0]])


def test_trl_v32_off_policy_sequence_mask():
    """Mean(old − new) [.6, .6, .4], Â [−1, 1, −1], δ .5: only the first row is dropped."""
    old = jnp.full((3, 2), -1.0)
    logp, advantage = old - jnp.array([[0.6], [0.6], [0.4]]), jnp.array([[-1.0], [1], [-1]])
    advantage, mask = jnp.broadcast_to(advantage, (3, 2)), jnp.ones((3, 2), bool)
    loss = off_policy_masked(
        logp, old, token_ratio(logp, old, mask), advantage, mask, inner=unclipped, threshold=0.5
    )
    np.testing.assert_array_equal(np.any(loss != 0, axis=1), [0, 1, 1])


def test_verl_dro_quadratic_term():
    logp, old, mask = row(-0.8, -0.9, -0.1), row(-1, -0.7, -0.2), jnp.array([[True, True, False]])
    loss = dro(logp, old, row(1, 1, 1), row(2, -1.5, 9), mask, beta=0.05)
    np.testing.assert_allclose(loss, [[1.601, -1.349, 0]], rtol=1e-5)
    np.testing.assert_allclose(masked_mean(loss, mask), 0.126, rtol=1e-4)


@pytest.mark.parametrize(
    ("moved", "advantage", "kept"), [(0.25, 1, 0), (0.25, -1, 1), (-0.25, -1, 0), (-0.25, 1, 1)]
)
def test_prime_rl_probability_difference_mask(moved, advantage, kept):
    old, logp = jnp.log(row(0.5)), jnp.log(row(0.5 + moved))
    ratio = token_ratio(logp, old, ones(1))
    loss = probability_masked(logp, old, ratio, row(advantage), ones(1), threshold=0.2)
    assert (loss[0, 0] != 0) == kept
