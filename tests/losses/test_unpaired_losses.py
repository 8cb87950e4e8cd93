"""Losses of single completions: scalar loops in float64, worked numbers, public cases, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from preference_reference import DESIRABLE_B, LOGP_BS, REF_BS
from reference import numeric_gradient

from rlhf_jax.bind import bind
from rlhf_jax.losses.preference_unpaired import (
    apo_zero_unpaired,
    bco_unpaired,
    class_shift,
    kto,
    mismatched_kl,
)

LOSSES = [
    bind(kto, beta=0.3, desirable_weight=1.33, undesirable_weight=0.5),
    bind(bco_unpaired, beta=0.3),
    bind(apo_zero_unpaired, beta=0.3),
]
LOGP_B, REF_B = LOGP_BS[:, 0], REF_BS[:, 0]
STATISTIC = 0.4
EIGHTH_B = jnp.full(8, 1 / 8)


def by_name(loss):
    return loss.fn.__name__


def whole(loss, logp_B, ref_B, desirable_B, statistic):
    extra = () if loss.fn is apo_zero_unpaired else (statistic,)
    return jnp.sum(loss(logp_B, ref_B, desirable_B, *extra))


GRADIENT = jax.value_and_grad(whole, argnums=1)
JITTED = jax.jit(GRADIENT)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_equals_the_loop_in_value_and_gradient(loss, jit):
    def loop(logp_B):
        fn = getattr(scalar, loss.fn.__name__)
        rows = zip(logp_B, REF_B.tolist(), DESIRABLE_B, strict=True)
        return sum(fn(*row, STATISTIC, **loss.kw) for row in rows)

    with jax.enable_x64(True):
        args = (jnp.asarray(LOGP_B, float), jnp.asarray(REF_B, float), jnp.asarray(DESIRABLE_B))
        value, gradient_B = (JITTED if jit else GRADIENT)(loss, *args, STATISTIC)
    np.testing.assert_allclose(value, loop(LOGP_B.tolist()), rtol=1e-12)
    expected_B1 = numeric_gradient(
        lambda x: loop([row[0] for row in x]), LOGP_B[:, None], np.ones((8, 1), bool)
    )
    np.testing.assert_allclose(gradient_B, expected_B1[:, 0], rtol=1e-6, atol=1e-9)


# The worked point of the pairs, one side at a time: log-ratios ln(.20/.15) and ln(.08/.12).
RATIO_B = jnp.log(jnp.array([0.20 / 0.15, 0.08 / 0.12]))
BOTH_B, ZERO_B = jnp.array([True, False]), jnp.zeros(2)


@pytest.mark.parametrize(
    ("kl", "expected"), [(0.0, [0.492808, 0.489865]), (0.05, [0.494058, 0.488615])]
)
def test_kto_worked_point(kl, expected):
    np.testing.assert_allclose(kto(RATIO_B, ZERO_B, BOTH_B, kl, beta=0.1), expected, atol=1e-6)


def test_apo_zero_unpaired_is_kto_about_zero_and_half_of_the_pair():
    single_B = apo_zero_unpaired(RATIO_B, ZERO_B, BOTH_B, beta=0.1)
    np.testing.assert_allclose(single_B, kto(RATIO_B, ZERO_B, BOTH_B, 0.0, beta=0.1), rtol=1e-6)
    np.testing.assert_allclose(jnp.sum(single_B), 0.982673, atol=1e-6)


def test_bco_unpaired_adds_up_to_the_pair():
    single_B = bco_unpaired(RATIO_B, ZERO_B, BOTH_B, 0.0, beta=0.1)
    np.testing.assert_allclose(jnp.sum(single_B), 1.351946, atol=1e-6)


def test_first_step_loss_where_policy_is_reference():
    zero_B = jnp.zeros(8)
    np.testing.assert_allclose(kto(zero_B, zero_B, DESIRABLE_B, 0.0, beta=0.1), np.full(8, 0.5))
    np.testing.assert_allclose(
        bco_unpaired(zero_B, zero_B, DESIRABLE_B, 0.0, beta=0.1), np.full(8, 0.693147), rtol=1e-6
    )


def test_kto_weights_are_those_of_the_classes():
    plain_B = kto(RATIO_B, ZERO_B, BOTH_B, 0.0, beta=0.1)
    weighted_B = kto(
        RATIO_B, ZERO_B, BOTH_B, 0.0, beta=0.1, desirable_weight=4 / 3, undesirable_weight=0.0
    )
    np.testing.assert_allclose(weighted_B, plain_B * jnp.array([4 / 3, 0]), rtol=1e-6)


def test_trl_2153_kto_clamps_the_mean_not_the_rows():
    """z₀ is max(0, mean): −2 and +1 in the batch give 0, not the .5 of rows clamped one by one."""
    two_B = jnp.full(2, 0.5)
    below_B = mismatched_kl(None, jnp.array([-2.0, 1.0]), BOTH_B, two_B)
    above_B = mismatched_kl(None, jnp.array([-1.0, 2.0]), BOTH_B, two_B)
    np.testing.assert_array_equal(below_B, [0, 0])
    np.testing.assert_array_equal(above_B, [0.5, 0.5])


def test_class_shift_weighs_the_classes_alike_and_survives_an_absent_one():
    ratio_B = jnp.array([1.0, 1.0, 1.0, -3.0])
    quarter_B = jnp.full(4, 0.25)
    mixed_B = class_shift(ratio_B, None, jnp.array([True, True, True, False]), quarter_B)
    np.testing.assert_allclose(mixed_B, np.full(4, -1.0))  # ½·(1 − 3); the rows' mean would be 0
    for class_B in (jnp.ones(4, bool), jnp.zeros(4, bool)):
        np.testing.assert_allclose(class_shift(ratio_B, None, class_B, quarter_B), np.zeros(4))


@pytest.mark.parametrize("far", [1e4, -1e4])
@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_extreme_log_ratios_stay_finite(loss, far):
    logp_B = jnp.full(8, min(far, 0.0))
    value, gradient_B = JITTED(loss, logp_B, logp_B - far, jnp.asarray(DESIRABLE_B), STATISTIC)
    assert np.isfinite(value) and np.all(np.isfinite(gradient_B))


@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_the_first_step_raises_the_desirable_and_lowers_the_others(loss):
    ref_B = jnp.asarray(REF_B, jnp.float32)
    _, gradient_B = JITTED(loss, ref_B, ref_B, jnp.asarray(DESIRABLE_B), STATISTIC)
    np.testing.assert_array_equal(np.sign(gradient_B), np.where(DESIRABLE_B, -1, 1))
