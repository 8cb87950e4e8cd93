"""From a score a row to a reward a token."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import MASK_BT

from rlhf_jax.ops.masked import whiten
from rlhf_jax.ops.shaping import place_at_last, soft_overlong, subtract_kl


@pytest.mark.parametrize("jit", [False, True])
def test_score_lands_on_the_last_counted_token(jit):
    fn = jax.jit(place_at_last) if jit else place_at_last
    score_B = np.arange(1.0, 9.0, dtype=np.float32)
    expected_BT = np.zeros(MASK_BT.shape)
    for b, last in enumerate([6, 5, 3, 2, None, 4, 5, 6]):  # row 4 counts no token
        if last is not None:
            expected_BT[b, last] = score_B[b]
    np.testing.assert_array_equal(fn(score_B, MASK_BT), expected_BT)


def test_score_of_a_row_without_tokens_is_not_read():
    reward_BT = place_at_last(jnp.array([jnp.nan, 1.0]), jnp.array([[False] * 3, [True] * 3]))
    np.testing.assert_array_equal(reward_BT, [[0, 0, 0], [0, 0, 1]])


def test_kl_is_charged_inside_the_mask_only():
    # an observation token with a large KL: −.9 there would be the defect
    mask_BT = jnp.array([[True, False, True]])
    reward_BT = place_at_last(jnp.array([1.0]), mask_BT)
    for junk in (9.0, jnp.nan):
        shaped_BT = subtract_kl(reward_BT, jnp.array([[0.5, junk, 0.2]]), 0.1, mask_BT)
        np.testing.assert_allclose(shaped_BT, [[-0.05, 0.0, 0.98]], rtol=1e-6)


def test_kl_golden():
    # logp [−1, −.5, −2], ref [−1.2, −.9, −1.5]: k1 [.2, .4, −.5]; score .8 on the last token
    kl_BT, mask_BT = jnp.array([[0.2, 0.4, -0.5]]), jnp.ones((1, 3), bool)
    score_BT = place_at_last(jnp.array([0.8]), mask_BT)
    np.testing.assert_allclose(
        subtract_kl(score_BT, kl_BT, 0.1, mask_BT), [[-0.02, -0.04, 0.85]], atol=1e-7
    )
    shaped_BT = subtract_kl(score_BT, kl_BT, 0.02, mask_BT)
    np.testing.assert_allclose(shaped_BT, [[-0.004, -0.008, 0.81]], atol=1e-7)
    np.testing.assert_allclose(shaped_BT.sum(), 0.8 - 0.02 * 0.1, atol=1e-7)  # score − β·ΣKL


def test_whitened_rewards_of_a_walk_through():
    """Three rows of a published example, mean 1.6 kept; its numbers have the sample deviation."""
    reward_BT = jnp.array([[1.2, 1.3, 1.4], [1.5, 1.6, 1.7], [1.8, 1.9, 2.0]])
    expected_BT = [
        [0.050807, 0.438105, 0.825403],
        [1.212702, 1.6, 1.987298],
        [2.374597, 2.761895, 3.149193],
    ]
    whitened_BT = whiten(reward_BT, jnp.ones((3, 3), bool), shift_mean=False)
    np.testing.assert_allclose(whitened_BT, expected_BT, atol=2e-6)
    published_BT = 1.6 + (whitened_BT - 1.6) * np.sqrt(8 / 9)
    np.testing.assert_allclose(published_BT[0], [0.139407, 0.504555, 0.869703], atol=2e-6)


@pytest.mark.parametrize(
    ("settings", "lengths", "expected"),
    [
        # L 20480, C 4096: no penalty to 16384, half at 18432, −1 at and beyond the limit
        (
            {"max_length": 20480, "cache": 4096},
            [16384, 16385, 18432, 20480, 20481],
            [0, -1 / 4096, -0.5, -1, -1],
        ),
        (
            {"max_length": 25, "cache": 5, "floor": -0.5},
            [10, 20, 22, 25, 27],
            [0, 0, -0.2, -0.5, -0.5],
        ),
        ({"max_length": 100, "cache": 20}, [50, 80, 90, 100, 110], [0, 0, -0.5, -1, -1]),
        ({"max_length": 25, "cache": 0}, [10, 25, 26], [0, 0, -1]),
    ],
)
def test_overlong(settings, lengths, expected):
    penalty_B = soft_overlong(jnp.array(lengths), **settings)
    np.testing.assert_allclose(penalty_B, expected, atol=1e-6)
