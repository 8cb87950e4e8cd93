"""Whole preference algorithms on single completions: loop, cuts, devices, metrics, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from preference_reference import DESIRABLE_B, LOGP_BS, REF_BS

from rlhf_jax.algorithms.apo import apo_zero_unpaired
from rlhf_jax.algorithms.bco import bco_unpaired
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.preference_unpaired import (
    UnpairedObjective,
    unpaired_labels,
    unpaired_loss,
)
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses import preference_unpaired as losses
from rlhf_jax.ops.totals import Total, add_metrics, metric_values
from rlhf_jax.types import take_rows

OBJECTIVES = {
    "kto": kto(desirable_weight=1.33),
    "bco_unpaired": bco_unpaired(beta=0.1),
    "apo_zero_unpaired": apo_zero_unpaired(),
}
LOGP, REF = jnp.asarray(LOGP_BS[:, 0], jnp.float32), jnp.asarray(REF_BS[:, 0], jnp.float32)
# Mismatched pairs: the other sides. Shifted, so that their mean log-ratio is above 0.
OTHER_LOGP = jnp.asarray(LOGP_BS[:, 1], jnp.float32)
OTHER_REF = jnp.asarray(REF_BS[:, 1] - 1.0, jnp.float32)
DESIRABLE = jnp.asarray(DESIRABLE_B)
INPUTS = (LOGP, REF, DESIRABLE)


@jax.jit
def labels_of(objective, logp_B, ref_B, desirable_B, other_B, other_ref_B):
    return unpaired_labels(
        objective,
        desirable_B,
        logp_B=logp_B,
        logp_ref_B=ref_B,
        logp_other_B=other_B,
        logp_ref_other_B=other_ref_B,
    )


PART = jax.jit(jax.value_and_grad(unpaired_loss, argnums=1, has_aux=True))


def statistic(name):
    if name == "kto":
        return max(0.0, float(np.mean(LOGP_BS[:, 1] - REF_BS[:, 1] + 1.0)))
    ratio_B = LOGP_BS[:, 0] - REF_BS[:, 0]
    return 0.5 * (ratio_B[DESIRABLE_B].mean() + ratio_B[~DESIRABLE_B].mean())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_the_loop(name):
    objective = OBJECTIVES[name]
    labels = labels_of(objective, *INPUTS, OTHER_LOGP, OTHER_REF)
    (loss, metrics), _ = PART(objective, *INPUTS, labels)
    rows = zip(LOGP_BS[:, 0], REF_BS[:, 0], DESIRABLE_B, strict=True)
    fn = getattr(scalar, name)
    expected = np.mean([fn(*row, statistic(name), **objective.loss.kw) for row in rows])
    np.testing.assert_allclose(loss, expected, rtol=2e-5)
    if name != "apo_zero_unpaired":
        values = metric_values(metrics)
        np.testing.assert_allclose(values["statistic"], statistic(name), rtol=1e-5)
        assert abs(statistic(name)) > 0.01


@pytest.mark.parametrize("name", OBJECTIVES)
def test_any_cut_gives_the_same_loss_gradient_and_metrics(name):
    """z₀ and δ are of the whole batch; a part may hold one class only."""
    objective = OBJECTIVES[name]
    labels = labels_of(objective, *INPUTS, OTHER_LOGP, OTHER_REF)
    (loss, metrics), gradient_B = PART(objective, *INPUTS, labels)
    parts = [PART(objective, *take_rows((*INPUTS, labels), slice(b, b + 1))) for b in range(8)]
    np.testing.assert_allclose(sum(p[0][0] for p in parts), loss, rtol=1e-5)
    np.testing.assert_allclose(np.concatenate([p[1] for p in parts]), gradient_B, rtol=1e-5)
    whole = metric_values(metrics)
    added = metric_values(functools.reduce(add_metrics, [p[0][1] for p in parts]))
    for key in whole:
        np.testing.assert_allclose(added[key], whole[key], rtol=1e-5, atol=1e-7)


def test_eight_devices_equal_one():
    @jax.jit
    def gradients(logp_B, ref_B, desirable_B, other_B, other_ref_B):
        def loss(logp_B, objective):
            labels = labels_of(objective, logp_B, ref_B, desirable_B, other_B, other_ref_B)
            return unpaired_loss(objective, logp_B, ref_B, desirable_B, labels)[0]

        return {name: jax.grad(loss)(logp_B, fn) for name, fn in OBJECTIVES.items()}

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    arrays = (*INPUTS, OTHER_LOGP, OTHER_REF)
    one = gradients(*arrays)
    eight = gradients(*jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("data"))))
    for name in OBJECTIVES:
        np.testing.assert_allclose(one[name], eight[name], rtol=1e-5)


def test_the_statistic_has_no_gradient():
    """KTO's gradient with respect to the mismatched pairs, and BCO's through δ, are cut."""

    def loss(other_B):
        labels = labels_of(OBJECTIVES["kto"], *INPUTS, other_B, OTHER_REF)
        return unpaired_loss(OBJECTIVES["kto"], *INPUTS, labels)[0]

    assert loss(OTHER_LOGP) != loss(OTHER_LOGP + 0.5)
    assert not np.any(jax.grad(loss)(OTHER_LOGP))


def test_trl_1386_metrics_of_an_absent_class_are_absent():
    """A batch of desirable rows only: the other class counts nothing, and nothing is NaN."""
    labels = labels_of(OBJECTIVES["kto"], LOGP, REF, DESIRABLE | True, OTHER_LOGP, OTHER_REF)
    (loss, metrics), gradient_B = PART(OBJECTIVES["kto"], LOGP, REF, DESIRABLE | True, labels)
    assert np.isfinite(loss) and np.all(np.isfinite(gradient_B))
    for name in ("reward_undesirable", "logp_undesirable"):
        assert isinstance(metrics[name], Total) and metrics[name].count == 0
        assert np.isfinite(metrics[name].value())
    assert metrics["reward_desirable"].count == 8


def test_trl_1499_kto_refuses_a_batch_of_one():
    one = take_rows((*INPUTS, OTHER_LOGP, OTHER_REF), slice(0, 1))
    with pytest.raises(ConfigError, match="2 or more"):
        labels_of(OBJECTIVES["kto"], *one)
    for name in ("bco_unpaired", "apo_zero_unpaired"):  # nothing to mismatch
        labels_of(OBJECTIVES[name], *one)


def test_needs():
    needs = {n: (o.needs_statistic, o.needs_other) for n, o in OBJECTIVES.items()}
    assert needs == {
        "kto": (True, True),
        "bco_unpaired": (True, False),
        "apo_zero_unpaired": (False, False),
    }


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: kto(beta=0.0), "loss.beta"),
        (lambda: kto(desirable_weight=-1.0), "loss.desirable_weight"),
        (lambda: kto(undesirable_weight=float("inf")), "loss.undesirable_weight"),
        (lambda: UnpairedObjective(loss=bind(losses.kto, beta=0.1)), "statistic=mismatched_kl"),
        (lambda: unpaired_labels(kto(), DESIRABLE), "logp_other_B and logp_ref_other_B"),
        (lambda: unpaired_labels(bco_unpaired(), DESIRABLE, logp_B=LOGP), "logp_B and logp_ref_B"),
        (
            lambda: unpaired_loss(kto(), *INPUTS, unpaired_labels(apo_zero_unpaired(), DESIRABLE)),
            "labels.statistic_B",
        ),
    ],
)
def test_bad_numbers_and_missing_parts_are_refused_by_name(make, named):
    with pytest.raises(ConfigError, match=named):
        make()
