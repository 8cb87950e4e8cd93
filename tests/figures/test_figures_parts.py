"""The small worlds of the figures against what can be counted by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.figures import dynamic_sampling, ipo_bandit, language, overoptimisation
from experiments.figures import reward_kl_frontier as frontier
from experiments.figures.maj_at_k import maj_at_k, pass_at_k
from experiments.figures.sums import prompts_of, right_steps
from rlhf_jax.types import Rollout


@pytest.fixture(scope="module")
def world():
    """A language whose reference is an untrained decoder."""
    params = language.MODEL.init(jax.random.key(0))
    logp_N = np.asarray(language.exact_logp(params), np.float64)
    utility_N = language.standardised(
        np.random.default_rng(0).normal(size=language.COUNT), 1 / 8**5
    )
    return language.Language(params, logp_N, utility_N, utility_N)


def test_all_responses_are_counted_once(world):
    assert world.p_N.sum() == pytest.approx(1, abs=1e-5)
    tokens = jnp.asarray(language.with_prompt(np.array([0, 9, 8**5 - 1])))
    assert language.number_of(tokens).tolist() == [0, 9, 8**5 - 1]


def test_best_of_n_is_what_order_statistics_say(world):
    score_N = world.utility_N
    kl, mean = language.best_of_n(score_N, world, 1, score_N)
    assert kl == 0
    assert mean == pytest.approx((world.p_N * score_N).sum(), abs=1e-5)
    kl, best = language.best_of_n(score_N, world, 4, score_N)
    assert kl == pytest.approx(0.636294, abs=1e-6)  # log 4 − 3/4
    draws = np.random.default_rng(1).choice(8**5, (40_000, 4), p=world.p_N / world.p_N.sum())
    assert best == pytest.approx(score_N[draws].max(axis=1).mean(), abs=0.02)


def test_the_optimum_is_above_any_other_policy(world):
    reward_N = 1 / (1 + np.exp(-world.utility_N))
    points = frontier.optimum(world, reward_N)
    rows = [dict(method="optimum", kl=kl, reward=reward) for kl, reward in points]
    assert np.diff([r["reward"] for r in rows]).min() > 0
    for n in (2, 16, 256):
        kl, reward = language.best_of_n(reward_N, world, n, reward_N)
        # best-of-n is within a whisker of the optimum and never above it
        assert reward < frontier.frontier(rows, "optimum", np.array([kl]))[0] + 1e-3


def test_gaos_forms_are_recovered():
    d = np.linspace(0.1, 4, 50)
    alpha, beta, r2 = overoptimisation.fit(d**2, d * (0.49 - 0.12 * d))["d(α − βd)"]
    assert (alpha, beta, r2) == pytest.approx((0.49, 0.12, 1.0))
    alpha, beta, r2 = overoptimisation.fit(d**2, d * (0.35 - 0.15 * np.log(d)))["d(α − β log d)"]
    assert (alpha, beta, r2) == pytest.approx((0.35, 0.15, 1.0))


def test_ipos_optimum_is_the_papers():
    np.testing.assert_allclose(ipo_bandit.exact_ipo(0.5), [0.562742, 0.288921, 0.148337], atol=1e-6)
    np.testing.assert_allclose(ipo_bandit.exact_ipo(1.0), [0.448441, 0.321322, 0.230237], atol=1e-6)


def test_running_sums_are_judged_step_by_step():
    prompt = prompts_of(np.array([9275]))
    assert prompt.tolist() == [[9, 2, 7, 5, 10]]
    tokens = jnp.asarray(np.concatenate([prompt, [[9, 1, 7, 3]]], axis=1))
    assert right_steps(tokens)[0].tolist() == [False] * 5 + [True, True, False, True]


def test_pass_and_majority_at_k():
    right_PG = (np.arange(16) < 4)[None]
    assert pass_at_k(right_PG, 4) == pytest.approx(0.728022, abs=1e-6)
    assert pass_at_k((np.arange(16) < 1)[None], 8) == pytest.approx(0.5)
    assert pass_at_k(right_PG, 13) == 1.0
    last_PG = np.array([[3, 3, 3, 5], [5, 5, 5, 3]])
    assert maj_at_k(last_PG, last_PG == 3, 4, 3, 0) == 0.5
    # one sample: the majority is right as often as a sample is
    assert maj_at_k(last_PG, last_PG == 3, 1, 4000, 0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("dynamic", "groups", "samples"), [(True, [1, 3], 8), (False, [0, 1], 4)])
def test_dynamic_sampling_takes_the_first_mixed_groups(dynamic, groups, samples):
    score_B = jnp.asarray([1, 1, 0, 1, 0, 0, 1, 0, 1, 0], jnp.float32)  # groups of two
    nothing_BT = jnp.zeros((10, 1))
    rollout = Rollout(
        **dict.fromkeys(("tokens_BT", "attend_BT", "mask_BT"), nothing_BT),
        **dict.fromkeys(("logp_sampler_BT", "logp_full_BT", "entropy_BT"), nothing_BT),
        group_B=jnp.arange(10) // 2,
        truncated_B=jnp.zeros(10, bool),
    )
    settings = dynamic_sampling.Settings(prompts=2, drawn=5, group=2)
    rows_B, drawn = dynamic_sampling.choose(rollout, score_B, settings, dynamic)
    assert rows_B.tolist() == [2 * g + i for g in groups for i in (0, 1)]
    assert int(drawn) == samples


def test_too_few_mixed_groups_are_filled_up():
    score_B = jnp.asarray([1, 1, 0, 1, 0, 0], jnp.float32)
    nothing_BT = jnp.zeros((6, 1))
    rollout = Rollout(
        **dict.fromkeys(("tokens_BT", "attend_BT", "mask_BT"), nothing_BT),
        **dict.fromkeys(("logp_sampler_BT", "logp_full_BT", "entropy_BT"), nothing_BT),
        group_B=jnp.arange(6) // 2,
        truncated_B=jnp.zeros(6, bool),
    )
    settings = dynamic_sampling.Settings(prompts=2, drawn=3, group=2)
    rows_B, drawn = dynamic_sampling.choose(rollout, score_B, settings, True)
    assert rows_B.tolist() == [2, 3, 0, 1]
    assert int(drawn) == 6
