"""Sampler–trainer weights: token, response, geometric; truncated, masked, rejected."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import MASK_BT, rows_of, sample_scored

from rlhf_jax.bind import bind
from rlhf_jax.losses.correction import (
    each_token,
    geometric_mean,
    masked_importance,
    rejected,
    truncated_importance,
    whole_response,
)

OVER = [each_token, whole_response, geometric_mean]
KINDS = [
    bind(truncated_importance, cap=1.2),
    bind(masked_importance, least=0.9, most=1.1),
    bind(rejected, least=0.9, most=1.1, weigh=bind(truncated_importance, cap=1.2)),
]
SCORED = sample_scored()


def scalar(correction, old_BT, sampler_BT):
    """(weights, mask) as rows of Python numbers."""
    out, kw = ([], []), correction.kw
    for old_T, sampler_T, mask_T in zip(old_BT, sampler_BT, rows_of(MASK_BT), strict=True):
        at = [t for t, m in enumerate(mask_T) if m]
        gaps = {t: old_T[t] - sampler_T[t] for t in at}
        row = {"whole_response": sum(gaps.values()), "geometric_mean": 0.0}
        if at:
            row["geometric_mean"] = sum(gaps.values()) / len(at)
        weights, kept = [1.0] * len(mask_T), list(mask_T)
        for t in at:
            ratio = math.exp(row.get(kw["over"].__name__, gaps[t]))
            if correction.fn is truncated_importance:
                weights[t] = min(ratio, kw["cap"])
                continue
            inside = kw["least"] <= ratio <= kw["most"]
            if correction.fn is masked_importance:
                weights[t] = ratio if inside else 0.0
            else:
                weights[t], kept[t] = min(math.exp(gaps[t]), 1.2), inside
        out[0].append(weights)
        out[1].append(kept)
    return out


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.fn.__name__)
def test_equals_the_loop(kind, over, jit):
    correction = kind.replace(over=over)
    args = (SCORED.logp_old_BT, SCORED.logp_sampler_BT, jnp.asarray(MASK_BT))
    weight_BT, mask_BT = (jax.jit(lambda *a: correction(*a)) if jit else correction)(*args)
    expected_BT, kept_BT = scalar(correction, *map(rows_of, args[:2]))
    np.testing.assert_allclose(weight_BT, expected_BT, rtol=1e-5)
    np.testing.assert_array_equal(mask_BT, kept_BT)
    dropped = kind.fn is rejected
    assert np.any(np.asarray(mask_BT) != MASK_BT) == dropped  # only a rejection moves the mask


@pytest.mark.parametrize("jit", [False, True])
def test_golden(jit):
    def fn(old_BT, sampler_BT, mask_BT):
        band = dict(least=0.5, most=2.0)
        return (
            truncated_importance(old_BT, sampler_BT, mask_BT, cap=2.0),
            masked_importance(old_BT, sampler_BT, mask_BT, **band),
            truncated_importance(old_BT, sampler_BT, mask_BT, cap=1e3, over=whole_response),
        )

    fn = jax.jit(fn) if jit else fn
    # log π_old − log π_sampler = [0, .5, 1.2, −.7]; e^1.2 = 3.32 is cut at 2; e^1 of the response
    gap_BT, mask_BT = jnp.array([[0.0, 0.5, 1.2, -0.7]]), jnp.ones((1, 4), bool)
    cut, band, response = fn(gap_BT - 3.0, jnp.full((1, 4), -3.0), mask_BT)
    np.testing.assert_allclose(cut[0], [[1, 1.648721, 2, 0.496585]], rtol=1e-6)
    np.testing.assert_allclose(band[0], [[1, 1.648721, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(response[0], np.full((1, 4), 2.718282), rtol=1e-6)
    for _, same_BT in (cut, band, response):
        np.testing.assert_array_equal(same_BT, mask_BT)  # weights, not rejections


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.fn.__name__)
def test_where_sampler_and_trainer_agree_nothing_changes(kind, over):
    args = (SCORED.logp_old_BT, SCORED.logp_old_BT, jnp.asarray(MASK_BT))
    weight_BT, mask_BT = kind.replace(over=over)(*args)
    assert np.all(weight_BT == 1.0)  # to the bit
    np.testing.assert_array_equal(mask_BT, MASK_BT)


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.fn.__name__)
def test_junk_in_the_padding_changes_nothing(kind, over):
    junk, correction = sample_scored(fill=np.nan), kind.replace(over=over)
    clean = correction(SCORED.logp_old_BT, SCORED.logp_sampler_BT, SCORED.mask_BT)
    dirty = correction(junk.logp_old_BT, junk.logp_sampler_BT, junk.mask_BT)
    for a_BT, b_BT in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a_BT, b_BT)
    assert not np.any(np.asarray(dirty[1])[~MASK_BT])


@pytest.mark.parametrize(
    ("over", "expected"),
    [(each_token, [[0.606531, 1.0, 1.0]]), (geometric_mean, [[0.778801, 0.778801, 1.0]])],
)
def test_unknown_sampler_logprobs_count_as_a_ratio_of_one(over, expected):
    old_BT, sampler_BT = jnp.array([[-1.5, -2.0, -1.0]]), jnp.array([[-1.0, jnp.nan, jnp.nan]])
    weight_BT, _ = truncated_importance(
        old_BT, sampler_BT, jnp.array([[True, True, False]]), cap=5.0, over=over
    )
    np.testing.assert_allclose(weight_BT, expected, rtol=1e-6)


@pytest.mark.parametrize("over", OVER)
def test_no_gradient_and_finite_at_extremes(over):
    def total(old_BT):
        sampler_BT = jnp.array([[-1e4, -jnp.inf, -1.0]])
        return jnp.sum(truncated_importance(old_BT, sampler_BT, old_BT < 0, cap=2.0, over=over)[0])

    value, gradient_BT = jax.value_and_grad(total)(jnp.array([[-1.0, -1.0, -1e4]]))
    expected = 2.0 + 2.0 + np.exp(-20.0) if over is each_token else 6.0
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    assert not np.any(gradient_BT)


def test_without_a_cap_the_weight_gives_the_on_policy_gradient():
    """Three actions, sampler ≠ trainer: Σ_a π_samp·w·A·∇log π = ∇E_π[A], exactly, at C = ∞."""
    policy_V, sampler_V = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.4, 0.4, 0.2])
    score_V, logits_V = jnp.array([0.0, 1.0, 2.0]), jnp.log(policy_V)
    weight_V1, _ = truncated_importance(
        jnp.log(policy_V)[:, None], jnp.log(sampler_V)[:, None], jnp.ones((3, 1), bool), cap=1e9
    )
    weight_V = weight_V1[:, 0]

    def surrogate(z):
        return jnp.sum(sampler_V * weight_V * score_V * jax.nn.log_softmax(z))

    exact_V = jax.grad(lambda z: jnp.sum(jax.nn.softmax(z) * score_V))(logits_V)
    np.testing.assert_allclose(jax.grad(surrogate)(logits_V), exact_V, atol=1e-6)
