"""From one score a row to one reward a token."""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array


def place_at_last(score_B: Array, mask_BT: Array) -> Array:
    """Put each row's score on its last counted token, 0 elsewhere.

    r_t = score·1[t = last], last = max{t : m_t = 1} (2203.02155, the reward is given at the end of
    the episode). The end token is inside the mask, so the score lands on it when there is one. A
    row that counts no token receives no reward.

    Args:
        score_B: [B] float.
        mask_BT: [B, T] bool.
    """
    chex.assert_rank([score_B, mask_BT], [1, 2])
    mask_BT = mask_BT.astype(bool)
    counted_after_BT = jnp.cumsum(mask_BT[:, ::-1], axis=1)[:, ::-1]
    last_BT = mask_BT & (counted_after_BT == 1)
    return jnp.where(last_BT, score_B[:, None], 0)


def subtract_kl(reward_BT: Array, kl_BT: Array, coef: float, mask_BT: Array) -> Array:
    """Charge every counted token for its divergence: r_t − β·kl_t; 0 outside the mask.

    (1909.08593, section 2; 2203.02155, eq. 2.) The sign is the papers' and their code's; a
    walk-through in circulation writes +β·kl. Summed over a row: score − β·Σ kl.

    Args:
        reward_BT: [B, T] float.
        kl_BT: [B, T], the estimator's value at each token; junk outside the mask is ignored.
        coef: β ≥ 0.
        mask_BT: [B, T] bool.
    """
    chex.assert_equal_shape([reward_BT, kl_BT, mask_BT])
    return jnp.where(mask_BT, reward_BT - coef * kl_BT, 0)


def soft_overlong(length_B: Array, *, max_length: int, cache: int, floor: float = -1.0) -> Array:
    """A penalty that grows linearly over the last `cache` tokens before the limit.

    R(y) = 0                                    |y| ≤ L − C
           floor·(|y| − (L − C))/C              L − C < |y| ≤ L
           floor                                |y| > L          (2503.14476, eq. 13, floor = −1)

    The penalty stays at `floor` beyond the limit. With C = 0 there is no slope: 0 up to L, `floor`
    beyond.

    Args:
        length_B: [B] number of response tokens.
        max_length: L ≥ 1, tokens.
        cache: C ≥ 0, tokens.
        floor: the penalty at and beyond the limit, ≤ 0.
    """
    over_B = length_B - (max_length - cache)
    share_B = over_B / cache if cache > 0 else jnp.where(over_B > 0, 1.0, 0.0)
    return floor * jnp.clip(share_B, 0.0, 1.0)
