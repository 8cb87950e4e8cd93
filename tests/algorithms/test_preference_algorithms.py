"""Whole preference algorithms on pairs: loop, cuts, devices, weights, metrics."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from preference_algorithms import (
    LABELS,
    LENGTH,
    LOGP,
    OBJECTIVES,
    PART,
    REF,
    SORTED,
    WEIGHT,
    part_loss,
    run,
)
from preference_reference import LENGTH_BS, LOGP_BS, REF_BS, WEIGHT_B

from rlhf_jax.algorithms import dpo
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.algorithms.preference import pair_labels
from rlhf_jax.ops.totals import add_metrics, metric_values
from rlhf_jax.types import take_rows


def loop(objective, weight_B):
    """Σ w·(f·ℓ + α·NLL)/Σ w, pair by pair; AOT's mean over the sorted values."""
    name, kw = objective.loss.fn.__name__, objective.loss.kw
    logp_BS, ref_BS = LOGP_BS.tolist(), REF_BS.tolist()
    weight_B = [w / sum(weight_B) for w in weight_B]
    if name in SORTED:
        losses = getattr(scalar, name)(logp_BS, ref_BS, **kw)
    elif name == "bco":
        ratios = [
            (lw - rw + ll - rl) / 2 for (lw, ll), (rw, rl) in zip(logp_BS, ref_BS, strict=True)
        ]
        delta = sum(w * x for w, x in zip(weight_B, ratios, strict=True))
        losses = scalar.bco(logp_BS, ref_BS, delta=delta, **kw)
    else:
        losses = scalar.over_pairs(getattr(scalar, name), logp_BS, ref_BS, LENGTH_BS, **kw)
    if objective.weigh is not None:
        for b, (logp, length) in enumerate(zip(logp_BS, LENGTH_BS, strict=True)):
            losses[b] *= np.exp(logp[0] / length[0] + logp[1] / length[1])
    total = sum(w * x for w, x in zip(weight_B, losses, strict=True))
    if objective.nll is not None:
        tokens = sum(w * n for w, (n, _) in zip(weight_B, LENGTH_BS, strict=True))
        for w, (logp, _), (length, _) in zip(weight_B, logp_BS, LENGTH_BS, strict=True):
            divisor = {"summed": 1, "averaged": length, "token_mean": tokens}
            total -= objective.nll.coef * w * logp / divisor[objective.nll.reduce.fn.__name__]
    return total


@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_the_loop(name):
    (loss, metrics), _ = run(OBJECTIVES[name])
    np.testing.assert_allclose(loss, loop(OBJECTIVES[name], [1.0] * 8), rtol=2e-5)
    assert metric_values(metrics)["loss"] == loss
    if name not in SORTED:
        (loss, _), gradient_BS = run(OBJECTIVES[name], weight_B=WEIGHT)
        np.testing.assert_allclose(loss, loop(OBJECTIVES[name], WEIGHT_B.tolist()), rtol=2e-5)
        assert not np.any(gradient_BS[4])  # the pair of weight 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(name):
    """Sorted losses and batch means too: what they need of the whole is in the labels."""
    objective = OBJECTIVES[name]
    labels = LABELS(objective, LOGP, REF, LENGTH, None if name in SORTED else WEIGHT)
    (loss, metrics), gradient_BS = PART(objective, LOGP, REF, LENGTH, labels)
    inputs = (LOGP, REF, LENGTH, labels)
    parts = [PART(objective, *take_rows(inputs, slice(b, b + 1))) for b in range(8)]
    np.testing.assert_allclose(sum(p[0][0] for p in parts), loss, rtol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([p[1] for p in parts]), gradient_BS, rtol=1e-5, atol=1e-8
    )
    whole = metric_values(metrics)
    added = metric_values(functools.reduce(add_metrics, [p[0][1] for p in parts]))
    assert whole.keys() == added.keys()
    for key in whole:
        np.testing.assert_allclose(added[key], whole[key], rtol=1e-5, atol=1e-7)


def test_eight_devices_equal_one():
    """Gradients of parameters, relative 1e-5, and the parameters after a plain SGD step."""
    draw = np.random.default_rng(0)
    hidden_BSD = jnp.asarray(draw.normal(size=(8, 2, 4)), jnp.float32)
    head_D = jnp.asarray(draw.normal(size=4), jnp.float32)

    @jax.jit
    def gradients(head_D, hidden_BSD, ref_BS, length_BS):
        def loss(head_D, objective):
            logp_BS = -length_BS * jax.nn.softplus(hidden_BSD @ head_D)
            labels = pair_labels(objective, length_BS, logp_BS=logp_BS, logp_ref_BS=ref_BS)
            return part_loss(objective, logp_BS, ref_BS, length_BS, labels)[0]

        return {name: jax.grad(loss)(head_D, fn) for name, fn in OBJECTIVES.items()}

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    spread = jax.device_put((hidden_BSD, REF, LENGTH), NamedSharding(mesh, PartitionSpec("data")))
    one, eight = gradients(head_D, hidden_BSD, REF, LENGTH), gradients(head_D, *spread)
    for name in OBJECTIVES:
        a, b = np.asarray(one[name]), np.asarray(eight[name])
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), name
        np.testing.assert_allclose(head_D - 0.1 * a, head_D - 0.1 * b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in SORTED])
def test_a_pair_of_weight_zero_may_hold_anything(name):
    def at(fill):
        gone_B1 = (WEIGHT == 0)[:, None]
        logp_BS, ref_BS = jnp.where(gone_B1, fill, LOGP), jnp.where(gone_B1, fill, REF)
        return run(OBJECTIVES[name], logp_BS, ref_BS, weight_B=WEIGHT)

    (clean, metrics), clean_BS = at(-1.0)
    (value, junk_metrics), junk_BS = at(np.nan)
    assert clean == value
    np.testing.assert_array_equal(clean_BS, junk_BS)
    assert metric_values(metrics) == metric_values(junk_metrics)


def test_the_scale_of_the_weights_does_not_matter():
    (loss, _), gradient_BS = run(OBJECTIVES["rpo"], weight_B=WEIGHT)
    (scaled, _), scaled_BS = run(OBJECTIVES["rpo"], weight_B=100 * WEIGHT)
    np.testing.assert_allclose(scaled, loss, rtol=1e-6)
    np.testing.assert_allclose(scaled_BS, gradient_BS, rtol=1e-6)
    same, none = run(OBJECTIVES["rpo"], weight_B=7 * jnp.ones(8)), run(OBJECTIVES["rpo"])
    np.testing.assert_allclose(same[0][0], none[0][0], rtol=1e-6)


def test_wpo_scales_the_gradient_of_a_pair_and_is_not_differentiated():
    """w = exp(log π(y_w)/|y_w| + log π(y_l)/|y_l|), in nats a token, times DPO's gradient."""
    _, plain_BS = run(dpo.dpo(beta=0.1))
    _, weighted_BS = run(dpo.wpo(beta=0.1))
    factor_B = np.exp(np.sum(LOGP_BS / LENGTH_BS, axis=1))
    np.testing.assert_allclose(weighted_BS, factor_B[:, None] * plain_BS, rtol=1e-5)


# --- metrics -------------------------------------------------------------------------------------


def test_metrics_at_the_worked_point():
    logp_BS, ref_BS = jnp.log(jnp.array([[0.20, 0.08]])), jnp.log(jnp.array([[0.15, 0.12]]))
    length_BS = jnp.array([[7, 9]])
    (_, metrics), _ = run(dpo.rpo(), logp_BS, ref_BS, length_BS)
    expected = {
        "preference_loss": 0.659090,
        "nll_loss": 0.229920,
        "loss": 0.889010,
        "reward_chosen": 0.028768,
        "reward_rejected": -0.040547,
        "margin": 0.069315,
        "accuracy": 1.0,
        "logp_chosen": -1.609438,
        "logp_rejected": -2.525729,
    }
    values = metric_values(metrics)
    assert values.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(values[key], value, atol=1e-6)
    (loss, _), _ = run(orpo(), logp_BS, ref_BS, length_BS)
    np.testing.assert_allclose(loss, 0.288582, atol=1e-6)


def test_trl_first_step_accuracy_is_zero_and_margin_too():
    """Strictly greater: at the reference every pair is a tie, and a tie is wrong."""
    (loss, metrics), _ = run(dpo.dpo(), REF, REF)
    values = metric_values(metrics)
    np.testing.assert_allclose(loss, 0.693147, atol=1e-6)
    assert values["accuracy"] == values["margin"] == values["reward_chosen"] == 0


@pytest.mark.parametrize(
    ("name", "accuracy"), [("dpo", 0.0), ("dpo_averaged", 1.0), ("ipo_averaged", 1.0), ("cpo", 0.0)]
)
def test_accuracy_is_of_the_reward_that_the_loss_compares(name, accuracy):
    """r −2 over 8 tokens against −1 over 1: the sum prefers the one, the mean the other."""
    logp_BS, ref_BS, length_BS = jnp.array([[-4.0, -3.0]]), jnp.full((1, 2), -2.0), LENGTH[:1]
    length_BS = jnp.array([[8, 1]])
    (_, metrics), _ = run(OBJECTIVES[name], logp_BS, ref_BS, length_BS)
    assert metric_values(metrics)["accuracy"] == accuracy
