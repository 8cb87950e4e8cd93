"""Sampler–trainer weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.losses.correction import truncated_importance


@pytest.mark.parametrize("jit", [False, True])
def test_golden(jit):
    def fn(old_BT, sampler_BT, mask_BT):
        return truncated_importance(old_BT, sampler_BT, mask_BT, cap=2.0)

    fn = jax.jit(fn) if jit else fn
    # log π_old − log π_sampler = [0, .5, 1.2, −.7]; e^1.2 = 3.32 is cut at 2
    gap_BT, mask_BT = jnp.array([[0.0, 0.5, 1.2, -0.7]]), jnp.ones((1, 4), bool)
    weight_BT, same_BT = fn(gap_BT - 3.0, jnp.full((1, 4), -3.0), mask_BT)
    np.testing.assert_allclose(weight_BT, [[1, 1.648721, 2, 0.496585]], rtol=1e-6)
    np.testing.assert_array_equal(same_BT, mask_BT)  # a weight, not a rejection


def test_unknown_sampler_logprobs_weigh_one():
    old_BT, sampler_BT = jnp.array([[-1.0, -2.0, -1.0]]), jnp.array([[-1.5, jnp.nan, jnp.nan]])
    weight_BT, _ = truncated_importance(
        old_BT, sampler_BT, jnp.array([[True, True, False]]), cap=5.0
    )
    np.testing.assert_allclose(weight_BT, [[np.exp(0.5), 1.0, 1.0]], rtol=1e-6)


def test_no_gradient_and_finite_at_extremes():
    def total(old_BT):
        sampler_BT = jnp.array([[-1e4, -jnp.inf, -1.0]])
        return jnp.sum(truncated_importance(old_BT, sampler_BT, old_BT < 0, cap=2.0)[0])

    value, gradient_BT = jax.value_and_grad(total)(jnp.array([[-1.0, -1.0, -1e4]]))
    np.testing.assert_allclose(value, 2.0 + 2.0 + np.exp(-20.0), rtol=1e-6)
    assert not np.any(gradient_BT)
