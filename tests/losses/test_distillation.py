"""Divergences of whole distributions: direction, mixture, ends, reduction, gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.losses.aggregate import token_mean, weighted_sum
from rlhf_jax.losses.distillation import generalised_jsd, kl_divergence

TEACHER, STUDENT = np.array([0.75, 0.25]), np.array([0.5, 0.5])


def scalar_kl(p, q):
    return sum(a * (np.log(a) - np.log(b)) for a, b in zip(p, q, strict=True) if a > 0)


def log(p):
    return jnp.log(jnp.asarray(p, jnp.float32))[None, None]


@pytest.mark.parametrize(
    ("mix", "value"),
    [(0.0, 0.130812), (0.25, 0.024870), (0.5, 0.033822), (0.75, 0.026048), (1.0, 0.143841)],
)
def test_trl_3043_jsd_orientation(mix, value):
    # the mixture with the roles swapped would give .059199 at .25
    got = float(generalised_jsd(log(TEACHER), log(STUDENT), mix=mix)[0, 0])
    assert got == pytest.approx(value, abs=2e-6)
    if 0 < mix < 1:
        m = mix * TEACHER + (1 - mix) * STUDENT
        want = mix * scalar_kl(TEACHER, m) + (1 - mix) * scalar_kl(STUDENT, m)
        assert got == pytest.approx(want, abs=1e-6)


def test_trl_4105_the_mean_is_over_tokens():
    mask_BT = jnp.ones((2, 3), bool)
    loss_BT = jnp.full((2, 3), 0.1)
    weight_BT = token_mean(mask_BT, jnp.arange(2))
    assert float(weighted_sum(loss_BT, weight_BT)) == pytest.approx(0.1)  # rows alone: 0.3


def test_impossible_tokens_add_nothing():
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.25, 0.5, 0.25])
    with np.errstate(divide="ignore"):
        got = kl_divergence(log(p), log(q))[0, 0]
    assert float(got) == pytest.approx(scalar_kl(p, q), abs=1e-6)
    both = kl_divergence(log([0.5, 0.5, 0.0]), log([0.75, 0.25, 0.0]))[0, 0]
    assert float(both) == pytest.approx(scalar_kl([0.5, 0.5], [0.75, 0.25]), abs=1e-6)


@pytest.mark.parametrize("mix", [0.0, 0.3, 1.0])
def test_the_gradient_is_that_of_the_definition(mix):
    draw = np.random.default_rng(0)
    teacher = jax.nn.log_softmax(jnp.asarray(draw.normal(size=(1, 1, 5)), jnp.float32))
    logits = jnp.asarray(draw.normal(size=(1, 1, 5)), jnp.float32)

    def loss(z):
        return generalised_jsd(teacher, jax.nn.log_softmax(z), mix=mix)[0, 0]

    t = np.exp(np.asarray(teacher, np.float64))[0, 0]

    def exact(z):
        s = np.exp(z - np.log(np.exp(z).sum()))
        if mix in (0.0, 1.0):
            return scalar_kl(t, s) if mix == 0.0 else scalar_kl(s, t)
        m = mix * t + (1 - mix) * s
        return mix * scalar_kl(t, m) + (1 - mix) * scalar_kl(s, m)

    z, step = np.asarray(logits, np.float64)[0, 0], 1e-6
    want = [(exact(z + step * e) - exact(z - step * e)) / (2 * step) for e in np.eye(5)]
    np.testing.assert_allclose(jax.grad(loss)(logits)[0, 0], want, atol=1e-5)
