"""Masked statistics: equal to a loop, deaf to what the mask hides, finite when it hides all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import MASK_BT, rows_of, whitened

from rlhf_jax.ops.masked import masked_mean, masked_sum, masked_var, whiten

X_BT = np.random.default_rng(0).normal(size=MASK_BT.shape).astype(np.float32)
JUNK_BT = np.where(MASK_BT, X_BT, np.nan)

FUNCTIONS = {
    "sum": masked_sum,
    "mean": masked_mean,
    "var": masked_var,
    "mean rows": lambda x, m: masked_mean(x, m, axis=1),
    "var rows ddof 1": lambda x, m: masked_var(x, m, axis=1, ddof=1),
    "whiten": whiten,
    "whiten keep mean": lambda x, m: whiten(x, m, shift_mean=False),
}


def kept(row=None):
    return X_BT[MASK_BT] if row is None else X_BT[row][MASK_BT[row]]


def test_equal_to_numpy_on_the_kept_entries():
    np.testing.assert_allclose(masked_sum(X_BT, MASK_BT), kept().sum(), rtol=1e-5)
    np.testing.assert_allclose(masked_mean(X_BT, MASK_BT), kept().mean(), rtol=1e-5)
    np.testing.assert_allclose(masked_var(X_BT, MASK_BT), kept().var(), rtol=1e-5)
    np.testing.assert_allclose(masked_var(X_BT, MASK_BT, ddof=1), kept().var(ddof=1), rtol=1e-5)
    variance_B = masked_var(X_BT, MASK_BT, axis=1, ddof=1)
    np.testing.assert_allclose(variance_B[0], kept(0).var(ddof=1), rtol=1e-5)
    assert variance_B[3] == 0 and variance_B[4] == 0  # one entry, none


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("jit", [False, True])
def test_junk_outside_the_mask_changes_nothing(name, jit):
    def total(x_BT):
        return jnp.sum(FUNCTIONS[name](x_BT, MASK_BT) ** 2)

    both = jax.value_and_grad(total)
    both = jax.jit(both) if jit else both
    (clean, clean_grad_BT), (junk, junk_grad_BT) = both(X_BT), both(JUNK_BT)
    assert clean == junk
    np.testing.assert_array_equal(clean_grad_BT, junk_grad_BT)
    assert np.all(np.asarray(junk_grad_BT)[~MASK_BT] == 0)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_empty_mask_gives_zero_and_zero_gradient(name):
    none_BT = np.zeros_like(MASK_BT)
    value, gradient_BT = jax.value_and_grad(lambda x: jnp.sum(FUNCTIONS[name](x, none_BT)))(X_BT)
    assert value == 0 and not np.any(gradient_BT)


@pytest.mark.parametrize("jit", [False, True])
def test_whiten_equals_the_loop(jit):
    fn = jax.jit(whiten) if jit else whiten
    expected_BT = whitened(rows_of(X_BT), rows_of(MASK_BT))
    np.testing.assert_allclose(fn(X_BT, MASK_BT), expected_BT, atol=2e-6)


def test_whiten_golden():
    # GAE golden [.407512, .34475, .405, .3]: mean .364316, population variance .002007
    advantage_BT = jnp.array([[0.4075125, 0.34475, 0.405, 0.3]])
    whole_BT = jnp.ones((1, 4), bool)
    expected_BT = [[0.963473, -0.436396, 0.907434, -1.434511]]
    np.testing.assert_allclose(whiten(advantage_BT, whole_BT), expected_BT, atol=2e-5)
    # rewards keep their mean: (x − .24)/σ + .24
    reward_BT = jnp.array([[-0.02, 0.01, -0.03, 1.0]])
    expected_BT = [[-0.352211, -0.283879, -0.374988, 1.971077]]
    np.testing.assert_allclose(whiten(reward_BT, whole_BT, False), expected_BT, atol=2e-6)


def test_whiten_does_not_count_the_padding():
    # two counted tokens 1, 3: population gives ∓1; counting the pad would give −.218, 1.091
    mask_BT = jnp.array([[True, True, False]])
    np.testing.assert_allclose(
        whiten(jnp.array([[1.0, 3.0, 0.0]]), mask_BT), [[-1.0, 1.0, 0.0]], atol=1e-6
    )


def test_whiten_of_equal_entries_is_exactly_zero():
    same_BT = jnp.full((2, 5), 0.7, jnp.float32)
    assert not np.any(whiten(same_BT, jnp.ones((2, 5), bool)))
