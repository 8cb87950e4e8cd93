"""Preference objectives as values: the NLL term, what differs, what is needed, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from preference_algorithms import LENGTH, LOGP, OBJECTIVES, REF, WEIGHT, part_loss, run
from preference_reference import LOGP_BS, REF_BS

from rlhf_jax.algorithms import dpo, dpo_relatives
from rlhf_jax.algorithms.aot import aot, aot_unpaired
from rlhf_jax.algorithms.bco import bco
from rlhf_jax.algorithms.cpo import cpo
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.algorithms.preference import PreferenceObjective, pair_labels, preference_loss
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses import nll, preference
from rlhf_jax.losses.nll import NLL
from rlhf_jax.losses.preference_anchored import bco as bco_loss
from rlhf_jax.losses.preference_anchored import reward_shift
from rlhf_jax.ops.totals import metric_values
from rlhf_jax.types import replace

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
