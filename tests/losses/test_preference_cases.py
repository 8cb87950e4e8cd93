"""Paired preference losses: worked numbers and public cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from preference_points import POINT, at, whole
from preference_reference import LENGTH_BS, REF_BS

from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as p
from rlhf_jax.losses import preference_anchored as anchored
from rlhf_jax.losses import preference_free as free
from rlhf_jax.losses import preference_transport as transport


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (bind(p.dpo, beta=0.1), 0.659090),  # β·h = .1·ln 2 = .069315
        (bind(p.ipo, beta=0.1), 18.548981),
        (bind(p.ipo_averaged, beta=0.1), 24.145930),
        (bind(p.ipo, beta=1.0), 0.037306),
        (bind(p.hinge, beta=0.1), 0.930685),
        (bind(p.cdpo, beta=0.1, smoothing=0.1), 0.666022),
        (bind(p.cdpo, beta=0.1, smoothing=0.2), 0.672953),
        (bind(p.robust_dpo, beta=0.1, smoothing=0.1), 0.650426),
        (bind(p.robust_dpo, beta=0.1, smoothing=0.2), 0.635985),
        (bind(p.dpo_averaged, beta=5.0), 0.500790),
        (bind(p.exo, beta=0.1, soft=1e-3), 2.642194),
        (bind(p.discopop, beta=0.1, tau=0.05), 0.878244),
        (bind(p.discopop, beta=0.05, tau=0.05), 0.869280),
        (bind(p.dpop, beta=0.1, penalty=5.0), 0.659090),  # the preferred side rose: no penalty
        (bind(anchored.nca, beta=0.1), 1.369224),
        (bind(anchored.sppo_hard, beta=0.1), 43.315691),
        (bind(anchored.apo_zero, beta=0.1), 0.982673),
        (bind(anchored.apo_down, beta=0.1), 0.989870),
        (bind(free.simpo, beta=2.0, margin=1.0), 1.240135),
        (bind(free.simpo, beta=2.5, margin=1.375), 1.500536),
        (bind(free.orpo, beta=1.0), 0.586622),  # log-odds .225766
        (bind(transport.aot, beta=0.1), 0.659090),  # one pair: nothing to sort
        (bind(transport.aot_unpaired, beta=0.1), 0.659090),
    ],
    ids=lambda x: repr(x) if callable(x) else "",
)
def test_worked_point(loss, expected):
    np.testing.assert_allclose(at(loss), expected, atol=6e-7)


def test_bco_without_a_shift():
    logp_BS, ref_BS, length_BS = (jnp.asarray(x, jnp.float32) for x in POINT)
    np.testing.assert_allclose(
        anchored.bco(logp_BS, ref_BS, length_BS, 0.0, beta=0.1), [1.351946], atol=1e-6
    )


def test_dpo_worked_point_in_its_parts():
    """A walk-through in circulation gives the loss .676 here: it is that of half the margin."""
    logp_BS, ref_BS, length_BS = (jnp.asarray(x, jnp.float32) for x in POINT)
    reward_BS = 0.1 * p.log_ratio(logp_BS, ref_BS, length_BS)
    np.testing.assert_allclose(reward_BS, [[0.028768, -0.040547]], atol=1e-6)
    margin = float(p.lead(reward_BS)[0])
    np.testing.assert_allclose(margin, 0.069315, atol=1e-6)
    gradient_BS = jax.grad(lambda x: whole(bind(p.dpo, beta=0.1), x, ref_BS, length_BS))(logp_BS)
    weight = 0.048268  # β·σ(−margin)
    np.testing.assert_allclose(gradient_BS, [[-weight, weight]], atol=1e-6)
    half = 0.5 * np.log([[0.20 / 0.15, 0.08 / 0.12]])
    wrong = at(bind(p.dpo, beta=0.1), (half, 0 * half, POINT[2]))
    np.testing.assert_allclose(wrong, 0.675969, atol=1e-6)
    assert abs(at(bind(p.dpo, beta=0.1)) - 0.676) > 0.016


# --- public cases --------------------------------------------------------------------------------


def test_trl_789_sums_not_means():
    # chosen 3 tokens at −1, reference −1.2; rejected one at −2, reference −1.5: h = .6 + .5
    point = (np.array([[-3.0, -2.0]]), np.array([[-3.6, -1.5]]), np.array([[3, 1]]))
    np.testing.assert_allclose(at(bind(p.dpo, beta=0.1), point), 0.639659, atol=1e-6)
    means = at(bind(p.dpo_averaged, beta=0.1), point)  # h = .2 + .5: right for Tulu 3 only
    np.testing.assert_allclose(means, 0.658760, atol=1e-6)


def test_trl_1265_ipo_summed_and_averaged():
    point = (np.array([[-3.0, -2.0]]), np.array([[-3.6, -1.5]]), np.array([[3, 1]]))
    np.testing.assert_allclose(at(bind(p.ipo, beta=0.1), point), 15.21, atol=1e-9)
    np.testing.assert_allclose(at(bind(p.ipo_averaged, beta=0.1), point), 18.49, atol=1e-9)


def test_paddleformers_4908_the_divisor_counts_what_was_summed():
    mean_BS = free.mean_logp(jnp.array([[-3.0, -3.0]]), None, jnp.array([[2, 3]]))
    np.testing.assert_allclose(mean_BS, [[-1.5, -1.0]])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (bind(p.dpo, beta=0.1), 0.693147),
        (bind(p.dpo_averaged, beta=5.0), 0.693147),
        (bind(p.cdpo, beta=0.1, smoothing=0.3), 0.693147),
        (bind(p.robust_dpo, beta=0.1, smoothing=0.3), 0.693147),
        (bind(p.dpop, beta=0.1, penalty=50.0), 0.693147),
        (bind(p.hinge, beta=0.1), 1.0),
        (bind(p.ipo, beta=0.1), 25.0),
        (bind(p.ipo_averaged, beta=0.1), 25.0),
        (bind(p.discopop, beta=0.1), 0.846574),
        (bind(anchored.bco, beta=0.1), 1.386294),
        (bind(anchored.nca, beta=0.1), 1.386294),
        (bind(anchored.sppo_hard, beta=0.1), 50.0),
        (bind(anchored.apo_zero, beta=0.1), 1.0),
        (bind(anchored.apo_down, beta=0.1), 1.0),
        (bind(transport.aot, beta=0.1), 0.693147),
        (bind(transport.aot_unpaired, beta=0.1), 0.693147),
    ],
    ids=lambda x: repr(x) if callable(x) else "",
)
def test_first_step_loss_where_policy_is_reference(loss, expected):
    np.testing.assert_allclose(at(loss, (REF_BS, REF_BS, LENGTH_BS)) / 8, expected, atol=1e-6)


def test_trl_sigmoid_ignores_label_smoothing():
    point = (np.array([[1.0, 0.0]]), np.zeros((1, 2)), np.ones((1, 2)))  # β·h = 1
    np.testing.assert_allclose(
        at(bind(p.cdpo, beta=1.0, smoothing=0.1), point), 0.413262, atol=1e-6
    )
    np.testing.assert_allclose(
        at(bind(p.robust_dpo, beta=1.0, smoothing=0.1), point), 0.188262, atol=1e-6
    )
    for loss in (p.cdpo, p.robust_dpo):
        np.testing.assert_allclose(
            at(bind(loss, beta=1.0, smoothing=0.0), point), 0.313262, atol=1e-6
        )


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (bind(p.dpo, beta=1.0), 0.287335),
        (bind(p.hinge, beta=1.0), 0.0),
        (bind(anchored.nca, beta=1.0), 1.193270),
        (bind(anchored.sppo_hard, beta=1.0), 0.01),
        (bind(anchored.sppo_hard, beta=0.1), 39.61),  # an older form, on scaled scores, has .3961
        (bind(anchored.apo_zero, beta=1.0), 0.731884),
        (bind(anchored.apo_down, beta=1.0), 0.895396),
        (bind(p.exo, beta=1.0, soft=0.1), 0.092046),
        (bind(p.discopop, beta=1.0, tau=0.05), 0.332871),
        (bind(p.ipo_averaged, beta=1.0), 0.36),
    ],
    ids=lambda x: repr(x) if callable(x) else "",
)
def test_trl_1615_1705_all_losses_at_one_point(loss, expected):
    point = (np.array([[0.6, -0.5]]), np.zeros((1, 2)), np.ones((1, 2)))
    np.testing.assert_allclose(at(loss, point), expected, atol=6e-7)


def test_trl_1615_bco_at_that_point():
    value_B = anchored.bco(jnp.array([[0.6, -0.5]]), *jnp.zeros((2, 1, 2)), 0.0, beta=1.0)
    np.testing.assert_allclose(value_B, [0.911565], atol=1e-6)


def test_trl_4763_orpo_odds_next_to_certainty():
    near_BS = jnp.array([[-1e-8, -1e-8]])
    np.testing.assert_allclose(free._log1m_exp(near_BS), [[-18.420681] * 2], rtol=1e-6)
    np.testing.assert_allclose(free._log1m_exp(jnp.float32(-30.0)), -9.357623e-14, rtol=1e-5)
    for certain in (-1e-8, 0.0):
        for logp_BS in ([[certain, -1.0]], [[-1.0, certain]], [[certain, certain]]):
            value, gradient_BS = jax.value_and_grad(whole, argnums=1)(
                bind(free.orpo, beta=0.1), jnp.array(logp_BS), None, jnp.ones((1, 2))
            )
            assert np.isfinite(value) and np.all(np.isfinite(gradient_BS))
    # mean log-probs −.5 and −1: log-odds .974077, OR term .320300
    point = (np.array([[-0.5, -1.0]]), np.zeros((1, 2)), np.ones((1, 2)))
    np.testing.assert_allclose(at(bind(free.orpo, beta=1.0), point), 0.320300, atol=1e-6)


@pytest.mark.parametrize(
    ("beta", "margin", "expected"), [(2.0, 1.0, 0.913015), (2.5, 1.375, 1.053701)]
)
def test_open_instruct_374_simpo_margin_is_gamma_itself(beta, margin, expected):
    point = (np.array([[-0.5, -0.8]]), np.zeros((1, 2)), np.ones((1, 2)))
    loss = bind(free.simpo, beta=beta, margin=margin)
    np.testing.assert_allclose(at(loss, point), expected, atol=1e-6)
