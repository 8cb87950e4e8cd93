"""Advantages: scalar loops, worked numbers, groups told by id, degenerate groups, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import GROUP_B, MASK_BT, rows_of, sample_scored

from rlhf_jax.advantages import (
    gae,
    gae_adaptive,
    gae_continued,
    greedy_baseline,
    group_centre,
    group_centred,
    group_leave_one_out,
    group_leave_one_out_normalised,
    group_norm,
    group_normalise,
    leave_one_out,
    leave_one_out_norm,
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
    bind(gae_adaptive, gamma=0.9, alpha=0.5),
    bind(reward_to_go, gamma=0.9),
    bind(greedy_baseline),
    bind(group_norm, ddof=1, eps=1e-4),
    bind(group_norm),
    bind(group_centre),
    bind(leave_one_out),
    bind(leave_one_out_norm, ddof=0, eps=1e-3),
]


def group(scores, fn, **numbers):
    """One group of these scores."""
    scores_B = jnp.asarray(scores, jnp.float32)
    return np.asarray(fn(scores_B, jnp.zeros(len(scores), jnp.int32), **numbers))


def scalar(estimator, scored, reward_BT):
    name, kw = estimator.fn.__name__, estimator.kw
    mask_BT, reward_BT = rows_of(scored.mask_BT), rows_of(reward_BT)
    valid_B = [any(v) and any(m) for v, m in zip(rows_of(scored.valid_BC), mask_BT, strict=True)]
    if "gae" in name or name in ("reward_to_go", "greedy_baseline"):
        last_B = rows_of(scored.last_value_B * scored.truncated_B * (name == "gae_continued"))
        value_BT = rows_of(scored.value_BT * ("gae" in name))
        out = []
        for *row, last in zip(reward_BT, value_BT, mask_BT, last_B, strict=True):
            lam = kw.get("lam", 1.0)
            if name == "gae_adaptive":
                lam = max(0.0, 1 - 1 / (kw["alpha"] * max(sum(row[2]), 1)))
            out.append(
                reference.gae_row(*row, last_value=last, gamma=kw.get("gamma", 1.0), lam=lam)
            )
        if name != "greedy_baseline":
            return out
        rows = zip(out, mask_BT, rows_of(scored.baseline_B), valid_B, strict=True)
        return [
            [(x - b) * (m and v) for x, m in zip(r, mask, strict=True)] for r, mask, b, v in rows
        ]
    score_B = [
        sum(r for r, m in zip(*row, strict=True) if m)
        for row in zip(reward_BT, mask_BT, strict=True)
    ]
    numbers = {"ddof": kw.get("ddof", 0), "eps": kw.get("eps", 1e-6)}
    fn = {
        "group_norm": lambda s, i: reference.normalise(s, i, **numbers),
        "group_centre": reference.centre,
        "leave_one_out": reference.without_self,
        "leave_one_out_norm": lambda s, i: reference.against_others(s, i, **numbers),
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


@pytest.mark.parametrize("estimator", ESTIMATORS[4:], ids=repr)
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
    bind(group_leave_one_out_normalised, ddof=0, eps=1e-8),
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
