"""Weights for the gap between the sampler's arithmetic and the trainer's.

A correction takes (logp_old_BT, logp_sampler_BT, mask_BT) and gives (weight_BT, mask_BT): the
weight multiplies the surrogate and carries no gradient; a rejection acts on the mask, and so on
the denominators, instead. Weights are never turned into rejections or the reverse.

Each takes `over`, what its ratio is of: one token (`each_token`), the whole response
(`whole_response`, the product) or the response's geometric mean (`geometric_mean`). A token whose
sampler log-prob is NaN counts as a log-ratio of 0.
"""

from __future__ import annotations

from collections.abc import Callable

import chex
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.bind import Bound
from rlhf_jax.losses.surrogate import LOG_RATIO_LIMIT
from rlhf_jax.ops.masked import masked_mean, masked_sum


def each_token(gap_BT: Array, mask_BT: Array) -> Array:
    """log w_t: the token's own gap."""
    return gap_BT


def whole_response(gap_BT: Array, mask_BT: Array) -> Array:
    """Σ_t log w_t at every token of the row: its exponential is π_old(y)/π_sampler(y)."""
    return jnp.broadcast_to(masked_sum(gap_BT, mask_BT, axis=1)[:, None], gap_BT.shape)


def geometric_mean(gap_BT: Array, mask_BT: Array) -> Array:
    """(1/|y|) Σ_t log w_t at every token of the row: does not grow with the length."""
    return jnp.broadcast_to(masked_mean(gap_BT, mask_BT, axis=1)[:, None], gap_BT.shape)


def truncated_importance(
    logp_old_BT: Array,
    logp_sampler_BT: Array,
    mask_BT: Array,
    *,
    cap: float,
    over: Callable = each_token,
) -> tuple[Array, Array]:
    """w = min(π_old/π_sampler, C); the mask stays as it is.

    (Truncated importance sampling, Yao et al. 2025; C = 2 is typical.) Where the two agree the
    loss is unchanged to the bit.

    Args:
        logp_old_BT: [B, T] ≤ 0, the trainer's log-prob under the weights that sampled.
        logp_sampler_BT: [B, T] ≤ 0, of the distribution actually drawn from.
        mask_BT: [B, T] bool.
        cap: C ≥ 1.
        over: what the ratio is of.

    Returns:
        weight_BT in [0, C], 1 outside the mask; mask_BT unchanged.
    """
    ratio_BT = _ratio(logp_old_BT, logp_sampler_BT, mask_BT, over)
    return jnp.where(mask_BT, jnp.minimum(ratio_BT, cap), 1.0), mask_BT


def masked_importance(
    logp_old_BT: Array,
    logp_sampler_BT: Array,
    mask_BT: Array,
    *,
    least: float,
    most: float,
    over: Callable = each_token,
) -> tuple[Array, Array]:
    """w = π_old/π_sampler inside [least, most], 0 outside; the mask stays as it is.

    (IcePop, 2510.18855; "masked importance sampling" elsewhere.) A token of weight 0 is still in
    the denominators, and the KL and the entropy bonus still see it.

    Args:
        logp_old_BT, logp_sampler_BT, mask_BT, over: as in `truncated_importance`.
        least, most: the band's ends, 0 ≤ least ≤ 1 ≤ most.
    """
    ratio_BT = _ratio(logp_old_BT, logp_sampler_BT, mask_BT, over)
    inside_BT = (ratio_BT >= least) & (ratio_BT <= most)
    return jnp.where(mask_BT, jnp.where(inside_BT, ratio_BT, 0.0), 1.0), mask_BT


def rejected(
    logp_old_BT: Array,
    logp_sampler_BT: Array,
    mask_BT: Array,
    *,
    least: float,
    most: float,
    over: Callable = each_token,
    weigh: Bound | None = None,
) -> tuple[Array, Array]:
    """Tokens outside [least, most] leave the mask, and so every denominator; weights are `weigh`'s.

    (Rejection sampling of verl's rollout correction.) As if what was rejected had not been drawn.

    Args:
        logp_old_BT, logp_sampler_BT, mask_BT, over: as in `truncated_importance`.
        least, most: the band's ends, 0 ≤ least ≤ 1 ≤ most.
        weigh: another correction, whose weights are used; None: all 1.
    """
    ratio_BT = _ratio(logp_old_BT, logp_sampler_BT, mask_BT, over)
    weight_BT, kept_BT = jnp.ones_like(ratio_BT), mask_BT
    if weigh is not None:
        weight_BT, kept_BT = weigh(logp_old_BT, logp_sampler_BT, mask_BT)
    return weight_BT, kept_BT & (ratio_BT >= least) & (ratio_BT <= most)


def _ratio(logp_old_BT, logp_sampler_BT, mask_BT, over):
    chex.assert_equal_shape([logp_old_BT, logp_sampler_BT, mask_BT])
    gap_BT = logp_old_BT - logp_sampler_BT
    gap_BT = jnp.where(mask_BT & ~jnp.isnan(gap_BT), gap_BT, 0)
    log_BT = over(lax.stop_gradient(gap_BT), mask_BT)
    return jnp.exp(jnp.clip(log_BT, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
