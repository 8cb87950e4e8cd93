"""PolicyObjective as a value: compared, traced, refused when it contradicts itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import sample_batch

from rlhf_jax.advantages import (
    gae,
    group_centre,
    group_norm,
    group_norm_each,
    mixed_group,
    process_norm,
    reward_to_go,
)
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.objective import PolicyObjective, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.algorithms.select import drop_truncated, top_entropy
from rlhf_jax.algorithms.shaping import clip_score, scale_score
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError, ConfigWarning
from rlhf_jax.losses.correction import masked_importance, truncated_importance
from rlhf_jax.losses.kl import KL, adaptive_coef, k1, k2, k3, with_gradient
from rlhf_jax.losses.reweighted import off_policy_masked, sapo
from rlhf_jax.losses.surrogate import clipped, dual_clipped, token_ratio
from rlhf_jax.losses.value import ValueTerm, squared
from rlhf_jax.types import replace


def negated(logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT):
    """A surrogate of one's own."""
    return jnp.where(mask_BT, -advantage_BT * logp_BT, 0)


def test_equal_objectives_compare_equal():
    assert grpo() == grpo() and hash(grpo()) == hash(grpo())
    assert grpo() != grpo(beta=0.1)
    assert "clipped(high=0.28, low=0.2)" in repr(grpo(high=0.28))


def test_plain_functions_are_bound():
    objective = PolicyObjective(
        advantage=group_norm, surrogate=negated, loss_kl=KL(estimator=k3, coef=0.1)
    )
    assert objective.advantage == bind(group_norm) and objective.surrogate == bind(negated)
    assert objective.loss_kl.estimator == bind(k3)
    several = PolicyObjective(
        advantage=group_norm, select=drop_truncated, shape_score=(bind(clip_score, limit=1.0),)
    )
    assert several.select == (bind(drop_truncated),)
    assert several == replace(several, shape_score=bind(clip_score, limit=1.0))


def test_what_an_objective_needs():
    plain = PolicyObjective(advantage=bind(reward_to_go))
    assert remax().needs_greedy and not plain.needs_greedy
    assert replace(plain, advantage=process_norm).needs_steps and not grpo().needs_steps
    assert replace(plain, advantage=group_norm_each).needs_group
    needs = ("needs_reference", "needs_critic", "needs_group", "needs_old")
    assert [getattr(plain, n) for n in needs] == [False] * 4
    assert [getattr(grpo(), n) for n in needs] == [True, False, True, False]
    assert [getattr(grpo(beta=None), n) for n in needs] == [False, False, True, False]
    assert [getattr(ppo(), n) for n in needs] == [True, True, False, False]
    assert replace(plain, keep_group=mixed_group).needs_group
    assert replace(plain, correction=bind(truncated_importance, cap=2.0)).needs_old


def test_numbers_are_traced_and_functions_are_not():
    logp_BT, batch = sample_batch()
    traces = []

    @jax.jit
    def run(objective):
        traces.append(objective)
        return policy_loss(objective, logp_BT, batch, jnp.ones_like(logp_BT))[0]

    values = [float(run(grpo(beta=beta, low=low))) for beta, low in [(0.1, 0.2), (0.2, 0.3)]]
    assert len(traces) == 1 and values[0] != values[1]
    run(replace(grpo(), surrogate=negated))
    assert len(traces) == 2


def test_a_coefficient_can_be_swept_by_vmap():
    logp_BT, batch = sample_batch()

    def run(beta):
        objective = replace(grpo(), loss_kl=KL(estimator=bind(k3), coef=beta))
        return policy_loss(objective, logp_BT, batch, jnp.ones_like(logp_BT))[0]

    swept = jax.vmap(run)(jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(swept[2] - swept[1], swept[1] - swept[0], rtol=1e-4)


def test_rebuilds_with_any_leaves():
    """Records are rebuilt with tracers, shapes and sentinels: no check may trip over them."""
    objective = ppo()
    assert jax.tree.map(lambda x: x, objective) == objective
    assert len(jax.tree.leaves(jax.tree.map(lambda _: object(), objective))) == 7
    shapes = jax.eval_shape(lambda o: o, objective)
    assert isinstance(shapes.surrogate.kw["low"], jax.ShapeDtypeStruct)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("part", "where"),
    [
        ({"surrogate": bind(clipped, low=-0.1, high=0.2)}, "surrogate.low"),
        ({"surrogate": bind(clipped, low=0.2, high=NAN)}, "surrogate.high"),
        ({"surrogate": bind(clipped, low=INF, high=0.2)}, "surrogate.low"),
        ({"surrogate": bind(dual_clipped, low=0.2, high=0.2, cap=0.0)}, "surrogate.cap"),
        ({"advantage": bind(reward_to_go, gamma=1.1)}, "advantage.gamma"),
        ({"advantage": bind(group_norm, ddof=2)}, "advantage.ddof"),
        ({"entropy": INF}, "entropy"),
        ({"correction": bind(truncated_importance, cap=-2.0)}, "correction.cap"),
        ({"correction": bind(masked_importance, least=2.0, most=3.0)}, "correction.least"),
        ({"surrogate": bind(sapo, tau_negative=0.0)}, "surrogate.tau_negative"),
        (
            {"surrogate": bind(off_policy_masked, inner=bind(clipped, low=-1.0, high=0.0))},
            "surrogate.inner.low",
        ),
        ({"select": (bind(top_entropy, share=1.5),)}, "select.share"),
        (
            {"shape_score": (bind(clip_score, limit=1.0), bind(scale_score, gain=-1.0))},
            "shape_score.gain",
        ),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(part, where):
    with pytest.raises(ConfigError, match=where):
        PolicyObjective(**{"advantage": bind(group_norm), **part})


def test_an_own_functions_numbers_keep_their_own_meaning():
    bound = bind(scaled, low=-3.0)
    assert PolicyObjective(advantage=bound).advantage == bound
    with pytest.raises(ConfigError, match=r"advantage\.low"):
        PolicyObjective(advantage=bind(scaled, low=NAN))


def scaled(scored, reward_BT, *, low):
    return reward_BT * low


VALUE = ValueTerm(loss=squared, coef=0.1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {
                "loss_kl": KL(
                    estimator=k2,
                    coef=0.1,
                    controller=bind(adaptive_coef, target=6.0, horizon=1e4, batch=8),
                )
            },
            "controller",
        ),
        ({"reward_kl": KL(estimator=k1, coef=0.1, ratio=token_ratio)}, "reward_kl takes no ratio"),
        ({"advantage": process_norm, "reward_kl": KL(estimator=k1, coef=0.1)}, "own scores"),
        ({"advantage": group_norm_each, "shape_score": bind(clip_score, limit=1.0)}, "own scores"),
        ({"advantage": remax().advantage, "value": VALUE}, "critic"),
        ({"advantage": bind(gae)}, "critic"),
        ({"advantage": bind(group_centre), "value": VALUE}, "critic"),
        ({"advantage": bind(reward_to_go), "value": VALUE}, "critic"),
        ({"advantage": bind(scaled, low=1.0), "value": replace(VALUE, lam=1.0)}, "value.lam"),
    ],
)
def test_parts_that_contradict_each_other_are_refused(parts, message):
    with pytest.raises(ConfigError, match=message):
        PolicyObjective(**{"advantage": bind(group_norm), **parts})


# --- a KL estimator in the wrong place -----------------------------------------------------------

K2_TAUGHT = bind(with_gradient, value=k1, gradient=k2)
K1_TAUGHT = bind(with_gradient, value=k3, gradient=k1)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"loss_kl": KL(estimator=k1, coef=0.1)}, "loss_kl=k1 .* k2 or k3"),
        ({"loss_kl": KL(estimator=K1_TAUGHT, coef=0.1)}, "loss_kl=k1"),
        ({"reward_kl": KL(estimator=k2, coef=0.1)}, "reward_kl=k2 .* k1 in the reward"),
        ({"reward_kl": KL(estimator=k3, coef=0.1)}, "reward_kl=k3"),
        ({"reward_kl": KL(estimator=K1_TAUGHT, coef=0.1)}, "reward_kl=k3"),
    ],
)
def test_a_misplaced_estimator_warns_where_it_is_written(part, message):
    with pytest.warns(ConfigWarning, match=message) as caught:
        objective = PolicyObjective(advantage=bind(group_norm), **part)
    assert caught[0].filename == __file__
    # and not again when jax takes it apart and puts it together with traced numbers
    jax.jit(lambda o: o)(objective)
    jax.eval_shape(lambda o: o, objective)


@pytest.mark.parametrize(
    "part",
    [
        {"loss_kl": KL(estimator=k2, coef=0.1)},
        {"loss_kl": KL(estimator=k3, coef=0.1)},
        {"loss_kl": KL(estimator=K2_TAUGHT, coef=0.1)},
        {"loss_kl": KL(estimator=k1, coef=0.1, ratio=token_ratio)},
        {"reward_kl": KL(estimator=k1, coef=0.1)},
        {"reward_kl": KL(estimator=K2_TAUGHT, coef=0.1)},
        {"reward_kl": KL(estimator=k2, coef=jnp.float32(0.1))},
    ],
)
def test_a_right_place_is_silent(part):
    """Warnings are errors here; the last has the traced coefficient of a running controller."""
    PolicyObjective(advantage=bind(group_norm), **part)
