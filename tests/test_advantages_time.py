"""Credit over time: GAE golden numbers, λ-returns, observation gaps, ends, process rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import GROUP_B, MASK_BT, rows_of, sample_scored

from rlhf_jax.advantages import (
    discounted_returns,
    gae,
    gae_adaptive,
    gae_advantages,
    gae_continued,
    greedy_baseline,
    group_norm,
    group_norm_each,
    process_norm,
)
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import Scored, replace

REWARD_BT = jnp.asarray(
    np.where(MASK_BT, np.random.default_rng(1).normal(size=MASK_BT.shape), 0), jnp.float32
)


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


def test_at_lambda_one_the_target_is_the_monte_carlo_return():
    """Whatever the values say: V cancels. Rows with gaps and of every length."""
    scored = sample_scored()
    args = (REWARD_BT, scored.value_BT, scored.mask_BT)
    for gamma in (1.0, 0.9):
        target_BT = gae_advantages(*args, gamma=gamma, lam=1.0) + scored.value_BT
        returns_BT = discounted_returns(REWARD_BT, scored.mask_BT, gamma=gamma)
        np.testing.assert_allclose(np.where(MASK_BT, target_BT, 0), returns_BT, atol=1e-5)


@pytest.mark.parametrize(
    ("length", "lam"), [(20, 0.0), (10, 0.0), (40, 0.5), (100, 0.8), (1000, 0.98), (20000, 0.999)]
)
def test_length_adaptive_lambda_golden(length, lam):
    """λ = 1 − 1/(.05·l), at 0 for l ≤ 20: read off as Â of a value of 1 one step before the end."""
    mask_BT = jnp.ones((1, length), bool)
    value_BT = jnp.zeros((1, length)).at[0, -1].set(1.0)
    scored = one_row(mask_BT, value_BT=value_BT)
    advantage_BT = jax.jit(gae_adaptive)(scored, jnp.zeros((1, length)))
    # δ = [.., 0, 1, −1]: Â at the last token −1, one before 1 − λ
    np.testing.assert_allclose(advantage_BT[0, -2:], [1 - lam, -1.0], atol=1e-6)


def test_a_fixed_lambda_loses_a_late_reward_and_one_by_length_does_not():
    # .95^99·1: what is left at the first of 100 tokens (.95^100 = .005921 one before)
    length = 100
    mask_BT, zero_BT = jnp.ones((1, length), bool), jnp.zeros((1, length))
    scored, reward_BT = one_row(mask_BT, value_BT=zero_BT), zero_BT.at[0, -1].set(1.0)
    np.testing.assert_allclose(gae(scored, reward_BT)[0, 0], 0.95**99, rtol=1e-4)
    np.testing.assert_allclose(0.95**100, 0.005921, atol=1e-6)
    assert gae_adaptive(scored, reward_BT, lam=1.0)[0, 0] == 1.0


def test_decoupled_targets_golden():
    """Rewards [−.02, −.04, .85], V [.2, .3, .5], l = 3 ≤ 20: Â = δ; targets are the returns."""
    scored = one_row(jnp.ones((1, 3), bool), value_BT=jnp.array([[0.2, 0.3, 0.5]]))
    reward_BT = jnp.array([[-0.02, -0.04, 0.85]])
    np.testing.assert_allclose(gae_adaptive(scored, reward_BT), [[0.08, 0.16, 0.35]], atol=1e-6)
    target_BT = gae_adaptive(scored, reward_BT, lam=1.0) + scored.value_BT
    np.testing.assert_allclose(target_BT, [[0.79, 0.81, 0.85]], atol=1e-6)


def one_row(mask_BT, **fields):
    rows = mask_BT.shape[0]
    return Scored(
        score_BC=fields.pop("score_BC", jnp.zeros((rows, 1))),
        valid_BC=fields.pop("valid_BC", jnp.ones((rows, 1), bool)),
        group_B=jnp.zeros(rows, jnp.int32),
        mask_BT=mask_BT,
        truncated_B=jnp.zeros(rows, bool),
        **fields,
    )


# --- a greedy baseline -------------------------------------------------------------------------


def test_greedy_baseline_golden():
    # scores [.2, 1, .5, .1], greedy .6
    reward_BT = jnp.array([[0.2], [1.0], [0.5], [0.1]])
    scored = one_row(jnp.ones((4, 1), bool), baseline_B=jnp.full(4, 0.6))
    advantage_BT = greedy_baseline(scored, reward_BT)
    np.testing.assert_allclose(advantage_BT[:, 0], [-0.4, 0.4, -0.1, -0.5], atol=1e-6)


@pytest.mark.parametrize(
    ("estimator", "field"),
    [
        (greedy_baseline, "baseline_B"),
        (process_norm, "step_score_BT"),
        (gae_continued, "last_value_B"),
    ],
)
def test_a_missing_input_is_named(estimator, field):
    with pytest.raises(ConfigError, match=field):
        estimator(replace(sample_scored(), **{field: None}), REWARD_BT)


# --- process supervision -----------------------------------------------------------------------


def with_steps(fill=0.0):
    """`sample_scored` with up to three steps a row; row 7's second lies on no counted token."""
    draw = np.random.default_rng(7)
    end_BT = np.zeros(MASK_BT.shape, bool)
    for b, columns in enumerate([[3, 6], [2, 5], [3], [2], [], [2, 3, 4], [4], [3, 1]]):
        end_BT[b, columns] = True
    step_BT = np.where(end_BT & MASK_BT, draw.normal(size=MASK_BT.shape), fill)
    return replace(
        sample_scored(fill=fill),
        step_end_BT=jnp.asarray(end_BT),
        step_score_BT=jnp.asarray(step_BT, jnp.float32),
    )


def process_loop(scored, ddof, eps):
    step_BT, end_BT = rows_of(scored.step_score_BT), rows_of(scored.step_end_BT & scored.mask_BT)
    places = [(b, t) for b, row in enumerate(end_BT) for t, end in enumerate(row) if end]
    groups = rows_of(GROUP_B)
    out = [[0.0] * len(row) for row in end_BT]
    for b, row in enumerate(rows_of(scored.mask_BT)):
        group = [p for p in places if groups[p[0]] == groups[b]]
        scores = [step_BT[i][j] for i, j in group]
        for t, m in enumerate(row):
            later = [group.index(p) for p in group if p[0] == b and p[1] >= t]
            if m and len(scores) > 1:
                out[b][t] = sum(reference.normalise(scores, i, ddof=ddof, eps=eps) for i in later)
    return out


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("ddof", [0, 1])
def test_process_supervision_equals_the_loop(ddof, jit):
    estimator = bind(process_norm, ddof=ddof, eps=1e-4)
    fn = jax.jit(lambda *args: estimator(*args)) if jit else estimator
    expected_BT = process_loop(with_steps(), ddof, 1e-4)
    np.testing.assert_allclose(fn(with_steps(), REWARD_BT), expected_BT, rtol=1e-4, atol=1e-5)
    junk_BT = fn(with_steps(fill=np.nan), REWARD_BT)
    np.testing.assert_array_equal(junk_BT, fn(with_steps(), REWARD_BT))


def test_process_supervision_golden():
    """Steps [.2, .8, 1] ending at 2, 5, 7 and [.1, .3] ending at 3, 6: z over all five (ddof 0)."""
    end_BT = np.zeros((2, 8), bool)
    end_BT[0, [2, 5, 7]] = end_BT[1, [3, 6]] = True
    step_BT = np.zeros((2, 8), np.float32)
    step_BT[0, [2, 5, 7]], step_BT[1, [3, 6]] = [0.2, 0.8, 1.0], [0.1, 0.3]
    mask_BT = np.ones((2, 8), bool)
    mask_BT[1, 7] = False
    scored = one_row(
        jnp.asarray(mask_BT), step_end_BT=jnp.asarray(end_BT), step_score_BT=jnp.asarray(step_BT)
    )
    advantage_BT = process_norm(scored, jnp.zeros((2, 8)), eps=0.0)
    expected_BT = [
        [1.580131] * 3 + [2.370197] * 3 + [1.467265] * 2,
        [-1.580131] * 4 + [-0.507899] * 3 + [0.0],
    ]
    np.testing.assert_allclose(advantage_BT, expected_BT, atol=2e-6)
    # steps that are all equal, as [.7]·5, teach nothing
    equal = replace(scored, step_score_BT=jnp.full((2, 8), 0.7))
    assert not np.any(process_norm(equal, jnp.zeros((2, 8)), eps=0.0))


# --- several reward functions ------------------------------------------------------------------


def test_normalise_each_then_sum():
    """Scores (0, 0), (1, 0), (0, 10), (1, 10): each function ±1, and the sum tells all four."""
    scored = one_row(
        jnp.ones((4, 2), bool),
        score_BC=jnp.array([[0.0, 0.0], [1.0, 0.0], [0.0, 10.0], [1.0, 10.0]]),
        valid_BC=jnp.ones((4, 2), bool),
    )
    each_BT = group_norm_each(scored, jnp.zeros((4, 2)), eps=0.0)
    np.testing.assert_allclose(each_BT[:, 0], [-2, 0, 0, 2], atol=1e-6)
    weighted_BT = group_norm_each(scored, jnp.zeros((4, 2)), eps=0.0, weights=(2.0, 1.0))
    np.testing.assert_allclose(weighted_BT[:, 0], [-3, 1, -1, 3], atol=1e-6)
    # summed first, the wide function drowns the other: [−.99, −.81, .81, .99]-like
    sum_BT = group_norm(
        scored, jnp.sum(scored.score_BC, axis=1, keepdims=True) / 2 * jnp.ones((1, 2))
    )
    assert abs(sum_BT[0, 0] - sum_BT[1, 0]) < 0.25 * abs(sum_BT[0, 0] - sum_BT[2, 0])
    with pytest.raises(ConfigError, match="3 weights, 2"):
        group_norm_each(scored, jnp.zeros((4, 2)), weights=(1.0, 1.0, 1.0))


@pytest.mark.parametrize("jit", [False, True])
def test_each_function_is_normalised_over_the_rows_it_applies_to(jit):
    estimator = bind(group_norm_each, ddof=0, eps=1e-3, weights=(1.0, 0.5))
    fn = jax.jit(lambda *args: estimator(*args)) if jit else estimator
    scored = sample_scored()
    counted_B = MASK_BT.any(axis=1)
    total_B = np.zeros(8)
    for c, weight in enumerate((1.0, 0.5)):
        total_B += weight * np.array(
            reference.group_scores(
                rows_of(scored.score_BC[:, c]),
                rows_of(GROUP_B),
                rows_of(np.asarray(scored.valid_BC[:, c]) & counted_B),
                lambda s, i: reference.normalise(s, i, ddof=0, eps=1e-3),
            )
        )
    expected_BT = np.where(MASK_BT, total_B[:, None], 0)
    np.testing.assert_allclose(fn(scored, REWARD_BT), expected_BT, rtol=1e-4, atol=1e-5)
    junk_BT = fn(sample_scored(fill=np.nan), REWARD_BT)
    np.testing.assert_array_equal(junk_BT, fn(scored, REWARD_BT))
