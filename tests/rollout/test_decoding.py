"""Filters against a plain loop, draws against exact proportions, log-probs of what was drawn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.rollout.decoding import DecodingConfig, draw, inverse_cdf, keep

draw_jit = jax.jit(draw, static_argnums=2)


def log(probs):
    return jnp.log(jnp.array([probs], jnp.float32))


def reference_keep(prob_V, top_k=None, top_p=None, min_p=None):
    """Ids left by top-k, then top-p, then min-p, each renormalised; a walk from the likeliest."""
    order = sorted(range(len(prob_V)), key=lambda i: (-prob_V[i], i))
    if top_k is not None:
        order = order[:top_k]
    if top_p is not None:
        total, reached, kept = sum(prob_V[i] for i in order), 0.0, []
        for i in order:
            if reached >= top_p - 1e-6:
                break
            kept.append(i)
            reached += prob_V[i] / total
        order = kept
    if min_p is not None:
        order = [i for i in order if prob_V[i] >= min_p * prob_V[order[0]]]
    return set(order)


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1},
        {"top_k": 4},
        {"top_p": 0.05},
        {"top_p": 0.7},
        {"min_p": 0.2},
        {"top_k": 6, "top_p": 0.8},
        {"top_k": 8, "top_p": 0.95, "min_p": 0.15},
    ],
)
def test_filters_equal_the_loop(filters):
    rng = np.random.default_rng(0)
    logits_BV = rng.normal(size=(64, 13)).astype(np.float32) * 2
    logits_BV[:8] = np.round(logits_BV[:8])  # ties
    logits_BV[8] = 0.0
    prob_BV = np.exp(logits_BV) / np.exp(logits_BV).sum(-1, keepdims=True)
    decoding = DecodingConfig(**filters)
    kept_BV = np.asarray(keep(jnp.array(prob_BV), decoding))
    expected = [reference_keep(p.tolist(), **filters) for p in prob_BV]
    assert [set(np.flatnonzero(k)) for k in kept_BV] == expected

    drawn = draw_jit(logits_BV, rng.uniform(size=(64, 2)).astype(np.float32), decoding)
    for b, ids in enumerate(expected):
        token = int(drawn.token_B[b])
        assert token in ids
        mass = sum(prob_BV[b, i] for i in ids)
        np.testing.assert_allclose(
            drawn.logp_sampler_B[b], np.log(prob_BV[b, token] / mass), atol=1e-5
        )
        np.testing.assert_allclose(drawn.logp_full_B[b], np.log(prob_BV[b, token]), atol=1e-5)


def test_top_p_renormalises_and_keeps_the_full_log_prob():
    """[.5, .3, .2] at top-p .8 keeps two: [.625, .375]; log .625 = −.470004, log .5 = −.693147."""
    drawn = draw_jit(log([0.5, 0.3, 0.2]), jnp.array([[0.0, 0.0]]), DecodingConfig(top_p=0.8))
    assert int(drawn.token_B[0]) == 0
    np.testing.assert_allclose(drawn.logp_sampler_B, [-0.470004], atol=1e-5)
    np.testing.assert_allclose(drawn.logp_full_B, [-0.693147], atol=1e-5)


def test_log_prob_is_of_the_drawn_token_not_of_the_likeliest():
    """Logits [2, 1, 0], token 1: 1 − log(e² + e + 1) = −1.407606."""
    drawn = draw_jit(jnp.array([[2.0, 1.0, 0.0]]), jnp.array([[0.5, 0.8]]), DecodingConfig())
    assert int(drawn.token_B[0]) == 1
    np.testing.assert_allclose(drawn.logp_full_B, [-1.407606], atol=1e-5)
    np.testing.assert_array_equal(drawn.logp_full_B, drawn.logp_sampler_B)


def test_temperature_divides_the_logits():
    """Logits [2, 0] at T = .5, token 0: −log(1 + e⁻⁴) = −.018150; at T = 1 it is −.126928."""
    for temperature, logp in [(0.5, -0.018150), (1.0, -0.126928)]:
        decoding = DecodingConfig(temperature=temperature)
        drawn = draw_jit(jnp.array([[2.0, 0.0]]), jnp.array([[0.1, 0.1]]), decoding)
        np.testing.assert_allclose(drawn.logp_full_B, [logp], atol=1e-5)


@pytest.mark.parametrize(("logits", "entropy"), [([0.0] * 4, np.log(4)), ([1.0, 0.0], 0.582203)])
def test_entropy_ignores_columns_without_probability(logits, entropy):
    """Four equal tokens: log 4. Logits [1, 0], p = σ(1) = .731059: −p log p − q log q = .582203."""
    logits_BV = jnp.array([[*logits, -jnp.inf]])
    drawn = draw_jit(logits_BV, jnp.array([[0.99, 0.99]]), DecodingConfig())
    np.testing.assert_allclose(drawn.entropy_B, [entropy], atol=1e-5)


def test_greedy_takes_the_likeliest_and_reports_temperature_one():
    logits_BV = jnp.array([[1.0, 3.0, 3.0, 0.0]])
    greedy = draw_jit(logits_BV, jnp.array([[0.9, 0.9]]), DecodingConfig(temperature=0))
    one = jax.nn.log_softmax(logits_BV)[0]
    assert int(greedy.token_B[0]) == 1
    np.testing.assert_allclose(greedy.logp_full_B[0], one[1], atol=1e-6)
    assert float(greedy.logp_sampler_B[0]) == 0.0  # drawn from a point mass
    np.testing.assert_allclose(greedy.entropy_B[0], -(np.exp(one) * one).sum(), atol=1e-6)


@pytest.mark.parametrize("size", [1, 2, 7, 23])
def test_draws_come_in_exact_proportion(size):
    """Over an even grid of both uniforms each index comes as often as its weight says."""
    weight_V = np.random.default_rng(size).uniform(0.1, 1.0, size).astype(np.float32)
    weight_V[1::3] = 0.0
    grid = (np.arange(256) + 0.5) / 256
    uniform_B2 = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2).astype(np.float32)
    weight_BV = np.broadcast_to(weight_V, (len(uniform_B2), size))
    drawn_B = np.asarray(jax.jit(inverse_cdf)(weight_BV, uniform_B2))
    share_V = np.bincount(drawn_B, minlength=size) / len(drawn_B)
    # each of the two cuts can be off by one line of the grid at either end
    np.testing.assert_allclose(share_V, weight_V / weight_V.sum(), atol=2 * 2 / 256)
    assert (share_V[weight_V == 0] == 0).all()


@pytest.mark.parametrize("u", [0.0, 1 - 2.0**-24])
def test_ends_of_the_uniform_never_draw_weight_zero(u):
    rng = np.random.default_rng(1)
    weight_BV = rng.uniform(size=(512, 37)).astype(np.float32) * (rng.uniform(size=(512, 37)) < 0.3)
    weight_BV[:, 5] += 1e-3
    drawn_B = jax.jit(inverse_cdf)(weight_BV, jnp.full((512, 2), u))
    assert (weight_BV[np.arange(512), drawn_B] > 0).all()


def test_a_row_does_not_depend_on_its_neighbours():
    rng = np.random.default_rng(2)
    logits_BV = rng.normal(size=(6, 11)).astype(np.float32)
    uniform_B2 = rng.uniform(size=(6, 2)).astype(np.float32)
    logits_BV[3] = np.nan
    alone = [int(draw_jit(logits_BV[b : b + 1], uniform_B2[b : b + 1], DecodingConfig()).token_B[0])
             for b in range(6)]  # fmt: skip
    together = draw_jit(logits_BV, uniform_B2, DecodingConfig()).token_B.tolist()
    assert together == alone
    assert 0 <= together[3] < 11  # a broken row still names a token: the lookup stays in range


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": -0.1}, "temperature=-0.1 is outside"),
        ({"temperature": float("inf")}, "temperature=inf is not a finite number"),
        ({"top_p": 0.0}, "top_p=0.0 is outside"),
        ({"top_p": 1.0}, "top_p=1.0 is outside"),
        ({"min_p": 1.5}, "min_p=1.5 is outside"),
        ({"top_k": 0}, "top_k=0 must be a whole number"),
        ({"temperature": 0, "top_k": 5}, "greedy"),
    ],
)
def test_config_refuses(options, says):
    with pytest.raises(ConfigError, match=says):
        DecodingConfig(**options)
