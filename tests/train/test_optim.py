"""The optimizer: what one update does, and what the schedule counts."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.train.optim import OptimConfig, make_optimizer, make_schedule, read_learning_rate


def params():
    return {"mlp": {"gate_NDF": jnp.full((1, 2, 2), 2.0)}, "norm": {"scale_ND": jnp.ones((1, 2))}}


def one_update(cfg, grads, total=10, start=None):
    start = params() if start is None else start
    tx = make_optimizer(cfg, total)
    updates, _ = tx.update(grads, tx.init(start), start)
    return optax.apply_updates(start, updates)


def test_first_adam_update_is_the_rate_against_the_sign():
    # m̂ = g and v̂ = g² at the first update, so the step is lr·g/(|g| + eps): lr·sign(g)
    grads = jax.tree.map(lambda x: 3.0 * x, params())
    new = one_update(OptimConfig(learning_rate=0.1, eps=1e-12, max_grad_norm=None), grads)
    np.testing.assert_allclose(new["mlp"]["gate_NDF"], 1.9, rtol=1e-6)
    np.testing.assert_allclose(new["norm"]["scale_ND"], 0.9, rtol=1e-6)


def test_decay_pulls_matrices_and_not_norms_or_biases():
    start = params()
    start["mlp"]["bias_gate_NF"] = start["norm"]["gain_ND"] = jnp.ones((1, 2))
    zero = jax.tree.map(jnp.zeros_like, start)
    new = one_update(OptimConfig(learning_rate=0.1, weight_decay=0.5), zero, start=start)
    np.testing.assert_allclose(new["mlp"].pop("gate_NDF"), 2.0 - 0.1 * 0.5 * 2.0, rtol=1e-6)
    for left_alone in jax.tree.leaves(new):
        np.testing.assert_array_equal(left_alone, 1.0)


def test_clipping_scales_to_the_norm():
    # With eps far above the moments Adam is linear: m̂/eps. Norm of the gradient: sqrt(6·9) = 7.35
    grads = jax.tree.map(lambda x: jnp.full_like(x, 3.0), params())
    cfg = {"learning_rate": 1.0, "eps": 1e6}
    plain = one_update(OptimConfig(**cfg, max_grad_norm=None), grads)
    clipped = one_update(OptimConfig(**cfg, max_grad_norm=np.sqrt(54.0) / 2), grads)
    step = lambda new: 2.0 - np.float64(new["mlp"]["gate_NDF"][0, 0, 0])  # noqa: E731
    np.testing.assert_allclose(step(plain), 3e-6, rtol=0.1)
    np.testing.assert_allclose(step(clipped), 1.5e-6, rtol=0.2)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        # warm-up over 2 updates, then 4 more; end_fraction .1
        ("constant", [0.5, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.775, 0.55, 0.325, 0.1]),
        ("cosine", [0.5, 1, 1, 0.868198, 0.55, 0.231802, 0.1]),
    ],
)
def test_schedule(schedule, expected):
    cfg = OptimConfig(learning_rate=2.0, schedule=schedule, warmup_updates=2, end_fraction=0.1)
    rate = make_schedule(cfg, 6)
    np.testing.assert_allclose([rate(k) for k in range(7)], 2.0 * np.array(expected), rtol=1e-5)
    np.testing.assert_allclose(rate(100), 2.0 * expected[-1], rtol=1e-5)


def test_schedule_counts_optimizer_updates():
    # Four updates of one rollout, warm-up 2: the peak is reached inside the first rollout.
    tx = make_optimizer(OptimConfig(learning_rate=1.0, warmup_updates=2), 100)
    state, rates = tx.init(params()), []
    for _ in range(4):
        _, state = tx.update(params(), state, params())
        rates.append(float(read_learning_rate(state)))
    assert rates == [0.5, 1.0, 1.0, 1.0]


def test_no_recorded_rate():
    assert read_learning_rate(optax.sgd(0.1).init(params())) is None


@pytest.mark.parametrize(
    "bad",
    [
        {"learning_rate": -1.0},
        {"learning_rate": float("nan")},
        {"schedule": "cosinus"},
        {"warmup_updates": -1},
        {"end_fraction": 1.5},
        {"weight_decay": float("inf")},
        {"b1": 1.0},
        {"b2": -0.1},
        {"eps": 0.0},
        {"max_grad_norm": 0.0},
    ],
)
def test_bad_numbers(bad):
    with pytest.raises(ConfigError, match=f"optim.{next(iter(bad))}"):
        OptimConfig(**bad)


def test_bad_schedule_names_the_nearest():
    with pytest.raises(ConfigError, match="cosine"):
        OptimConfig(schedule="cosinus")
    with pytest.raises(ConfigError, match="total_updates"):
        make_optimizer(OptimConfig(), 0)


def test_nemo_rl_305_schedules_count_updates_not_rollouts():
    """4 minibatches a rollout, a warm-up of 2: by updates the first rollout ends at the peak, by
    rollouts it would end at half of it. We count updates, and the log says which rate was used."""
    tx = make_optimizer(OptimConfig(learning_rate=1.0, warmup_updates=2), total_updates=8)
    state, rates = tx.init(params()), []
    for _ in range(4):
        _, state = tx.update(jax.tree.map(jnp.ones_like, params()), state, params())
        rates.append(float(read_learning_rate(state)))
    assert rates == [0.5, 1.0, 1.0, 1.0]
