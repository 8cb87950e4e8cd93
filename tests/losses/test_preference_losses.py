"""Paired preference losses: scalar loops in float64, worked numbers, public cases, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from jax import lax
from preference_reference import LENGTH_BS, LOGP_BS, REF_BS
from reference import numeric_gradient

from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as p
from rlhf_jax.losses import preference_anchored as anchored
from rlhf_jax.losses import preference_free as free
from rlhf_jax.losses import preference_transport as transport

LOSSES = [
    bind(p.dpo, beta=0.3),
    bind(p.dpo_averaged, beta=2.0),
    bind(p.cdpo, beta=0.3, smoothing=0.1),
    bind(p.robust_dpo, beta=0.3, smoothing=0.2),
    bind(p.hinge, beta=0.3),
    bind(p.ipo, beta=0.3),
    bind(p.ipo_averaged, beta=0.3),
    bind(p.exo, beta=0.3, soft=0.01),
    bind(p.discopop, beta=0.3, tau=0.05),
    bind(p.dpop, beta=0.3, penalty=2.0),
    bind(anchored.nca, beta=0.3),
    bind(anchored.sppo_hard, beta=0.3),
    bind(anchored.apo_zero, beta=0.3),
    bind(anchored.apo_down, beta=0.3),
    bind(free.simpo, beta=2.0, margin=0.5),
    bind(free.cpo, beta=0.3),
    bind(free.orpo, beta=0.3),
    bind(anchored.bco, beta=0.3),
    bind(transport.aot, beta=0.3),
    bind(transport.aot_unpaired, beta=0.3),
]
STATISTIC = {
    anchored.bco: anchored.reward_shift,
    transport.aot: transport.matched_leads,
    transport.aot_unpaired: transport.matched_sides,
}
FREE = (free.simpo, free.cpo, free.orpo)
WITH_REFERENCE = [loss for loss in LOSSES if loss.fn not in FREE]


def by_name(loss):
    return loss.fn.__name__


def each(loss, logp_BS, ref_BS, length_BS):
    """loss_B, the statistic of the whole batch taken first, without gradient."""
    inputs = (logp_BS, ref_BS, length_BS)
    if loss.fn not in STATISTIC:
        return loss(*inputs)
    rows = logp_BS.shape[0]
    statistic = STATISTIC[loss.fn](*inputs, jnp.full(rows, 1 / rows, logp_BS.dtype))
    return loss(*inputs, lax.stop_gradient(statistic))


def whole(loss, logp_BS, ref_BS, length_BS):
    return jnp.sum(each(loss, logp_BS, ref_BS, length_BS))


def loop(loss, logp_BS, delta):
    """Σ of the scalar losses; `delta` is BCO's, frozen."""
    name, kw = loss.fn.__name__, loss.kw
    if name == "bco":
        return sum(scalar.bco(logp_BS, REF_BS, delta=delta, **kw))
    if loss.fn in STATISTIC:
        return sum(getattr(scalar, name)(logp_BS, REF_BS, **kw))
    return sum(scalar.over_pairs(getattr(scalar, name), logp_BS, REF_BS, LENGTH_BS, **kw))


GRADIENT = jax.value_and_grad(whole, argnums=1)
JITTED = jax.jit(GRADIENT)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_equals_the_loop_in_value_and_gradient(loss, jit):
    """In float64, so that the gradient may be asked for to 1e-6.

    AOT's loop sorts anew at every difference: freezing the matching loses nothing of the gradient.
    """
    delta = scalar.shift(LOGP_BS.tolist(), REF_BS.tolist())
    with jax.enable_x64(True):
        inputs = tuple(jnp.asarray(x, float) for x in (LOGP_BS, REF_BS, LENGTH_BS))
        value, gradient_BS = (JITTED if jit else GRADIENT)(loss, *inputs)
    np.testing.assert_allclose(value, loop(loss, LOGP_BS.tolist(), delta), rtol=1e-12)
    expected_BS = numeric_gradient(
        lambda x: loop(loss, x, delta), LOGP_BS, np.ones_like(LOGP_BS, bool)
    )
    np.testing.assert_allclose(gradient_BS, expected_BS, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_a_pair_has_the_gradient_of_its_own_loss_only(loss):
    """Given the statistic, no row reads another: any cut of the batch adds up."""
    ones = jnp.full(8, 1 / 8)
    args = tuple(jnp.asarray(x, jnp.float32) for x in (LOGP_BS, REF_BS, LENGTH_BS))
    statistic = STATISTIC[loss.fn](*args, ones) if loss.fn in STATISTIC else None

    def one(b):
        extra = () if statistic is None else (statistic[b : b + 1],)
        return jnp.sum(loss(*(x[b : b + 1] for x in args), *extra))

    np.testing.assert_allclose(sum(one(b) for b in range(8)), whole(loss, *args), rtol=1e-5)


# --- the worked point: π_ref(y_w) .15, π_ref(y_l) .12, π .20 and .08, lengths 7 and 9 ------------

POINT = (np.log([[0.20, 0.08]]), np.log([[0.15, 0.12]]), np.array([[7, 9]]))


def at(loss, point=POINT):
    with jax.enable_x64(True):
        return float(whole(loss, *(jnp.asarray(x, float) for x in point)))


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


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize("far", [1e4, -1e4])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("loss", LOSSES, ids=by_name)
def test_extreme_log_ratios_stay_finite(loss, side, far):
    """One side 10⁴ nats from the reference, and a pair whose sides count no token."""
    logp_BS = jnp.array([[-1e4, -1e4], [0.0, 0.0]]).at[0, side].add(min(far, 0.0))
    ref_BS = jnp.array([[-1e4, -1e4], [0.0, 0.0]]).at[0, side].add(min(-far, 0.0))
    length_BS = jnp.array([[5, 5], [0, 0]])
    value, gradient_BS = JITTED(loss, logp_BS, ref_BS, length_BS)
    assert np.isfinite(value) and np.all(np.isfinite(gradient_BS))


@pytest.mark.parametrize("loss", WITH_REFERENCE, ids=by_name)
def test_the_first_step_raises_the_margin(loss):
    """Downhill from the reference, the preferred side gains on the other. DiscoPOP is exempt."""
    args = tuple(jnp.asarray(x, jnp.float32) for x in (REF_BS, REF_BS, LENGTH_BS))
    gradient_BS = JITTED(loss, *args)[1]
    slope_B = np.asarray(gradient_BS[:, 0] - gradient_BS[:, 1])
    assert np.all(slope_B > 0) if loss.fn is p.discopop else np.all(slope_B < 0)


def test_discopop_is_not_convex():
    """Slope +.784264 at 0; a minimum at ρ −.118570 and a maximum at +.072006 (β = τ = .05)."""
    loss = bind(p.discopop, beta=0.05, tau=0.05)

    def at_rho(rho):
        zero = jnp.zeros((1, 2))
        return whole(loss, zero.at[0, 0].set(rho / 0.05), zero, zero)

    with jax.enable_x64(True):
        slope = jax.jit(jax.grad(at_rho))
        np.testing.assert_allclose(slope(0.0), 0.784264, atol=1e-6)
        for rho, value, curved in ((-0.118570, 0.785924, 1), (0.072006, 0.878290, -1)):
            np.testing.assert_allclose(slope(rho), 0, atol=2e-5)
            np.testing.assert_allclose(at_rho(rho), value, atol=1e-6)
            assert np.sign(slope(rho + 1e-3) - slope(rho - 1e-3)) == curved


@pytest.mark.parametrize(
    "loss", [bind(p.dpo, beta=0.3), bind(p.hinge, beta=0.3), bind(p.ipo, beta=0.3)], ids=by_name
)
def test_identical_sides_teach_nothing(loss):
    """Chosen and rejected are one text: the gradients of its two log-probs cancel."""
    same = jnp.array([[-3.0, -3.0]]), jnp.array([[-4.0, -4.0]]), jnp.array([[4, 4]])
    value, gradient_BS = JITTED(loss, *same)
    if loss.fn is p.dpo:
        np.testing.assert_allclose(value, 0.693147, atol=1e-6)
    assert gradient_BS[0, 0] + gradient_BS[0, 1] == 0 != gradient_BS[0, 0]


def test_swapping_the_sides_is_the_loss_at_minus_h():
    """−log σ(−βh) = −log σ(βh) + βh: the loss is never symmetric."""
    swapped = at(bind(p.dpo, beta=0.3), tuple(x[:, ::-1] for x in (LOGP_BS, REF_BS, LENGTH_BS)))
    h = np.sum((LOGP_BS - REF_BS) @ [1, -1])
    plain = at(bind(p.dpo, beta=0.3), (LOGP_BS, REF_BS, LENGTH_BS))
    np.testing.assert_allclose(swapped, plain + 0.3 * h, rtol=1e-12)
    assert abs(h) > 0.1


def test_robust_dpo_is_unbiased_under_flipped_labels():
    """(1 − ε)·ℓ(h) + ε·ℓ(−h) is the clean loss; cDPO's is not."""
    point, flipped = (LOGP_BS, REF_BS, LENGTH_BS), (LOGP_BS[:, ::-1], REF_BS[:, ::-1], LENGTH_BS)
    clean = at(bind(p.dpo, beta=0.3), point)
    for loss, unbiased in ((p.robust_dpo, True), (p.cdpo, False)):
        noisy = bind(loss, beta=0.3, smoothing=0.2)
        mean = 0.8 * at(noisy, point) + 0.2 * at(noisy, flipped)
        assert np.isclose(mean, clean, rtol=1e-9) == unbiased


def test_dpop_charges_a_preferred_side_below_the_reference():
    point = (np.array([[-5.0, -9.0]]), np.array([[-4.0, -4.0]]), np.ones((1, 2)))  # r −1 and −5
    np.testing.assert_allclose(
        at(bind(p.dpop, beta=0.1, penalty=5.0), point),
        -scalar.log_sigmoid(0.1 * (4 - 5)),
        rtol=1e-9,
    )


def test_aot_matches_ranks_not_rows():
    logp_BS = jnp.array([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    ref_BS = jnp.array([[0.0, 0.0], [20.0, 0.0], [10.0, 0.0]])
    third = jnp.full(3, 1 / 3)
    target_B = transport.matched_leads(logp_BS, ref_BS, jnp.ones((3, 2)), third)
    np.testing.assert_array_equal(target_B, [20, 0, 10])
    logp_BS = jnp.array([[3.0, -1.0], [1.0, -3.0], [2.0, -2.0]])
    opposite_BS = transport.matched_sides(logp_BS, jnp.zeros((3, 2)), jnp.ones((3, 2)), third)
    np.testing.assert_array_equal(opposite_BS, [[-1, 3], [-3, 1], [-2, 2]])


# --- fixed points --------------------------------------------------------------------------------

ORDER = np.array([[0, 1], [1, 2], [0, 2]])  # a > b, b > c, a > c


def bandit(loss, logits_V):
    """Three arms, uniform reference, every preference once."""
    log_pi_V = jax.nn.log_softmax(logits_V)
    ref_BS = jnp.full((3, 2), -np.log(3.0))
    return jnp.mean(loss(log_pi_V[ORDER], ref_BS, jnp.ones((3, 2))))


@pytest.mark.parametrize(
    ("tau", "expected"),
    [(0.5, [0.562742, 0.288921, 0.148337]), (1.0, [0.448441, 0.321322, 0.230237])],
)
def test_ipo_bandit_stops_at_its_exact_fixed_point_and_dpo_does_not(tau, expected):
    """(2310.12036, section 5.) IPO's optimum has logits (4/3, 2/3, 0)/(2τ); DPO's are infinite for
    every β, although the paper's regularisation is the same."""
    loss = bind(p.ipo, beta=tau)
    with jax.enable_x64(True):
        step = jax.jit(lambda x: x - 0.3 * jax.grad(lambda y: bandit(loss, y))(x))
        logits_V = jnp.zeros(3)
        for _ in range(60):
            logits_V = step(logits_V)
        np.testing.assert_allclose(jax.nn.softmax(logits_V), expected, atol=1e-6)
        best_V = jnp.array([4 / 3, 2 / 3, 0]) / (2 * tau)
        np.testing.assert_allclose(jax.nn.softmax(best_V), expected, atol=1e-6)
        along = [float(bandit(bind(p.dpo, beta=tau), c * best_V)) for c in (1, 10, 100, 1000)]
        assert along == sorted(along, reverse=True) and along[-1] < 1e-9


def test_xu_2024_table_1_dpo_puts_mass_where_nobody_looked():
    """(2404.10719.) The preferred action fell from .5 to .1 and .9 lies on an action outside the
    reference's support; the loss is near 0 and goes to 0 with π_b."""
    ref_BS = np.log([[0.5, 0.5]])
    losses = [
        at(bind(p.dpo, beta=0.1), (np.log([[0.1, pi_b]]), ref_BS, np.ones((1, 2))))
        for pi_b in (1e-12, 1e-24, 1e-100)
    ]
    np.testing.assert_allclose(losses[0], 0.076436, atol=1e-6)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 1e-9
