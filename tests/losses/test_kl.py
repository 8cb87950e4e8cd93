"""KL estimators: their means, their gradients, where each may be used, and the controller."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.kl import KL, adaptive_coef, k1, k2, k3, kl_tokens, with_gradient
from rlhf_jax.losses.surrogate import token_ratio

ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}
LOGP_BT, BATCH = sample_batch()
REF_BT = BATCH.logp_ref_BT

# policy, reference over three tokens: KL(policy ‖ reference); mean of k2; std of k1, k2, k3
CATEGORICALS = {
    "near": ([0.5, 0.3, 0.2], [0.4, 0.4, 0.2], 0.025267, 0.024862, 0.221554, 0.014335, 0.015956),
    "far": ([0.7, 0.2, 0.1], [0.2, 0.3, 0.5], 0.634897, 0.695250, 0.993683, 0.341694, 0.610853),
    # a peaked policy: k3 varies more than k1
    "peaked": (
        [0.9, 0.09, 0.01],
        [0.34, 0.33, 0.33],
        0.724204,
        0.563515,
        0.776247,
        0.567689,
        2.807013,
    ),
    "broad": (
        [0.34, 0.33, 0.33],
        [0.9, 0.09, 0.01],
        1.251638,
        2.456853,
        1.829510,
        2.570238,
        0.895894,
    ),
}
# bias of k2: +.060353 (far), −.160688 (peaked), +1.205215 (broad)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_equals_the_loop_in_value_and_gradient(name, jit):
    def total(logp_BT):
        kl_BT = ESTIMATORS[name](logp_BT, REF_BT)
        return jnp.sum(kl_BT), kl_BT

    def loop(logp_BT):
        fn = getattr(reference, name)
        rows = zip(logp_BT, rows_of(REF_BT), strict=True)
        return [[fn(*x) for x in zip(*row, strict=True)] for row in rows]

    fn = jax.grad(total, has_aux=True)
    gradient_BT, kl_BT = (jax.jit(fn) if jit else fn)(LOGP_BT)
    np.testing.assert_allclose(kl_BT, loop(rows_of(LOGP_BT)), rtol=1e-4, atol=1e-6)
    expected_BT = numeric_gradient(lambda x: sum(map(sum, loop(x))), LOGP_BT, MASK_BT)
    np.testing.assert_allclose(np.where(MASK_BT, gradient_BT, 0), expected_BT, atol=1e-4)


def test_golden_and_direction():
    # logp −1, ref −1.5: log r = −.5, so k3 = e^−.5 − 1 + .5; swapped it would be .148721
    at = [fn(jnp.float32(-1.0), jnp.float32(-1.5)) for fn in (k1, k2, k3)]
    np.testing.assert_allclose(at, [0.5, 0.125, 0.106531], atol=1e-6)
    swapped = [fn(jnp.float32(-1.5), jnp.float32(-1.0)) for fn in (k1, k2, k3)]
    np.testing.assert_allclose(swapped, [-0.5, 0.125, 0.148721], atol=1e-6)
    at = [fn(jnp.float32(-1.0), jnp.float32(0.0)) for fn in (k1, k2, k3)]
    np.testing.assert_allclose(at, [-1.0, 0.5, 0.718282], atol=1e-6)


@pytest.mark.parametrize("case", CATEGORICALS)
def test_means_and_spreads_under_the_policy(case):
    policy_V, ref_V, kl, mean_k2, *stds = CATEGORICALS[case]
    policy_V, ref_V = np.array(policy_V, np.float32), np.array(ref_V, np.float32)
    exact = np.sum(policy_V * np.log(policy_V / ref_V))
    np.testing.assert_allclose(exact, kl, atol=1e-6)
    for name, mean, std in zip(ESTIMATORS, (kl, mean_k2, kl), stds, strict=True):
        value_V = np.asarray(ESTIMATORS[name](np.log(policy_V), np.log(ref_V)))
        np.testing.assert_allclose(policy_V @ value_V, mean, atol=2e-6)
        np.testing.assert_allclose(policy_V @ value_V**2 - mean**2, std**2, rtol=1e-4)
    assert np.all(k3(np.log(policy_V), np.log(ref_V)) >= 0)


def test_which_gradient_is_the_kls():
    """Expected gradients with respect to the logits, near case; see the table in losses/kl.py."""
    policy_V, ref_V = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.4, 0.4, 0.2])
    logits_V = jnp.log(policy_V)

    def as_loss(fn):
        return jax.grad(lambda z: jnp.sum(policy_V * fn(jax.nn.log_softmax(z), jnp.log(ref_V))))(
            logits_V
        )

    def as_reward(fn):
        value_V = fn(jnp.log(policy_V), jnp.log(ref_V))
        return jax.grad(lambda z: jnp.sum(policy_V * value_V * jax.nn.log_softmax(z)))(logits_V)

    true_V, reverse_V = [0.098938, -0.093885, -0.005053], [0.1, -0.1, 0.0]
    np.testing.assert_allclose(as_loss(k1), [0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(as_loss(k2), true_V, atol=1e-6)
    np.testing.assert_allclose(as_loss(k3), reverse_V, atol=1e-6)
    np.testing.assert_allclose(as_reward(k1), true_V, atol=1e-6)
    np.testing.assert_allclose(as_reward(k3), [-0.001062, 0.006115, -0.005053], atol=1e-6)
    both = bind(with_gradient, value=k3, gradient=k2)
    np.testing.assert_allclose(as_loss(both), true_V, atol=1e-6)
    at = (jnp.log(policy_V), jnp.log(ref_V))
    np.testing.assert_array_equal(both(*at), k3(*at))  # the value to the bit


def test_two_actions():
    """p [.7, .3], q [.5, .5]: KL .082283; logit gradient ±.177933 by k2, ±.2 by k3, 0 by k1."""
    policy_V, ref_V = jnp.array([0.7, 0.3]), jnp.array([0.5, 0.5])
    np.testing.assert_allclose(jnp.sum(policy_V * jnp.log(policy_V / ref_V)), 0.082283, atol=1e-6)
    for fn, expected in ((k1, 0.0), (k2, 0.177933), (k3, 0.2)):
        gradient_V = jax.grad(
            lambda z, fn=fn: jnp.sum(policy_V * fn(jax.nn.log_softmax(z), jnp.log(ref_V)))
        )(jnp.log(policy_V))
        np.testing.assert_allclose(gradient_V, [expected, -expected], atol=1e-6)


@pytest.mark.parametrize("estimator", [k1, k3])
def test_the_ratio_makes_value_and_gradient_right_off_policy(estimator):
    """Tokens of π_old [.2, .3, .5]: Σ π_old·r·k is KL(π ‖ π_ref), and its gradient the true one."""
    policy_V, ref_V = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.4, 0.4, 0.2])
    old_V, logits_V = jnp.array([0.2, 0.3, 0.5]), jnp.log(policy_V)
    old_BT, ref_BT, one_BT = (
        jnp.log(old_V)[:, None],
        jnp.log(ref_V)[:, None],
        jnp.ones((3, 1), bool),
    )

    def mean(kl):
        def fn(z):
            logp_BT = jax.nn.log_softmax(z)[:, None]
            return jnp.sum(old_V[:, None] * kl_tokens(kl, logp_BT, old_BT, ref_BT, one_BT))

        return jax.value_and_grad(fn)(logits_V)

    value, gradient_V = mean(KL(estimator=estimator, coef=1.0, ratio=token_ratio))
    np.testing.assert_allclose(value, 0.025267, atol=1e-6)
    np.testing.assert_allclose(gradient_V, [0.098938, -0.093885, -0.005053], atol=1e-6)
    value, gradient_V = mean(KL(estimator=estimator, coef=1.0))
    assert abs(value - 0.025267) > 1e-3 and np.max(np.abs(gradient_V - 0.098938)) > 1e-3


@pytest.mark.parametrize(
    ("mu", "kl", "stds", "bias"),
    [
        (0.1, 0.005, (20.0, 1.417745, 1.416575), 0.0025),
        (1.0, 0.5, (2.0, 1.732051, 1.695030), 0.25),
    ],
)
def test_gaussians(mu, kl, stds, bias):
    """π = N(0, 1), π_ref = N(μ, 1), by quadrature: std over KL, and the relative bias of k2."""
    x = np.linspace(-12.0, 12.0, 24001)
    density = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    logp, ref = -(x**2) / 2, -((x - mu) ** 2) / 2
    for fn, std, relative in zip((k1, k2, k3), stds, (0.0, bias, 0.0), strict=True):
        value = np.asarray(fn(jnp.float32(logp), jnp.float32(ref)), np.float64)
        mean = density @ value
        np.testing.assert_allclose(mean / kl - 1, relative, atol=2e-4)
        np.testing.assert_allclose(np.sqrt(density @ value**2 - mean**2) / kl, std, rtol=1e-3)


def test_k3_with_its_ratio_upside_down_is_another_divergence():
    """exp(log π − log π_ref) − 1 − (log π − log π_ref) has the mean χ² − KL: 9.977, not 1.252."""
    policy_V, ref_V = map(jnp.array, CATEGORICALS["broad"][:2])
    upside_down_V = k3(jnp.log(ref_V), jnp.log(policy_V))
    np.testing.assert_allclose(policy_V @ upside_down_V, 9.976806, rtol=1e-5)
    np.testing.assert_allclose(
        policy_V @ k3(jnp.log(policy_V), jnp.log(ref_V)), 1.251638, rtol=1e-5
    )


def test_k3_keeps_its_digits_near_zero():
    # d = 1e-3: k3 = d²/2 − d³/6 = 4.998e-7; exp(x) − 1 − x in float32 is off by up to 6e-8
    np.testing.assert_allclose(k3(jnp.float32(0.001), jnp.float32(0.0)), 4.998334e-7, rtol=2e-3)
    np.testing.assert_allclose(k3(jnp.float32(-10.04), jnp.float32(-10.02)), 0.000201, rtol=5e-3)


def test_k3_is_clamped_where_it_would_overflow():
    value, gradient = jax.value_and_grad(k3)(jnp.float32(-39.9), jnp.float32(0.0))
    np.testing.assert_allclose(value, 485165174.4, rtol=1e-6)  # e²⁰ − 21
    assert gradient == 0
    for logp, ref in [(-1e4, -1.0), (-1.0, -1e4)]:
        for fn in ESTIMATORS.values():
            value, gradient = jax.value_and_grad(fn)(jnp.float32(logp), jnp.float32(ref))
            assert np.isfinite(value) and np.isfinite(gradient)


@pytest.mark.parametrize(
    ("kl", "expected"), [(3.0, 0.148464), (6.0, 0.15), (6.6, 0.150768), (12.0, 0.151536)]
)
def test_adaptive_coefficient_golden(kl, expected):
    # .15·(1 + clip(kl/6 − 1, ±.2)·512/10000)
    step = jax.jit(lambda coef, kl: adaptive_coef(coef, kl, target=6.0, horizon=1e4, batch=512))
    np.testing.assert_allclose(step(0.15, kl), expected, rtol=1e-6)


@pytest.mark.parametrize("coef", [-0.1, float("nan"), float("inf")])
def test_bad_coefficient_is_refused(coef):
    with pytest.raises(ConfigError, match="coef"):
        KL(estimator=k3, coef=coef)


def test_coefficient_is_a_leaf():
    kl = KL(estimator=k3, coef=0.1)
    assert jax.tree.leaves(kl) == [0.1]
    assert jax.jit(lambda kl: kl.coef * 2)(kl) == pytest.approx(0.2)
