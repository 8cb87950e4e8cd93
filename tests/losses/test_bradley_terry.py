"""Reward-model losses: scalar loops in float64, worked numbers, public cases, masks, limits."""

import jax
import jax.numpy as jnp
import numpy as np
import preference_reference as scalar
import pytest
from reference import numeric_gradient

from rlhf_jax.losses import bradley_terry as bt
from rlhf_jax.ops.totals import add_metrics

# Five prompts: all ranked; two ties; a missing completion in the middle; one completion; all tied.
RANK_BS = np.array([[2, 0, 3, 1], [0, 1, 0, 1], [1, 9, 0, 5], [4, 0, 0, 0], [7, 7, 7, 7]], np.int32)
VALID_BS = np.array([[1] * 4, [1] * 4, [1, 0, 1, 1], [1, 0, 0, 0], [1] * 4], bool)
_draw = np.random.default_rng(3)
SCORE_BS = _draw.normal(scale=2.0, size=(5, 4))
MARGIN_BSS = _draw.uniform(0, 1, (5, 4, 4))
LABELS = (RANK_BS, VALID_BS)


def rows(score_BS, fn, *more):
    """One value a prompt, by the scalar loop."""
    args = zip(score_BS, RANK_BS.tolist(), VALID_BS.tolist(), *more, strict=True)
    return [fn(*row) for row in args]


LOSSES = {
    "ranked": (
        lambda x: bt.ranked(x, RANK_BS, VALID_BS),
        lambda x: rows(x, scalar.ranked, np.zeros((5, 4, 4)).tolist()),
    ),
    "ranked_margin": (
        lambda x: bt.ranked(x, RANK_BS, VALID_BS, jnp.asarray(MARGIN_BSS, x.dtype)),
        lambda x: rows(x, scalar.ranked, MARGIN_BSS.tolist()),
    ),
    "best_of": (
        lambda x: bt.best_of(x, RANK_BS, VALID_BS),
        lambda x: rows(x, scalar.best_of),
    ),
    "centring": (
        lambda x: bt.centring(x, RANK_BS, VALID_BS),
        lambda x: rows(x, scalar.centring),
    ),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_loop_in_value_and_gradient(name, jit):
    loss, loop = LOSSES[name]
    with jax.enable_x64(True):
        value_B = (jax.jit(loss) if jit else loss)(jnp.asarray(SCORE_BS, float))
        gradient_BS = jax.grad(lambda x: jnp.sum(loss(x)))(jnp.asarray(SCORE_BS, float))
        np.testing.assert_allclose(value_B, loop(SCORE_BS.tolist()), rtol=1e-6, atol=1e-12)
    expected_BS = numeric_gradient(lambda x: sum(loop(x)), SCORE_BS, np.ones((5, 4), bool))
    np.testing.assert_allclose(gradient_BS, expected_BS, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_a_missing_completion_changes_nothing(name):
    loss, _ = LOSSES[name]

    def run(fill):
        score_BS = jnp.where(VALID_BS, SCORE_BS, fill)
        return jax.value_and_grad(lambda x: jnp.sum(loss(x)))(score_BS)

    (value, gradient_BS), (junk, junk_BS) = run(0.0), run(np.nan)
    assert value == junk
    np.testing.assert_array_equal(gradient_BS, junk_BS)
    assert not np.any(np.asarray(junk_BS)[~VALID_BS])


# --- worked numbers ------------------------------------------------------------------------------

FOUR_BS = jnp.array([[1.2, 0.3, -0.4, -1.0]])
BEST_FIRST_BS, ALL_BS = jnp.arange(4)[None], jnp.ones((1, 4), bool)


def test_ranking_of_four_is_the_mean_of_six_pairs():
    pairs = [0.341154, 0.183901, 0.105083, 0.403186, 0.241008, 0.437488]
    ends = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    two_BS = FOUR_BS[0][np.array(ends)]
    np.testing.assert_allclose(bt.pairwise(two_BS), pairs, atol=1e-6)
    np.testing.assert_allclose(bt.ranked(FOUR_BS, BEST_FIRST_BS, ALL_BS), [0.285303], atol=1e-6)


def test_gradient_weight_is_the_chance_of_being_wrong():
    gradient_BS = jax.grad(lambda x: jnp.sum(bt.pairwise(x)))(jnp.array([[0.9, 0.0]]))
    np.testing.assert_allclose(gradient_BS, [[-0.289050, 0.289050]], atol=1e-6)  # 1 − σ(.9)


def test_llama_2_margin():
    np.testing.assert_allclose(
        bt.pairwise(jnp.array([[0.9, 0.0]]), jnp.ones(1)), [0.744397], atol=1e-6
    )


def test_ziegler_best_of_four():
    np.testing.assert_allclose(bt.best_of(FOUR_BS, BEST_FIRST_BS, ALL_BS), [0.541899], atol=1e-6)


def test_trl_reward_margin_and_centring():
    """r_w 1, r_l −.5: .201413; margin 1: .474077; + .01·(.5)², the square of the sum: .203913."""
    score_BS, rank_BS, both_BS = (
        jnp.array([[1.0, -0.5]]),
        jnp.array([[0, 1]]),
        jnp.ones((1, 2), bool),
    )
    np.testing.assert_allclose(bt.pairwise(score_BS), [0.201413], atol=1e-6)
    np.testing.assert_allclose(bt.pairwise(score_BS, jnp.ones(1)), [0.474077], atol=1e-6)
    margin_BSS = jnp.ones((1, 2, 2))
    np.testing.assert_allclose(
        bt.ranked(score_BS, rank_BS, both_BS, margin_BSS), [0.474077], atol=1e-6
    )
    centred_B = bt.ranked(score_BS, rank_BS, both_BS) + 0.01 * bt.centring(
        score_BS, rank_BS, both_BS
    )
    np.testing.assert_allclose(centred_B, [0.2039133], atol=1e-6)
    opposite_BS = jnp.array([[7.0, -7.0]])
    np.testing.assert_array_equal(bt.centring(opposite_BS, rank_BS, both_BS), [0])


def test_verl_1411_equal_scores_are_wrong():
    score_BS, rank_BS = jnp.array([[1.0, 0.0], [1.0, 1.0]]), jnp.array([[0, 1], [0, 1]])
    accuracy = bt.pair_accuracy(score_BS, rank_BS, jnp.ones((2, 2), bool))
    assert (accuracy.value(), accuracy.count) == (0.5, 2)


def test_a_tie_in_the_labels_is_no_comparison():
    accuracy = bt.pair_accuracy(jnp.asarray(SCORE_BS), RANK_BS, VALID_BS)
    assert accuracy.count == 6 + 4 + 3 + 0 + 0
    cuts = [slice(b, b + 1) for b in range(5)]
    parts = [{"accuracy": bt.pair_accuracy(SCORE_BS[b], RANK_BS[b], VALID_BS[b])} for b in cuts]
    added = parts[0]
    for part in parts[1:]:
        added = add_metrics(added, part)
    assert (added["accuracy"].sum, added["accuracy"].count) == (accuracy.sum, accuracy.count)


def test_prompts_without_a_comparison_weigh_nothing():
    np.testing.assert_allclose(bt.prompt_weight(*LABELS), [1 / 3, 1 / 3, 1 / 3, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(bt.prompt_weight(RANK_BS[3:], VALID_BS[3:]), [0, 0])


@pytest.mark.parametrize("far", [1e4, -1e4])
def test_extreme_scores_stay_finite(far):
    """The loss is the lead itself when wrong, 0 when right; the gradient is 1 or 0."""

    def loss(x):
        return jnp.sum(bt.ranked(x, rank_BS, both_BS))

    rank_BS, both_BS = jnp.array([[0, 1]]), jnp.ones((1, 2), bool)
    value, gradient_BS = jax.value_and_grad(loss)(jnp.array([[far, -far]]))
    assert value == (0 if far > 0 else 2e4)
    np.testing.assert_array_equal(gradient_BS, [[0, 0]] if far > 0 else [[-1, 1]])
    best = jax.value_and_grad(lambda x: jnp.sum(bt.best_of(x, rank_BS, both_BS)))
    value, gradient_BS = best(jnp.array([[far, -far]]))
    assert np.isfinite(value) and np.all(np.isfinite(gradient_BS))


def test_only_differences_matter_to_the_loss_and_the_level_to_centring():
    shifted_BS = jnp.asarray(SCORE_BS + 3.0)
    for name in ("ranked", "best_of"):
        loss, _ = LOSSES[name]
        np.testing.assert_allclose(loss(shifted_BS), loss(jnp.asarray(SCORE_BS)), rtol=1e-4)
    lower_B, higher_B = (LOSSES["centring"][0](jnp.abs(x)) for x in (SCORE_BS, shifted_BS))
    assert np.any(lower_B != higher_B)
