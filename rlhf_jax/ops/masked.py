"""Sums, means and variances over the counted entries of an array.

Every function selects before it computes: a NaN or infinity outside the mask changes neither the
value nor the gradient, and an empty mask gives 0.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax


def masked_sum(x: Array, mask: Array, axis=None) -> Array:
    """Σ m·x over `axis` (all axes if None).

    Args:
        x: any shape.
        mask: the shape of `x`, bool; False is left out.
        axis: as in `jnp.sum`.
    """
    return jnp.sum(jnp.where(mask, x, 0), axis=axis)


def masked_count(mask: Array, axis=None) -> Array:
    """max(Σ m, 1) as float32: a denominator that an empty mask cannot make 0."""
    return jnp.maximum(jnp.sum(mask, axis=axis, dtype=jnp.float32), 1.0)


def masked_mean(x: Array, mask: Array, axis=None) -> Array:
    """Σ m·x / Σ m; 0 where nothing is counted. Arguments as in `masked_sum`."""
    return masked_sum(x, mask, axis) / masked_count(mask, axis)


def masked_var(x: Array, mask: Array, axis=None, ddof: int = 0) -> Array:
    """Σ m·(x − mean)² / (Σ m − ddof); 0 where no more than `ddof` entries are counted.

    Args:
        x, mask, axis: as in `masked_sum`.
        ddof: 0 is the population variance, 1 the sample variance.
    """
    count = jnp.sum(mask, axis=axis, keepdims=True, dtype=jnp.float32)
    total = jnp.sum(jnp.where(mask, x, 0), axis=axis, keepdims=True)
    mean = jnp.broadcast_to(total / jnp.maximum(count, 1.0), x.shape)
    squares = jnp.where(mask, x - mean, 0) ** 2
    freedom = jnp.maximum(jnp.sum(mask, axis=axis, dtype=jnp.float32) - ddof, 1.0)
    return jnp.sum(squares, axis=axis) / freedom


def whiten(x_BT: Array, mask_BT: Array, shift_mean: bool = True, eps: float = 1e-8) -> Array:
    """Scale the counted entries of the whole batch to mean 0 and variance 1; 0 elsewhere.

    (x − μ)·rsqrt(σ² + eps), with μ added back unless `shift_mean`; σ² is the population variance
    (OpenAI lm-human-preferences, `whiten`; 1909.08593). Entries that are all equal carry no signal:
    their deviation is exactly 0, not the rounding residue of the mean.

    Args:
        x_BT: [B, T] float.
        mask_BT: [B, T] bool. The statistics run over all of it, so under `jit` on a sharded batch
            they are global.
        shift_mean: False keeps the mean (for rewards, whose sign must survive).
        eps: added to the variance, > 0.
    """
    clean_BT = jnp.where(mask_BT, x_BT, 0)
    mean = masked_mean(clean_BT, mask_BT)
    low = jnp.min(jnp.where(mask_BT, x_BT, jnp.inf))
    high = jnp.max(jnp.where(mask_BT, x_BT, -jnp.inf))
    deviation_BT = jnp.where(high > low, clean_BT - mean, 0)
    scaled_BT = deviation_BT * lax.rsqrt(masked_var(clean_BT, mask_BT) + eps)
    if not shift_mean:
        scaled_BT = scaled_BT + mean
    return jnp.where(mask_BT, scaled_BT, 0)
