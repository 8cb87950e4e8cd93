"""The whole loss of every algorithm: loop, gradient, padding, cuts, devices, extremes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from reference import MASK_BT, numeric_gradient, rows_of, sample_batch

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import PolicyObjective, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.losses.reweighted import dro, off_policy_masked, probability_masked
from rlhf_jax.losses.surrogate import clipped, dual_clipped, token_ratio, unclipped
from rlhf_jax.ops.logprobs import token_logprobs
from rlhf_jax.ops.totals import add_metrics, metric_values
from rlhf_jax.types import replace, take_rows

OBJECTIVES = {
    "grpo": grpo(),
    "dr_grpo": dr_grpo(length=5),
    "ppo": ppo(),
    "rloo": rloo(),
    "reinforce_pp": reinforce_pp(),
    "reinforce_pp_baseline": reinforce_pp_baseline(),
    "dapo": dapo(),
    "gspo": gspo(low=0.05, high=0.1),
    "dual_clipped_entropy": PolicyObjective(
        advantage=bind(group_norm),
        surrogate=bind(dual_clipped, low=0.2, high=0.2, cap=1.4),
        entropy=0.01,
    ),
    "cispo": cispo(high=0.2),
    "sapo": sapo(),
    "gmpo": gmpo(low=0.2, high=0.2),
    "dro": replace(grpo(beta=None), surrogate=bind(dro, beta=0.05)),
    "masks": PolicyObjective(
        advantage=bind(group_norm),
        surrogate=bind(
            off_policy_masked,
            inner=bind(probability_masked, threshold=0.05),
            threshold=0.05,
        ),
        loss_kl=KL(estimator=k3, coef=0.1, ratio=token_ratio),
    ),
}
# whose value on fresh weights is −Σ w·Â; of the others only the gradient is
PLAIN = {unclipped, clipped, dual_clipped, probability_masked, off_policy_masked}
LOGP_BT, BATCH = sample_batch()
ENTROPY_BT, VALUE_BT = -LOGP_BT, sample_batch(seed=5)[0]


def weight_of(objective, batch=BATCH):
    return objective.aggregate(batch.mask_BT, batch.group_B)


def loss_of(objective, logp_BT, batch, entropy_BT, value_BT, weight_BT):
    return policy_loss(
        objective, logp_BT, batch, weight_BT, entropy_BT=entropy_BT, value_BT=value_BT
    )


GRADIENT = jax.value_and_grad(loss_of, argnums=1, has_aux=True)
JITTED = jax.jit(GRADIENT)


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_the_loop(name, jit):
    objective = OBJECTIVES[name]
    fn = JITTED if jit else GRADIENT
    weight_BT = weight_of(objective)
    (loss, _), gradient_BT = fn(objective, LOGP_BT, BATCH, ENTROPY_BT, VALUE_BT, weight_BT)

    columns = zip(rows_of(LOGP_BT), rows_of(BATCH.logp_old_BT), rows_of(MASK_BT), strict=True)
    frozen_BT = [reference.token_ratio(*row) for row in columns]

    def loop(logp_BT):
        return reference.policy_loss(
            objective,
            logp_BT,
            BATCH,
            entropy_BT=rows_of(ENTROPY_BT),
            value_BT=rows_of(VALUE_BT),
            frozen_BT=frozen_BT,
        )

    np.testing.assert_allclose(loss, loop(rows_of(LOGP_BT)), rtol=2e-5)
    # objectives of whole rows: see test_papers
    if objective.ratio.fn is token_ratio and name != "gmpo":
        expected_BT = numeric_gradient(loop, LOGP_BT, MASK_BT)
        np.testing.assert_allclose(gradient_BT, expected_BT, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_junk_in_the_padding_changes_nothing(name):
    objective = OBJECTIVES[name]
    junk_logp_BT, junk = sample_batch(fill=np.nan)
    weight_BT = weight_of(objective)

    def run(logp_BT, batch, fill):
        entropy_BT, value_BT = (jnp.where(MASK_BT, x, fill) for x in (ENTROPY_BT, VALUE_BT))
        return JITTED(objective, logp_BT, batch, entropy_BT, value_BT, weight_BT)

    (clean, clean_metrics), clean_BT = run(LOGP_BT, BATCH, 0.0)
    (value, metrics), gradient_BT = run(junk_logp_BT, junk, np.nan)
    assert clean == value
    np.testing.assert_array_equal(clean_BT, gradient_BT)
    assert not np.any(np.asarray(gradient_BT)[~MASK_BT])
    assert metric_values(metrics) == metric_values(clean_metrics)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(name):
    objective = OBJECTIVES[name]
    inputs = (LOGP_BT, BATCH, ENTROPY_BT, VALUE_BT, weight_of(objective))
    (loss, metrics), gradient_BT = JITTED(objective, *inputs)
    parts = [JITTED(objective, *take_rows(inputs, slice(b, b + 1))) for b in range(8)]
    np.testing.assert_allclose(sum(p[0][0] for p in parts), loss, rtol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([p[1] for p in parts]), gradient_BT, rtol=1e-5, atol=1e-8
    )
    added = parts[0][0][1]
    for (_, more), _ in parts[1:]:
        added = add_metrics(added, more)
    whole, summed = metric_values(metrics), metric_values(added)
    assert whole.keys() == summed.keys()
    for key in whole:
        np.testing.assert_allclose(summed[key], whole[key], rtol=1e-5, atol=1e-7)


def test_eight_devices_equal_one():
    """Gradients of parameters, relative 1e-5, and the parameters after a plain SGD step."""
    draw = np.random.default_rng(0)
    hidden_BTD = jnp.asarray(draw.normal(size=(*MASK_BT.shape, 4)), jnp.float32)
    params = {
        "head_DV": jnp.asarray(draw.normal(size=(4, 9)), jnp.float32),
        "value_D": jnp.asarray(draw.normal(size=4), jnp.float32),
    }

    @jax.jit
    def gradients(params, hidden_BTD, batch):
        def loss(params, objective):
            logp_BT, entropy_BT = token_logprobs(hidden_BTD, params["head_DV"], batch.tokens_BT)
            value_BT = hidden_BTD @ params["value_D"]
            weight_BT = weight_of(objective, batch)
            return loss_of(objective, logp_BT, batch, entropy_BT, value_BT, weight_BT)[0]

        return {name: jax.grad(loss)(params, fn) for name, fn in OBJECTIVES.items()}

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    spread = jax.device_put((hidden_BTD, BATCH), rows)
    one, eight = gradients(params, hidden_BTD, BATCH), gradients(params, *spread)
    for name in OBJECTIVES:
        for key in params:
            a, b = np.asarray(one[name][key]), np.asarray(eight[name][key])
            assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a), (name, key)
            moved = np.asarray(params[key]) - 0.1 * a, np.asarray(params[key]) - 0.1 * b
            np.testing.assert_allclose(*moved, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("logp, old", [(-1e-3, -200.0), (-200.0, -1e-3)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_extremes_stay_finite(name, logp, old):
    """Row 4 of the batch counts no token."""
    objective = OBJECTIVES[name]
    far = jnp.full(MASK_BT.shape, old)
    batch = replace(BATCH, logp_old_BT=far, logp_ref_BT=far)
    logp_BT = jnp.full(MASK_BT.shape, logp)
    (loss, metrics), gradient_BT = JITTED(
        objective, logp_BT, batch, ENTROPY_BT, VALUE_BT, weight_of(objective)
    )
    assert np.isfinite(loss) and np.all(np.isfinite(gradient_BT))
    assert all(np.isfinite(v) for v in metric_values(metrics).values())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_with_nothing_counted_is_zero(name):
    objective = OBJECTIVES[name]
    empty = replace(BATCH, mask_BT=jnp.zeros_like(BATCH.mask_BT))
    (loss, metrics), gradient_BT = JITTED(
        objective, LOGP_BT, empty, ENTROPY_BT, VALUE_BT, weight_of(objective, empty)
    )
    assert loss == 0 and not np.any(gradient_BT)
    assert all(np.isfinite(v) for v in metric_values(metrics).values())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_fresh_weights_have_ratio_one_and_reinforces_gradient(name):
    """logp_old None: π_old = π. Value −Σ w·Â, gradient −w·Â, clip fraction 0."""
    objective = replace(OBJECTIVES[name], loss_kl=None, entropy=None)
    fresh = replace(BATCH, logp_old_BT=None, correction_BT=None)
    weight_BT = weight_of(objective)
    (_, metrics), gradient_BT = JITTED(objective, LOGP_BT, fresh, ENTROPY_BT, VALUE_BT, weight_BT)
    np.testing.assert_allclose(gradient_BT, -weight_BT * fresh.advantage_BT, rtol=1e-6)
    values = metric_values(metrics)
    if objective.surrogate.fn in PLAIN:
        expected = -jnp.sum(weight_BT * fresh.advantage_BT)
        np.testing.assert_allclose(values["policy_loss"], expected, rtol=1e-5)
    assert values["ratio"] == values["ratio_max"] == 1
    assert values["clip_low"] == values["clip_high"] == values["kl_old"] == 0


def test_a_correction_of_one_changes_no_bit():
    ones = replace(BATCH, correction_BT=jnp.ones_like(BATCH.correction_BT))
    none = replace(BATCH, correction_BT=None)
    args = (ENTROPY_BT, VALUE_BT, weight_of(OBJECTIVES["grpo"]))
    with_ones = JITTED(OBJECTIVES["grpo"], LOGP_BT, ones, *args)
    without = JITTED(OBJECTIVES["grpo"], LOGP_BT, none, *args)
    assert with_ones[0][0] == without[0][0]
    np.testing.assert_array_equal(with_ones[1], without[1])


def test_the_correction_weighs_the_surrogate_and_not_the_kl():
    objective = replace(OBJECTIVES["grpo"], surrogate=bind(unclipped))
    zero = replace(BATCH, correction_BT=jnp.zeros_like(BATCH.correction_BT))
    args = (ENTROPY_BT, VALUE_BT, weight_of(objective))
    (loss, metrics), _ = JITTED(objective, LOGP_BT, zero, *args)
    assert loss == metric_values(metrics)["kl_loss"] > 0


def test_a_wide_clip_is_no_clip():
    args = (LOGP_BT, BATCH, ENTROPY_BT, VALUE_BT, weight_of(OBJECTIVES["gspo"]))
    wide = JITTED(grpo(beta=None, low=1e6, high=1e6), *args)
    without = JITTED(replace(grpo(beta=None), surrogate=bind(unclipped)), *args)
    np.testing.assert_allclose(wide[0][0], without[0][0], rtol=1e-6)
    np.testing.assert_allclose(wide[1], without[1], rtol=1e-6)


def test_the_value_loss_reaches_the_critic_and_not_the_policy():
    objective = OBJECTIVES["ppo"]

    def loss(logp_BT, value_BT, batch):
        return loss_of(objective, logp_BT, batch, None, value_BT, weight_of(objective))[0]

    no_policy = replace(BATCH, advantage_BT=jnp.zeros_like(BATCH.advantage_BT))
    policy_BT, critic_BT = jax.jit(jax.grad(loss, argnums=(0, 1)))(LOGP_BT, VALUE_BT, no_policy)
    assert not np.any(policy_BT) and np.any(critic_BT)


@pytest.mark.parametrize(
    ("ratios", "low", "high"),
    [
        # Â [1, 1, −1, −1]: the first and the last are clipped, half of the tokens, not all
        ([1.5, 0.5, 1.5, 0.5], 0.25, 0.25),
        ([1.1, 0.9, 1.1, 0.9], 0.0, 0.0),
        ([1.5, 1.5, 0.5, 0.5], 0.5, 0.5),
    ],
)
def test_clip_fractions_know_the_sign_of_the_advantage(ratios, low, high):
    one_BT, mask_BT = jnp.ones((1, 4)), jnp.ones((1, 4), bool)
    batch = replace(
        take_rows(BATCH, slice(0, 1)),
        mask_BT=mask_BT,
        advantage_BT=jnp.array([[1.0, 1.0, -1.0, -1.0]]),
        logp_old_BT=-3 * one_BT,
        logp_ref_BT=-3 * one_BT,
        logp_full_BT=None,
        correction_BT=None,
    )
    logp_BT = -3 + jnp.log(jnp.array([ratios]))
    _, metrics = policy_loss(grpo(), logp_BT, batch, one_BT / 4)
    values = metric_values(metrics)
    assert (values["clip_low"], values["clip_high"]) == (low, high)
    np.testing.assert_allclose(values["ratio_max"], max(ratios), rtol=1e-6)
    np.testing.assert_allclose(values["kl_k1"], np.mean(np.log(ratios)), atol=1e-6)
    # the tokens were drawn from π_old: KL(π_old ‖ π) is the mean of r − 1 − log r, r = π/π_old
    expected = np.mean(np.array(ratios) - 1 - np.log(ratios))
    np.testing.assert_allclose(values["kl_old"], expected, rtol=1e-4)


def test_a_token_without_advantage_is_not_called_clipped():
    still = replace(BATCH, advantage_BT=jnp.zeros_like(BATCH.advantage_BT))
    weight_BT = weight_of(OBJECTIVES["gspo"])
    (_, metrics), _ = JITTED(OBJECTIVES["gspo"], LOGP_BT, still, ENTROPY_BT, VALUE_BT, weight_BT)
    values = metric_values(metrics)
    assert values["clip_low"] == values["clip_high"] == 0


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("grpo", "logp_ref_BT"),
        ("ppo", "value_BT"),
        ("ppo", "return_BT"),
        ("ppo", "value_old_BT"),
        ("dual_clipped_entropy", "entropy_BT"),
    ],
)
def test_a_missing_input_is_named(name, field):
    batch = replace(BATCH, **{field: None}) if hasattr(BATCH, field) else BATCH
    inputs = {"entropy_BT": ENTROPY_BT, "value_BT": VALUE_BT}
    inputs |= {field: None} if field in inputs else {}
    with pytest.raises(ConfigError, match=field):
        policy_loss(OBJECTIVES[name], LOGP_BT, batch, LOGP_BT, **inputs)
