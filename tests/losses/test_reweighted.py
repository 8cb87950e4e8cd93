"""Surrogates beyond the clip: scalar loops, worked numbers, gradients, masks, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch
from reference_surrogates import STOPPED, surrogate_row

from rlhf_jax.bind import bind
from rlhf_jax.losses.reweighted import (
    cispo,
    dro,
    gmpo,
    off_policy_masked,
    probability_masked,
    sapo,
)
from rlhf_jax.losses.surrogate import clipped, geometric_ratio, token_ratio, unclipped

SURROGATES = [
    bind(cispo, high=0.2),
    bind(cispo, high=0.28, low=0.2),
    bind(sapo, tau_positive=1.0, tau_negative=1.05),
    bind(gmpo, low=0.2, high=0.3),
    bind(dro, beta=0.05),
    bind(probability_masked, threshold=0.03),
    bind(off_policy_masked, inner=bind(clipped, low=0.2, high=0.2), threshold=0.05),
]
LOGP_BT, BATCH = sample_batch()
OLD_BT = BATCH.logp_old_BT
# one advantage a row, so that a sequence objective has one gradient
ADVANTAGE_BT = jnp.where(MASK_BT, BATCH.advantage_BT[:, 2:3], 0)


def scalar_ratios(logp_BT):
    return [
        reference.token_ratio(*row)
        for row in zip(logp_BT, rows_of(OLD_BT), rows_of(MASK_BT), strict=True)
    ]


def loop(surrogate, logp_BT, frozen_BT):
    stopped = surrogate.fn.__name__ in STOPPED
    ratio_BT = frozen_BT if stopped else scalar_ratios(logp_BT)
    columns = (logp_BT, rows_of(OLD_BT), ratio_BT, rows_of(ADVANTAGE_BT), rows_of(MASK_BT))
    return [surrogate_row(surrogate, *row) for row in zip(*columns, strict=True)]


def total(logp_BT, batch, advantage_BT, surrogate):
    ratio_BT = token_ratio(logp_BT, batch.logp_old_BT, batch.mask_BT)
    loss_BT = surrogate(logp_BT, batch.logp_old_BT, ratio_BT, advantage_BT, batch.mask_BT)
    return jnp.sum(loss_BT), loss_BT


GRADIENT = jax.grad(total, has_aux=True)
JITTED = jax.jit(GRADIENT)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=repr)
def test_equals_the_loop_in_value_and_gradient(surrogate, jit):
    fn = JITTED if jit else GRADIENT
    gradient_BT, loss_BT = fn(LOGP_BT, BATCH, ADVANTAGE_BT, surrogate)
    frozen_BT = scalar_ratios(rows_of(LOGP_BT))
    expected_BT = loop(surrogate, rows_of(LOGP_BT), frozen_BT)
    np.testing.assert_allclose(loss_BT, expected_BT, rtol=1e-5, atol=1e-6)
    slopes_BT = numeric_gradient(
        lambda x: sum(map(sum, loop(surrogate, x, frozen_BT))), LOGP_BT, MASK_BT
    )
    np.testing.assert_allclose(gradient_BT, slopes_BT, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("surrogate", SURROGATES, ids=repr)
def test_junk_in_the_padding_changes_nothing(surrogate):
    clean = JITTED(LOGP_BT, BATCH, ADVANTAGE_BT, surrogate)
    junk_BT = jnp.where(MASK_BT, ADVANTAGE_BT, jnp.nan)
    gradient_BT, loss_BT = JITTED(*sample_batch(fill=np.nan), junk_BT, surrogate)
    np.testing.assert_array_equal(clean[0], gradient_BT)
    np.testing.assert_array_equal(clean[1], loss_BT)
    assert not np.any(np.asarray(gradient_BT)[~MASK_BT]) and not np.any(loss_BT[~MASK_BT])


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("logp, old", [(-1.0, -200.0), (-200.0, -1.0)])
@pytest.mark.parametrize("surrogate", SURROGATES, ids=repr)
def test_extremes_stay_finite(surrogate, logp, old, advantage):
    far = BATCH.__class__(**{**vars(BATCH), "logp_old_BT": jnp.full(MASK_BT.shape, old)})
    gradient_BT, loss_BT = JITTED(
        jnp.full(MASK_BT.shape, logp), far, jnp.full(MASK_BT.shape, advantage), surrogate
    )
    assert np.all(np.isfinite(loss_BT)) and np.all(np.isfinite(gradient_BT))


@pytest.mark.parametrize("surrogate", SURROGATES, ids=repr)
def test_fresh_weights_have_reinforces_gradient(surrogate):
    fresh = BATCH.__class__(**{**vars(BATCH), "logp_old_BT": LOGP_BT})
    gradient_BT, _ = JITTED(LOGP_BT, fresh, ADVANTAGE_BT, surrogate)
    np.testing.assert_allclose(gradient_BT, -ADVANTAGE_BT, rtol=1e-6)


def one(surrogate, *, ratio, advantage, logp=-1.0):
    """(loss, d loss / d logp) of one token."""
    old_BT, whole_BT = jnp.full((1, 1), logp - np.log(ratio)), jnp.ones((1, 1), bool)

    def loss(logp_BT):
        ratio_BT = token_ratio(logp_BT, old_BT, whole_BT)
        return surrogate(logp_BT, old_BT, ratio_BT, jnp.full((1, 1), advantage), whole_BT)[0, 0]

    value, gradient_BT = jax.value_and_grad(loss)(jnp.full((1, 1), logp))
    return value, gradient_BT[0, 0]


# --- CISPO ---------------------------------------------------------------------------------------


def test_cispo_weights_golden():
    # Δ [.1, −.05, .3, .02], ε_high .28: [1.105171, .951229, 1.28, 1.020201], no lower bound
    delta_BT, whole_BT = jnp.array([[0.1, -0.05, 0.3, 0.02]]), jnp.ones((1, 4), bool)
    ratio_BT = token_ratio(delta_BT, 0 * delta_BT, whole_BT)
    gradient_BT = jax.grad(
        lambda x: jnp.sum(cispo(x, 0 * x, ratio_BT, jnp.ones((1, 4)), whole_BT, high=0.28))
    )(delta_BT)
    np.testing.assert_allclose(-gradient_BT, [[1.105171, 0.951229, 1.28, 1.020201]], rtol=1e-6)


def test_cispo_keeps_the_gradient_of_every_token_where_the_clip_drops_some():
    advantage_BT = jnp.where(ADVANTAGE_BT == 0, 0.1, ADVANTAGE_BT)
    kept_BT, _ = JITTED(LOGP_BT, BATCH, advantage_BT, bind(cispo, high=0.2))
    cut_BT, _ = JITTED(LOGP_BT, BATCH, advantage_BT, bind(clipped, low=0.2, high=0.2))
    assert np.all(np.asarray(kept_BT)[MASK_BT] != 0) and np.any(np.asarray(cut_BT)[MASK_BT] == 0)


# --- SAPO ----------------------------------------------------------------------------------------


def test_sapo_gate_golden():
    """4·σ(.3) = 2.297770 at r = 1.3; the slope in r is 1 at r = 1 for every τ and falls off."""
    gate = bind(sapo, tau_positive=1.0, tau_negative=1.05)
    np.testing.assert_allclose(one(gate, ratio=1.3, advantage=1.0)[0], -2.297770, rtol=1e-6)
    for tau in (0.5, 1.0, 3.0):
        gate = bind(sapo, tau_positive=tau, tau_negative=tau)
        np.testing.assert_allclose(one(gate, ratio=1.0, advantage=2.0), (-4 / tau, -2), rtol=1e-5)
        slopes = [one(gate, ratio=r, advantage=1.0)[1] / r for r in (1.0, 1.5, 2.0, 4.0)]
        assert np.all(np.diff(np.abs(slopes)) < 0)


# --- GMPO ----------------------------------------------------------------------------------------


def test_gmpo_golden():
    delta_BT, whole_BT = jnp.array([[0.1, -0.05, 0.3, 0.02]]), jnp.ones((1, 4), bool)

    def loss(advantage, width):
        zero_BT, advantage_BT = 0 * delta_BT, jnp.full((1, 4), advantage)
        return gmpo(delta_BT, zero_BT, zero_BT, advantage_BT, whole_BT, low=width, high=width)[0, 0]

    # ε .4: nothing clipped, exp(.0925); ε .15: .3 → .15, exp(.055); Â < 0 at ε .03: −.05 → −.03
    expected = [-1.096913, -1.056541, 1.102412]
    values = [loss(1.0, 0.4), loss(1.0, 0.15), loss(-1.0, 0.03)]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_gmpo_with_a_wide_clip_is_the_geometric_ratio():
    wide = bind(gmpo, low=50.0, high=50.0)
    gradient_BT, loss_BT = JITTED(LOGP_BT, BATCH, ADVANTAGE_BT, wide)

    def plain(logp_BT):
        ratio_BT = geometric_ratio(logp_BT, OLD_BT, MASK_BT)
        loss_BT = unclipped(logp_BT, OLD_BT, ratio_BT, ADVANTAGE_BT, MASK_BT)
        return jnp.sum(loss_BT), loss_BT

    expected_BT, value_BT = jax.grad(plain, has_aux=True)(LOGP_BT)
    np.testing.assert_allclose(loss_BT, value_BT, rtol=1e-6)
    np.testing.assert_allclose(gradient_BT, expected_BT, rtol=1e-6)


# --- masks ---------------------------------------------------------------------------------------


def test_probability_mask_looks_at_probabilities_and_not_at_ratios():
    mask = bind(probability_masked, threshold=0.15)
    # .0001 → .0002 is a ratio of 2 and moves 1e-4; .8 → .96 is a ratio of 1.2 and moves .16
    np.testing.assert_allclose(
        one(mask, ratio=2.0, advantage=1.0, logp=float(np.log(2e-4))), (-2, -2), rtol=1e-5
    )
    assert one(mask, ratio=1.2, advantage=1.0, logp=float(np.log(0.96))) == (0, 0)


def test_dro_stands_still_where_the_log_ratio_is_the_advantage_over_beta():
    tether = bind(dro, beta=0.5)
    np.testing.assert_allclose(
        one(tether, ratio=float(np.exp(0.4)), advantage=0.2)[1], 0.0, atol=1e-6
    )
