"""Whole preference algorithms on pairs: loop, cuts, devices, weights, metrics, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from preference_reference import LENGTH_BS, LOGP_BS, REF_BS, WEIGHT_B

from rlhf_jax.algorithms import dpo, dpo_relatives
from rlhf_jax.algorithms.aot import aot, aot_unpaired
from rlhf_jax.algorithms.apo import apo_down, apo_zero
from rlhf_jax.algorithms.bco import bco
from rlhf_jax.algorithms.cpo import cpo
from rlhf_jax.algorithms.ipo import ipo, ipo_averaged
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.algorithms.preference import PreferenceObjective, pair_labels, preference_loss
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses import nll, preference
from rlhf_jax.losses.nll import NLL
from rlhf_jax.losses.preference_anchored import bco as bco_loss
from rlhf_jax.losses.preference_anchored import reward_shift
from rlhf_jax.ops.totals import add_metrics, metric_values
from rlhf_jax.types import replace, take_rows

OBJECTIVES = {
    "dpo": dpo.dpo(),
    "cdpo": dpo.cdpo(),
    "robust_dpo": dpo.robust_dpo(),
    "dpo_averaged": dpo.dpo_averaged(),
    "dpop": dpo.dpop(),
    "rpo": dpo.rpo(),
    "rpo_summed": dpo.rpo(coef=0.005, reduce=nll.summed),
    "wpo": dpo.wpo(beta=0.1),
    "ipo": ipo(),
    "ipo_averaged": ipo_averaged(),
    "simpo": simpo(),
    "orpo": orpo(),
    "cpo": cpo(),
    "slic": dpo_relatives.slic(),
    "exo": dpo_relatives.exo(),
    "discopop": dpo_relatives.discopop(),
    "nca": dpo_relatives.nca(beta=0.1),
    "sppo_hard": dpo_relatives.sppo_hard(beta=0.1),
    "apo_zero": apo_zero(),
    "apo_down": apo_down(),
    "bco": bco(beta=0.1),
    "aot": aot(),
    "aot_unpaired": aot_unpaired(),
}
SORTED = ("aot", "aot_unpaired")
LOGP, REF = jnp.asarray(LOGP_BS, jnp.float32), jnp.asarray(REF_BS, jnp.float32)
LENGTH, WEIGHT = jnp.asarray(LENGTH_BS, jnp.int32), jnp.asarray(WEIGHT_B, jnp.float32)


def part_loss(objective, logp_BS, ref_BS, length_BS, labels):
    return preference_loss(objective, logp_BS, length_BS, labels, logp_ref_BS=ref_BS)


PART = jax.jit(jax.value_and_grad(part_loss, argnums=1, has_aux=True))
LABELS = jax.jit(
    lambda objective, logp_BS, ref_BS, length_BS, weight_B: pair_labels(
        objective, length_BS, weight_B=weight_B, logp_BS=logp_BS, logp_ref_BS=ref_BS
    )
)


def run(objective, logp_BS=LOGP, ref_BS=REF, length_BS=LENGTH, weight_B=None):
    """((loss, metrics), gradient_BS) of the whole batch."""
    labels = LABELS(objective, logp_BS, ref_BS, length_BS, weight_B)
    return PART(objective, logp_BS, ref_BS, length_BS, labels)


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


# --- the NLL term --------------------------------------------------------------------------------


def test_trl_2502_nll_counts_the_answer_only():
    """Token NLLs [1, 3] and padding: 2 an answer's mean, 4 its sum; with padding it was 5.5."""
    logp_BS, length_BS = jnp.array([[-4.0, -9.0]]), jnp.array([[2, 3]])
    for reduce, expected in ((nll.averaged, 2.0), (nll.summed, 4.0), (nll.token_mean, 2.0)):
        (_, metrics), _ = run(orpo(reduce=reduce), logp_BS, logp_BS, length_BS)
        np.testing.assert_allclose(metric_values(metrics)["nll_loss"], expected, rtol=1e-6)


def test_nll_reductions_differ_on_ragged_answers():
    """Answers of 1 and 3 tokens, NLL 1 and 9: means 1 and 3; 10 nats over 4 tokens."""
    logp_BS, length_BS = jnp.array([[-1.0, -9.0], [-9.0, -9.0]]), jnp.array([[1, 3], [3, 3]])
    for reduce, expected in ((nll.averaged, 2.0), (nll.summed, 5.0), (nll.token_mean, 2.5)):
        (_, metrics), _ = run(cpo(reduce=reduce), logp_BS, logp_BS, length_BS)
        np.testing.assert_allclose(metric_values(metrics)["nll_loss"], expected, rtol=1e-6)


def test_trl_4763_orpo_whole_loss():
    # mean log-probs −.5 and −1: NLL .5 + .1·.320300
    logp_BS = jnp.array([[-0.5, -1.0]])
    (loss, _), _ = run(orpo(beta=0.1), logp_BS, logp_BS, jnp.ones((1, 2), int))
    np.testing.assert_allclose(loss, 0.532030, atol=1e-6)


def test_trl_simpo_adds_no_nll():
    assert simpo().nll is None and cpo(coef=None).nll is None and cpo().nll is not None


# --- algorithms as values ------------------------------------------------------------------------


def differing(a, b):
    return {name for name in a.__dataclass_fields__ if getattr(a, name) != getattr(b, name)}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("cdpo", {"loss"}),
        ("dpo_averaged", {"loss", "reward"}),
        ("rpo", {"nll"}),
        ("wpo", {"weigh"}),
        ("ipo", {"loss"}),
        ("ipo_averaged", {"loss", "reward"}),
        ("simpo", {"loss", "reward"}),
        ("orpo", {"loss", "reward", "nll"}),
        ("cpo", {"loss", "reward", "nll"}),
        ("slic", {"loss"}),
        ("apo_zero", {"loss"}),
        ("bco", {"loss", "statistic"}),
        ("aot", {"loss", "statistic"}),
    ],
)
def test_each_algorithm_differs_from_dpo_in_these_parts(name, fields):
    assert differing(OBJECTIVES[name], dpo.dpo()) == fields


def test_spin_is_dpo_with_another_name_for_beta():
    assert dpo.spin(lam=0.1) == dpo.dpo(beta=0.1)


def test_needs():
    free = {name for name, objective in OBJECTIVES.items() if not objective.needs_reference}
    assert free == {"simpo", "orpo", "cpo"}
    statistic = {name for name, objective in OBJECTIVES.items() if objective.needs_statistic}
    assert statistic == {"bco", "aot", "aot_unpaired"}


def test_a_sweep_over_beta_compiles_once():
    traced = []

    @jax.jit
    def loss(objective):
        traced.append(objective)
        labels = pair_labels(objective, LENGTH)
        return preference_loss(objective, LOGP, LENGTH, labels, logp_ref_BS=REF)[0]

    first, second = loss(dpo.dpo(beta=0.1)), loss(dpo.dpo(beta=0.2))
    assert len(traced) == 1 and first != second


def test_no_gradient_reaches_labels_or_the_reference():
    def loss(ref_BS, objective):
        labels = pair_labels(objective, LENGTH, logp_BS=LOGP, logp_ref_BS=ref_BS)
        return part_loss(objective, LOGP, ref_BS, LENGTH, labels)[0]

    assert not np.any(jax.grad(loss)(REF, bco()))


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: dpo.dpo(beta=0.0), "loss.beta"),
        (lambda: dpo.dpo(beta=float("nan")), "loss.beta"),
        (lambda: dpo.cdpo(smoothing=0.5), "loss.smoothing"),
        (lambda: dpo.robust_dpo(smoothing=-0.1), "loss.smoothing"),
        (lambda: dpo_relatives.exo(soft=0.0), "loss.soft"),
        (lambda: simpo(margin=-1.0), "loss.margin"),
        (lambda: dpo.dpop(penalty=-1.0), "loss.penalty"),
        (lambda: dpo_relatives.discopop(tau=0.0), "loss.tau"),
        (lambda: dpo.rpo(coef=-1.0), "NLL coef"),
        (lambda: NLL(coef=float("inf")), "NLL coef"),
        (lambda: PreferenceObjective(loss=bind(bco_loss, beta=0.1)), "statistic=reward_shift"),
        (lambda: replace(dpo.dpo(), statistic=bind(reward_shift)), "reads none"),
    ],
)
def test_bad_numbers_and_parts_are_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named):
        make()


def test_missing_inputs_are_named():
    labels = pair_labels(dpo.dpo(), LENGTH)
    with pytest.raises(ConfigError, match="logp_ref_BS"):
        preference_loss(dpo.dpo(), LOGP, LENGTH, labels)
    with pytest.raises(ConfigError, match="statistic reads logp_BS"):
        pair_labels(aot(), LENGTH)
    with pytest.raises(ConfigError, match=r"labels\.statistic"):
        preference_loss(bco(), LOGP, LENGTH, labels, logp_ref_BS=REF)


def test_sorted_losses_refuse_weights():
    for objective in (aot(), aot_unpaired()):
        with pytest.raises(ConfigError, match="compares ranks"):
            pair_labels(objective, LENGTH, weight_B=WEIGHT, logp_BS=LOGP, logp_ref_BS=REF)


def test_a_loss_of_ones_own_is_one_function():
    """A plain function is bound, its reward reported in nats where it has no `beta`."""
    objective = PreferenceObjective(loss=own_loss, reward=preference.log_ratio)
    (loss, metrics), _ = run(objective)
    ratio_BS = LOGP_BS - REF_BS
    np.testing.assert_allclose(loss, np.mean(ratio_BS[:, 1] - ratio_BS[:, 0]), rtol=1e-5)
    chosen = metric_values(metrics)["reward_chosen"]
    np.testing.assert_allclose(chosen, ratio_BS[:, 0].mean(), rtol=1e-5)


def own_loss(logp_BS, logp_ref_BS, length_BS):
    return -preference.lead(logp_BS - logp_ref_BS)
