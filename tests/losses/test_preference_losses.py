"""Paired preference losses: scalar loops in float64, limits, fixed points."""

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from preference_points import FREE, LOSSES, STATISTIC, at, whole
from preference_reference import LENGTH_BS, LOGP_BS, REF_BS
from reference import numeric_gradient

from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as p
from rlhf_jax.losses import preference_transport as transport

WITH_REFERENCE = [loss for loss in LOSSES if loss.fn not in FREE]


def by_name(loss):
    return loss.fn.__name__


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
