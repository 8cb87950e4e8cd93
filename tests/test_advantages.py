"""Advantages: scalar loops, worked numbers, groups told by id, degenerate groups, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import GROUP_B, MASK_BT, rows_of, sample_scored

from rlhf_jax.advantages import (
    discounted_returns,
    gae,
    gae_advantages,
    gae_continued,
    group_centre,
    group_centred,
    group_leave_one_out,
    group_norm,
    group_normalise,
    leave_one_out,
    mixed_group,
    reward_to_go,
)
from rlhf_jax.bind import bind
from rlhf_jax.types import replace

REWARD_BT = jnp.asarray(
    np.where(MASK_BT, np.random.default_rng(1).normal(size=MASK_BT.shape), 0), jnp.float32
)
ESTIMATORS = [
    bind(gae, gamma=0.9, lam=0.8),
    bind(gae_continued, gamma=0.9, lam=0.8),
    bind(reward_to_go, gamma=0.9),
    bind(group_norm, ddof=1, eps=1e-4),
    bind(group_norm),
    bind(group_centre),
    bind(leave_one_out),
]


def group(scores, fn, **numbers):
    """One group of these scores."""
    scores_B = jnp.asarray(scores, jnp.float32)
    return np.asarray(fn(scores_B, jnp.zeros(len(scores), jnp.int32), **numbers))


def scalar(estimator, scored, reward_BT):
    name, kw = estimator.fn.__name__, estimator.kw
    mask_BT, reward_BT = rows_of(scored.mask_BT), rows_of(reward_BT)
    if name in ("gae", "gae_continued", "reward_to_go"):
        last_B = rows_of(scored.last_value_B * scored.truncated_B * (name == "gae_continued"))
        value_BT = rows_of(scored.value_BT * (name != "reward_to_go"))
        numbers = {"gamma": kw["gamma"], "lam": kw.get("lam", 1.0)}
        columns = zip(reward_BT, value_BT, mask_BT, last_B, strict=True)
        return [reference.gae_row(*row, last_value=last, **numbers) for *row, last in columns]
    score_B = [
        sum(r for r, m in zip(*row, strict=True) if m)
        for row in zip(reward_BT, mask_BT, strict=True)
    ]
    valid_B = [any(v) and any(m) for v, m in zip(rows_of(scored.valid_BC), mask_BT, strict=True)]
    numbers = {"ddof": kw.get("ddof", 0), "eps": kw.get("eps", 1e-6)}
    fn = {
        "group_norm": lambda s, i: reference.normalise(s, i, **numbers),
        "group_centre": reference.centre,
        "leave_one_out": reference.without_self,
    }[name]
    by_row_B = reference.group_scores(score_B, rows_of(GROUP_B), valid_B, fn)
    return [[a if m else 0.0 for m in row] for a, row in zip(by_row_B, mask_BT, strict=True)]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_equals_the_loop(estimator, jit):
    scored = sample_scored()
    fn = jax.jit(lambda e, *args: e(*args)) if jit else lambda e, *args: e(*args)
    expected_BT = scalar(estimator, scored, REWARD_BT)
    np.testing.assert_allclose(fn(estimator, scored, REWARD_BT), expected_BT, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_junk_in_the_padding_changes_nothing(estimator):
    fn = jax.jit(lambda scored, reward_BT: estimator(scored, reward_BT))
    junk_BT = jnp.where(MASK_BT, REWARD_BT, jnp.nan)
    advantage_BT = np.asarray(fn(sample_scored(fill=np.nan), junk_BT))
    np.testing.assert_array_equal(fn(sample_scored(), REWARD_BT), advantage_BT)
    assert not np.any(advantage_BT[~MASK_BT])


@pytest.mark.parametrize("estimator", ESTIMATORS[3:], ids=repr)
def test_order_of_rows_does_not_matter(estimator):
    order = np.random.default_rng(0).permutation(8)
    scored = sample_scored()
    moved = jax.tree.map(lambda x: x[order], scored)
    expected_BT = np.asarray(estimator(scored, REWARD_BT))[order]
    np.testing.assert_allclose(estimator(moved, REWARD_BT[order]), expected_BT, atol=1e-6)


# --- groups ------------------------------------------------------------------------------------

EIGHT = [1, 0, 0, 1, 1, 0, 0, 0]  # mean .375, population std .484123, sample std .517549


@pytest.mark.parametrize(
    ("fn", "numbers", "passed", "failed"),
    [
        (group_normalise, {"ddof": 0, "eps": 0.0}, 1.290994, -0.774597),
        (group_normalise, {"ddof": 1, "eps": 0.0}, 1.207615, -0.724569),
        (group_normalise, {"ddof": 1, "eps": 1e-4}, 1.207381, -0.724429),
        (group_normalise, {"ddof": 1, "eps": 1e-6}, 1.207612, -0.724567),
        (group_centred, {}, 0.625, -0.375),
        (group_leave_one_out, {}, 0.714286, -0.428571),
    ],
)
def test_eight_rewards_golden(fn, numbers, passed, failed):
    expected = np.where(np.array(EIGHT) == 1, passed, failed)
    np.testing.assert_allclose(group(EIGHT, fn, **numbers), expected, atol=2e-6)


def test_default_is_the_population_deviation():
    scored = replace(
        sample_scored(),
        mask_BT=jnp.ones((8, 1), bool),
        valid_BC=jnp.ones((8, 1), bool),
        group_B=jnp.zeros(8, jnp.int32),
    )
    advantage_BT = np.asarray(group_norm(scored, jnp.asarray(EIGHT, jnp.float32)[:, None]))
    np.testing.assert_allclose(advantage_BT[:2, 0], [1.2910, -0.7746], atol=5e-5)
    np.testing.assert_allclose(np.mean(advantage_BT**2), 1.0, rtol=1e-5)  # for every group size


@pytest.mark.parametrize(
    ("scores", "numbers", "expected"),
    [
        ([0, 0, 1, 1], {"ddof": 1, "eps": 1e-4}, [-0.865875] * 2 + [0.865875] * 2),
        ([0, 0, 1, 1], {"ddof": 1, "eps": 1e-6}, [-0.866024] * 2 + [0.866024] * 2),
        ([0, 0, 1, 1], {"ddof": 0, "eps": 0.0}, [-1, -1, 1, 1]),
        # near-equal scores have z-scores as large as any
        ([0.80, 0.79, 0.81, 0.80], {"ddof": 0, "eps": 0.0}, [0, -1.414214, 1.414214, 0]),
        ([1] * 15 + [0], {"ddof": 0, "eps": 0.0}, [0.258199] * 15 + [-3.872983]),
        # eps on the deviation, not a floor on the variance (which would give ±.005)
        ([1, 1.00001], {"ddof": 1, "eps": 1e-6}, [-0.6195, 0.6195]),  # float32: 1.0000100
    ],
)
def test_normalised_group_golden(scores, numbers, expected):
    np.testing.assert_allclose(group(scores, group_normalise, **numbers), expected, atol=2e-4)


def test_leave_one_out_golden():
    # baselines [11/3, 10/3, 3, 2]
    np.testing.assert_allclose(
        group([1, 2, 3, 6], group_leave_one_out), [-2.666667, -1.333333, 0, 4], atol=1e-5
    )
    np.testing.assert_allclose(
        group([0.2, 1.0, 0.5, 0.1], group_leave_one_out),
        [-0.333333, 0.733333, 0.066667, -0.466667],
        atol=1e-6,
    )
    # the others of the third are all equal: their spread is 0 and must not be divided by
    np.testing.assert_allclose(group([0, 0, 1], group_leave_one_out), [-0.5, -0.5, 1], atol=1e-6)


ALL_GROUP_FUNCTIONS = [
    bind(group_normalise, ddof=0, eps=0.0),
    bind(group_normalise, ddof=1, eps=0.0),
    bind(group_normalise, ddof=1, eps=1e-8),
    bind(group_centred),
    bind(group_leave_one_out),
]


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("fn", ALL_GROUP_FUNCTIONS, ids=repr)
@pytest.mark.parametrize("scores", [[0.7], [0.7] * 8, [0.1] * 3, [1.0] * 4, [0.1 + 0.2] * 8])
def test_a_group_without_differences_is_exactly_zero(scores, fn, jit):
    """A float32 mean of eight .7 is not .7; over a tiny deviation the residue would be near 1."""
    score_B, group_B = jnp.asarray(scores, jnp.float32), jnp.zeros(len(scores), jnp.int32)
    advantage_B = (jax.jit(lambda *args: fn(*args)) if jit else fn)(score_B, group_B)
    assert not np.any(advantage_B) and np.all(np.isfinite(advantage_B))


def test_groups_are_told_by_id():
    # prompts [0, 1, 0, 1]: reshaping neighbours into pairs would give ∓5
    group_B = jnp.array([0, 1, 0, 1])
    centred_B = group_centred(jnp.array([0.0, 10.0, 1.0, 11.0]), group_B)
    np.testing.assert_allclose(centred_B, [-0.5, -0.5, 0.5, 0.5])


def test_rows_that_cannot_be_scored_are_left_out():
    # totals [2.5, .5] and a row with no score: mean 1.5 of two, not 1 of three
    valid_B = jnp.array([True, True, False])
    advantage_B = group([2.5, 0.5, np.nan], group_normalise, ddof=0, eps=0.0, valid_B=valid_B)
    np.testing.assert_allclose(advantage_B, [1, -1, 0], atol=1e-6)


def test_mixed_groups():
    score_B = jnp.array([1.0, 0.0, 1.0, 1.0, 5.0, 2.0])
    group_B = jnp.array([0, 0, 1, 1, 2, 2])
    np.testing.assert_array_equal(mixed_group(score_B, group_B), [1, 1, 0, 0, 1, 1])
    # the row that made the last group mixed does not count
    valid_B = jnp.array([1, 1, 1, 1, 1, 0], bool)
    np.testing.assert_array_equal(mixed_group(score_B, group_B, valid_B), [1, 1, 0, 0, 0, 0])


def test_leave_one_out_is_the_centred_score_times_k_over_k_minus_one():
    scores = np.random.default_rng(0).normal(size=5)
    np.testing.assert_allclose(
        group(scores, group_leave_one_out), 5 / 4 * group(scores, group_centred), rtol=1e-5
    )


def test_two_samples_normalise_to_one():
    np.testing.assert_allclose(group([3, 7], group_normalise, ddof=0, eps=0.0), [-1, 1], rtol=1e-6)


# --- credit over time --------------------------------------------------------------------------


def advantages(reward_T, value_T, mask_T=None, last=None, **numbers):
    mask_T = np.ones(len(reward_T), bool) if mask_T is None else np.array(mask_T, bool)
    last_B = None if last is None else jnp.array([last])
    args = (jnp.array([reward_T]), jnp.array([value_T]), jnp.asarray(mask_T)[None])
    return np.asarray(gae_advantages(*args, last_value_B=last_B, **numbers))[0]


REWARD_T, VALUE_T = [-0.02, 0.01, -0.03, 1.0], [0.5, 0.6, 0.55, 0.7]


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 0.95, [0.407512, 0.344750, 0.405000, 0.300000]),
        (1.0, 1.0, [0.46, 0.38, 0.42, 0.3]),  # returns [.96, .98, .97, 1] − V
        (0.99, 0.95, [0.380733, 0.326139, 0.395150, 0.300000]),
        (1.0, 0.0, [0.08, -0.04, 0.12, 0.3]),  # δ_t
    ],
)
def test_gae_golden(gamma, lam, expected):
    advantage_T = advantages(REWARD_T, VALUE_T, gamma=gamma, lam=lam)
    np.testing.assert_allclose(advantage_T, expected, atol=2e-6)


def test_gae_token_pipeline_golden():
    advantage_T = advantages([-0.02, -0.04, 0.85], [0.2, 0.3, 0.5], gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantage_T, [0.547875, 0.4925, 0.35], atol=1e-6)
    target_T = advantage_T + np.array([0.2, 0.3, 0.5])
    np.testing.assert_allclose(target_T, [0.747875, 0.7925, 0.85], atol=1e-6)


def test_gae_skips_observation_tokens():
    # the same as rewards [0, 1], values [.5, .7]; the 99 is a tool's token
    advantage_T = advantages([0.0, 0.0, 1.0], [0.5, 99.0, 0.7], [1, 0, 1], gamma=1.0, lam=0.95)
    np.testing.assert_allclose(advantage_T, [0.485, 0, 0.3], atol=1e-6)
    # and takes no discount for them
    skipped_T = advantages([0.0, 0.0, 1.0], [0.5, 99.0, 0.7], [1, 0, 1], gamma=0.5, lam=0.5)
    close_T = advantages([0.0, 1.0], [0.5, 0.7], gamma=0.5, lam=0.5)
    np.testing.assert_allclose(skipped_T[[0, 2]], close_T, atol=1e-6)


def test_gae_does_not_bootstrap_from_the_padding():
    short_T = advantages(REWARD_T, VALUE_T, gamma=1.0, lam=0.95)
    padded_T = advantages([*REWARD_T, 5.0], [*VALUE_T, 0.9], [1, 1, 1, 1, 0], gamma=1.0, lam=0.95)
    np.testing.assert_array_equal(padded_T, [*short_T, 0])


def test_only_gae_continued_bootstraps_and_only_rows_that_were_cut_short():
    # with V(end) = .4 the last δ is 1 + .4 − .7
    cut_T = advantages(REWARD_T, VALUE_T, last=0.4, gamma=1.0, lam=0.0)
    np.testing.assert_allclose(cut_T, [0.08, -0.04, 0.12, 0.7], atol=1e-6)
    scored = sample_scored()
    differs_BT = gae(scored, REWARD_BT) != gae_continued(scored, REWARD_BT)
    np.testing.assert_array_equal(np.any(differs_BT, axis=1), scored.truncated_B)


def test_returns_golden():
    # k1 [.1, .2, .3], β .5, outcome 1: rewards [−.05, −.10, .85]
    reward_BT = jnp.array([[-0.05, -0.10, 0.85]])
    returns_BT = discounted_returns(reward_BT, jnp.ones((1, 3), bool), gamma=1.0)
    np.testing.assert_allclose(returns_BT, [[0.70, 0.75, 0.85]], atol=1e-6)


def test_critic_target_is_the_mixture_of_n_step_returns():
    lam, horizon = 0.95, 4
    target_T = advantages(REWARD_T, VALUE_T, gamma=1.0, lam=lam) + VALUE_T
    for t in range(horizon):
        left = horizon - t
        n_step = [
            sum(REWARD_T[t : t + n]) + (VALUE_T[t + n] if n < left else 0.0)
            for n in range(1, left + 1)
        ]
        weights = [(1 - lam) * lam ** (n - 1) for n in range(1, left)] + [lam ** (left - 1)]
        np.testing.assert_allclose(target_T[t], np.dot(weights, n_step), rtol=1e-5)
