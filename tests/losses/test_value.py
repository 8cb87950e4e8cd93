"""Critic losses: scalar loop, golden, gradient, mask, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.value import ValueTerm, clipped_squared, squared

LOSSES = [bind(squared), bind(clipped_squared, clip=0.5)]
VALUE_BT, BATCH = sample_batch(seed=3)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_equals_the_loop_in_value_and_gradient(loss, jit):
    def total(value_BT):
        loss_BT = loss(value_BT, BATCH.value_old_BT, BATCH.return_BT, BATCH.mask_BT)
        return jnp.sum(loss_BT), loss_BT

    def loop(value_BT):
        fn = getattr(reference, loss.fn.__name__)
        columns = (value_BT, rows_of(BATCH.value_old_BT), rows_of(BATCH.return_BT))
        return [
            [fn(*x, **loss.kw) if m else 0.0 for *x, m in zip(*row, strict=True)]
            for row in zip(*columns, rows_of(MASK_BT), strict=True)
        ]

    fn = jax.grad(total, has_aux=True)
    gradient_BT, loss_BT = (jax.jit(fn) if jit else fn)(VALUE_BT)
    np.testing.assert_allclose(loss_BT, loop(rows_of(VALUE_BT)), rtol=1e-5, atol=1e-6)
    expected_BT = numeric_gradient(lambda x: sum(map(sum, loop(x))), VALUE_BT, MASK_BT)
    np.testing.assert_allclose(gradient_BT, expected_BT, rtol=1e-4, atol=1e-4)


def one(value, old, target, loss):
    fields = [jnp.full((1, 1), x) for x in (value, old, target)]
    return jax.value_and_grad(lambda v: loss(v, *fields[1:], jnp.ones((1, 1), bool))[0, 0])(
        fields[0]
    )


def test_golden():
    # V .9, V_old .5, R 1, c .2: clipped to .7, ½·max(.01, .09) = .045; the clip takes the gradient
    value, gradient = one(0.9, 0.5, 1.0, bind(clipped_squared, clip=0.2))
    np.testing.assert_allclose((value, gradient[0, 0]), (0.045, 0.0), atol=1e-7)
    value, gradient = one(0.9, 0.5, 1.0, bind(squared))
    np.testing.assert_allclose((value, gradient[0, 0]), (0.005, -0.1), atol=1e-7)


def test_gradient_is_full_inside_the_clip():
    value, gradient = one(0.5, 0.5, 1.0, bind(clipped_squared, clip=0.0))
    np.testing.assert_allclose((value, gradient[0, 0]), (0.125, -0.5))


def test_a_wide_clip_is_no_clip():
    args = (VALUE_BT, BATCH.value_old_BT, BATCH.return_BT, BATCH.mask_BT)
    np.testing.assert_allclose(clipped_squared(*args, clip=1e6), squared(*args), rtol=1e-5)


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_junk_in_the_padding_changes_nothing(loss):
    @jax.jit
    @jax.value_and_grad
    def total(value_BT, batch):
        return jnp.sum(loss(value_BT, batch.value_old_BT, batch.return_BT, batch.mask_BT))

    clean, clean_BT = total(VALUE_BT, BATCH)
    junk, junk_BT = total(*sample_batch(seed=3, fill=np.nan))
    assert clean == junk
    np.testing.assert_array_equal(clean_BT, junk_BT)
    assert not np.any(np.asarray(junk_BT)[~MASK_BT])


@pytest.mark.parametrize(
    "numbers", [{"coef": -1.0}, {"coef": float("nan")}, {"coef": 0.1, "lam": 1.5}]
)
def test_bad_numbers_are_refused(numbers):
    with pytest.raises(ConfigError):
        ValueTerm(loss=squared, **numbers)
