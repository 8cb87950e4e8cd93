"""Ratios and surrogates: scalar loops, worked numbers, gradients, masks, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch
from reference_surrogates import surrogate_row

from rlhf_jax.bind import bind
from rlhf_jax.losses.surrogate import (
    clipped,
    dual_clipped,
    geometric_ratio,
    product_ratio,
    token_ratio,
    unclipped,
)

RATIOS = [token_ratio, geometric_ratio, product_ratio]
SURROGATES = [
    bind(unclipped),
    bind(clipped, low=0.2, high=0.2),
    bind(clipped, low=0.2, high=0.28),
    bind(dual_clipped, low=0.2, high=0.2, cap=1.5),
]
LOGP_BT, BATCH = sample_batch()
OLD_BT, ADVANTAGE_BT = BATCH.logp_old_BT, BATCH.advantage_BT


def by_name(part):
    return getattr(part, "__name__", repr(part))


def scalar_surrogate(surrogate, logp_BT):
    columns = (logp_BT, rows_of(OLD_BT), scalar_ratio(token_ratio, logp_BT), rows_of(ADVANTAGE_BT))
    return [surrogate_row(surrogate, *row) for row in zip(*columns, rows_of(MASK_BT), strict=True)]


def scalar_ratio(ratio, logp_BT):
    fn = getattr(reference, ratio.__name__)
    return [fn(*row) for row in zip(logp_BT, rows_of(OLD_BT), rows_of(MASK_BT), strict=True)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("ratio", RATIOS, ids=by_name)
def test_ratio_equals_the_loop(ratio, jit):
    fn = jax.jit(ratio) if jit else ratio
    expected_BT = scalar_ratio(ratio, rows_of(LOGP_BT))
    np.testing.assert_allclose(fn(LOGP_BT, OLD_BT, MASK_BT), expected_BT, rtol=2e-6)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=by_name)
def test_surrogate_equals_the_loop_in_value_and_gradient(surrogate, jit):
    def total(logp_BT):
        ratio_BT = token_ratio(logp_BT, OLD_BT, MASK_BT)
        loss_BT = surrogate(logp_BT, OLD_BT, ratio_BT, ADVANTAGE_BT, MASK_BT)
        return jnp.sum(loss_BT), loss_BT

    def loop(logp_BT):
        return scalar_surrogate(surrogate, logp_BT)

    fn = jax.grad(total, has_aux=True)
    gradient_BT, loss_BT = (jax.jit(fn) if jit else fn)(LOGP_BT)
    np.testing.assert_allclose(loss_BT, loop(rows_of(LOGP_BT)), rtol=1e-5, atol=1e-6)
    expected_BT = numeric_gradient(lambda x: sum(map(sum, loop(x))), LOGP_BT, MASK_BT)
    np.testing.assert_allclose(gradient_BT, expected_BT, rtol=1e-4, atol=1e-4)
    assert np.any((np.asarray(gradient_BT) == 0) & MASK_BT) == (surrogate.fn is not unclipped)


def surrogate_at(ratio, advantage, surrogate):
    """(objective, d objective / d ratio) of one token."""

    def objective(r):
        one = jnp.ones((1, 1))
        return -surrogate(0 * one, 0 * one, r * one, advantage * one, one > 0)[0, 0]

    return jax.value_and_grad(objective)(jnp.float32(ratio))


@pytest.mark.parametrize(
    ("advantage", "ratio", "objective", "slope", "higher", "higher_slope"),
    [
        # ε = .2; the last two columns with ε_high = .28. Rows at the very bound have no unique
        # slope and are left out.
        (2, 0.6, 1.2, 2, 1.2, 2),
        (2, 1.0, 2.0, 2, 2.0, 2),
        (2, 1.1, 2.2, 2, 2.2, 2),
        (2, 1.3, 2.4, 0, 2.56, 0),
        (2, 1.5, 2.4, 0, 2.56, 0),
        (2, 2.0, 2.4, 0, 2.56, 0),
        (-2, 0.6, -1.6, 0, -1.6, 0),
        (-2, 1.0, -2.0, -2, -2.0, -2),
        (-2, 1.1, -2.2, -2, -2.2, -2),
        (-2, 1.3, -2.6, -2, -2.6, -2),
        (-2, 1.5, -3.0, -2, -3.0, -2),
        (-2, 2.0, -4.0, -2, -4.0, -2),
        (1, 1.5, 1.2, 0, 1.28, 0),
        (-1, 1.5, -1.5, -1, -1.5, -1),
        (1, 0.5, 0.5, 1, 0.5, 1),
        (-1, 0.5, -0.8, 0, -0.8, 0),
    ],
)
def test_clip_table(advantage, ratio, objective, slope, higher, higher_slope):
    same = surrogate_at(ratio, advantage, bind(clipped, low=0.2, high=0.2))
    np.testing.assert_allclose(same, (objective, slope), rtol=1e-6)
    wider = surrogate_at(ratio, advantage, bind(clipped, low=0.2, high=0.28))
    np.testing.assert_allclose(wider, (higher, higher_slope), rtol=1e-6)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_gradient_is_full_at_ratio_one_even_with_no_width(advantage):
    # jnp.minimum and jnp.clip would each give half of a tie away
    assert surrogate_at(1.0, advantage, bind(clipped, low=0.0, high=0.0))[1] == advantage


@pytest.mark.parametrize(
    ("ratio", "advantage", "cap", "objective", "slope"),
    [
        (5.0, -2, 3.0, -6.0, 0),  # unbounded it would be −10
        (10.0, -1, 3.0, -3.0, 0),
        (10.0, 1, 3.0, 1.2, 0),  # the cap is for negative advantages only
        (10.0, -1, 4.0, -4.0, 0),
        (0.5, 1, 3.0, 0.5, 1),
        (1.0, -1, 3.0, -1.0, -1),
        (10.0, -4, 3.0, -12.0, 0),
        (1.3, 2, 3.0, 2.4, 0),  # past the clip the gradient is 0, not "reduced"
    ],
)
def test_dual_clip_golden(ratio, advantage, cap, objective, slope):
    surrogate = bind(dual_clipped, low=0.2, high=0.2, cap=cap)
    np.testing.assert_allclose(
        surrogate_at(ratio, advantage, surrogate), (objective, slope), rtol=1e-6
    )


@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("ratio", [0.5, 1.1, 1.5, 3.0, 5.0, 10.0])
def test_two_sided_cap_is_the_dual_clip(ratio, advantage):
    """min(min(r, δ)·Â, clip(r, 1 ± ε)·Â), δ = 4: nothing else than c = δ."""
    delta, low, high = 4.0, 0.2, 0.28
    capped = min(min(ratio, delta) * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    dual = bind(dual_clipped, low=low, high=high, cap=delta)
    np.testing.assert_allclose(surrogate_at(ratio, advantage, dual)[0], capped, rtol=1e-6)


def test_a_clip_bounds_no_ratio():
    """Â < 0, r > 1 + ε: the gradient is live and grows with r; only a cap ends it."""
    log_r = jnp.log(jnp.float32(50.0))

    def slope(surrogate):
        one = jnp.ones((1, 1))

        def loss(x):
            return surrogate(x * one, 0 * one, jnp.exp(x) * one, -one, one > 0)[0, 0]

        return jax.grad(loss)(log_r)

    np.testing.assert_allclose(slope(bind(clipped, low=0.2, high=0.2)), 50.0, rtol=1e-5)
    assert slope(bind(dual_clipped, low=0.2, high=0.2, cap=3.0)) == 0
    # ε = 10: the interval [−9, 11], whose lower end no ratio reaches
    wide = bind(clipped, low=10.0, high=10.0)
    assert surrogate_at(1e-3, -1.0, wide)[1] == -1 and surrogate_at(10.9, 1.0, wide)[1] == 1
    assert surrogate_at(11.1, 1.0, wide)[1] == 0


def test_row_ratios_golden():
    # Δ [.1, −.05, .3, .02]: mean .0925 → 1.096913, sum .37 → 1.447735
    delta_BT, whole_BT = jnp.array([[0.1, -0.05, 0.3, 0.02]]), jnp.ones((1, 4), bool)
    zero_BT = jnp.zeros((1, 4))
    expected_BT = [[1.105171, 0.951229, 1.349859, 1.020201]]
    np.testing.assert_allclose(token_ratio(delta_BT, zero_BT, whole_BT), expected_BT, rtol=1e-6)
    np.testing.assert_allclose(
        geometric_ratio(delta_BT, zero_BT, whole_BT), np.full((1, 4), 1.096913), rtol=1e-6
    )
    np.testing.assert_allclose(
        product_ratio(delta_BT, zero_BT, whole_BT), np.full((1, 4), 1.447735), rtol=1e-6
    )


def test_sequence_ratio_is_the_mean_of_logs_with_advantages_by_token():
    # logp [−1.69315, −1, −.59453], old −1: s = exp(−.095893) = .908561; Â [1, −1, 2] → −.605707
    logp_BT = jnp.array([[-1.69315, -1.0, -0.59453]])
    whole_BT, old_BT = jnp.ones((1, 3), bool), jnp.full((1, 3), -1.0)
    ratio_BT = geometric_ratio(logp_BT, old_BT, whole_BT)
    np.testing.assert_allclose(ratio_BT, np.full((1, 3), 0.908561), rtol=1e-5)
    loss_BT = clipped(
        logp_BT, old_BT, ratio_BT, jnp.array([[1.0, -1.0, 2.0]]), whole_BT, low=0.2, high=0.2
    )
    np.testing.assert_allclose(loss_BT.mean(), -0.605707, rtol=1e-5)


@pytest.mark.parametrize("ratio", [geometric_ratio, product_ratio], ids=by_name)
def test_row_ratio_has_its_own_value_as_gradient_of_its_own_token(ratio):
    jacobian_TT = jax.jacobian(lambda x_BT: ratio(x_BT, OLD_BT, MASK_BT)[0])(LOGP_BT)[:, 0]
    value_T = np.asarray(ratio(LOGP_BT, OLD_BT, MASK_BT))[0]
    np.testing.assert_allclose(jacobian_TT, np.diag(value_T * MASK_BT[0]), rtol=1e-6)


def test_one_token_rows_have_one_ratio():
    one_BT = np.zeros_like(MASK_BT)
    one_BT[:, 3] = True
    expected_BT = token_ratio(LOGP_BT, OLD_BT, one_BT)
    np.testing.assert_array_equal(geometric_ratio(LOGP_BT, OLD_BT, one_BT), expected_BT)
    np.testing.assert_array_equal(product_ratio(LOGP_BT, OLD_BT, one_BT), expected_BT)


@pytest.mark.parametrize("ratio", RATIOS, ids=by_name)
@pytest.mark.parametrize("surrogate", SURROGATES[1:4:2], ids=by_name)
def test_junk_in_the_padding_changes_nothing(ratio, surrogate):
    @jax.jit
    @jax.value_and_grad
    def total(logp_BT, batch):
        ratio_BT = ratio(logp_BT, batch.logp_old_BT, MASK_BT)
        return jnp.sum(surrogate(logp_BT, batch.logp_old_BT, ratio_BT, batch.advantage_BT, MASK_BT))

    clean, clean_BT = total(LOGP_BT, BATCH)
    junk, junk_BT = total(*sample_batch(fill=np.nan))
    assert clean == junk
    np.testing.assert_array_equal(clean_BT, junk_BT)
    assert not np.any(np.asarray(junk_BT)[~MASK_BT])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("logp, old", [(-1.0, -200.0), (-200.0, -1.0)])
@pytest.mark.parametrize("ratio", RATIOS, ids=by_name)
def test_extreme_log_ratios_stay_finite(ratio, logp, old, advantage):
    def loss(x_BT):
        old_BT, whole_BT = jnp.full((1, 2), old), jnp.ones((1, 2), bool)
        ratio_BT = ratio(x_BT, old_BT, whole_BT)
        return jnp.sum(-ratio_BT * advantage)

    value, gradient_BT = jax.value_and_grad(loss)(jnp.full((1, 2), logp))
    assert np.isfinite(value) and not np.any(gradient_BT)  # the clamp's gradient is 0
    expected = -2 * advantage * np.exp(20.0 if logp > old else -20.0)  # e²⁰ = 485165195.4
    np.testing.assert_allclose(value, expected, rtol=1e-6)
