"""Weights for the gap between the sampler's arithmetic and the trainer's.

A correction takes (logp_old_BT, logp_sampler_BT, mask_BT) and gives (weight_BT, mask_BT): the
weight multiplies the surrogate and carries no gradient; a rejection acts on the mask, and so on
the denominators, instead. Weights are never turned into rejections or the reverse.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.losses.surrogate import LOG_RATIO_LIMIT


def truncated_importance(
    logp_old_BT: Array, logp_sampler_BT: Array, mask_BT: Array, *, cap: float
) -> tuple[Array, Array]:
    """w_t = min(π_old(y_t)/π_sampler(y_t), C), token by token; the mask stays as it is.

    (Truncated importance sampling, Yao et al. 2025; C = 2 is typical.) A token whose sampler
    log-prob is NaN is taken at weight 1. Where the two agree the loss is unchanged to the bit.

    Args:
        logp_old_BT: [B, T] ≤ 0, the trainer's log-prob under the weights that sampled.
        logp_sampler_BT: [B, T] ≤ 0, of the distribution actually drawn from.
        mask_BT: [B, T] bool.
        cap: C > 0.

    Returns:
        weight_BT in [0, C], 1 outside the mask; mask_BT unchanged.
    """
    chex.assert_equal_shape([logp_old_BT, logp_sampler_BT, mask_BT])
    gap_BT = logp_old_BT - logp_sampler_BT
    known_BT = mask_BT & ~jnp.isnan(gap_BT)
    gap_BT = jnp.clip(jnp.where(known_BT, gap_BT, 0), -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    weight_BT = jnp.where(known_BT, jnp.minimum(jnp.exp(gap_BT), cap), 1.0)
    return lax.stop_gradient(weight_BT), mask_BT
