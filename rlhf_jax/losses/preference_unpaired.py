"""Losses of single completions, each desirable or not: (logp_B, logp_ref_B, desirable_B).

    logp_B       Σ over the counted tokens of log π, nats, ≤ 0
    logp_ref_B   the same under the reference, no gradient
    desirable_B  bool

r = log π − log π_ref. A loss that needs a statistic of the whole batch takes it fourth, and the
statistic is a function (ratio_B, other_ratio_B, desirable_B, weight_B) -> [B], without gradient;
`other_ratio_B` are the log-ratios of mismatched pairs (a row's prompt with another row's
completion), None for a statistic that reads none.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid, relu, sigmoid


def kto(
    logp_B: Array,
    logp_ref_B: Array,
    desirable_B: Array,
    kl_B: Array,
    *,
    beta: float,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> Array:
    """ℓ = λ_D·(1 − σ(β·(r − z₀))) if desirable, else λ_U·(1 − σ(β·(z₀ − r)))   (2402.01306, eq. 8)

    Args:
        logp_B, logp_ref_B, desirable_B: as in the head of this file.
        kl_B: z₀ ≥ 0 in nats, no gradient: `mismatched_kl` of the whole batch, or any scalar.
        beta: β > 0, .1 in the paper.
        desirable_weight, undesirable_weight: λ_D, λ_U ≥ 0. The paper asks for λ_D·n_D/(λ_U·n_U)
            in [1, 4/3] ([1, 3/2] in later versions).
    """
    ahead_B = beta * (_ratio(logp_B, logp_ref_B, desirable_B) - kl_B)
    weight_B = jnp.where(desirable_B, desirable_weight, undesirable_weight)
    return weight_B * sigmoid(jnp.where(desirable_B, -ahead_B, ahead_B))


def mismatched_kl(
    ratio_B: Array, other_ratio_B: Array, desirable_B: Array, weight_B: Array
) -> Array:
    """z₀ = max(0, mean of log π(y'|x) − log π_ref(y'|x)), y' another row's completion.

    (2402.01306, section 4.) The mean is of the whole batch, over micro-batches and devices alike;
    the clamp acts on the mean, since the KL it stands for is ≥ 0. Needs two rows or more.
    """
    return jnp.full(weight_B.shape, relu(jnp.sum(weight_B * other_ratio_B)))


def bco_unpaired(
    logp_B: Array, logp_ref_B: Array, desirable_B: Array, shift_B: Array, *, beta: float
) -> Array:
    """ℓ = −log σ(β·(r − δ)) if desirable, else −log σ(−β·(r − δ))   (2404.04656, section 4)

    Args:
        logp_B, logp_ref_B, desirable_B: as in the head of this file.
        shift_B: δ in nats, no gradient: `class_shift` of the whole batch, or any scalar.
        beta: β > 0, .01 in the paper.
    """
    ahead_B = beta * (_ratio(logp_B, logp_ref_B, desirable_B) - shift_B)
    return -log_sigmoid(jnp.where(desirable_B, ahead_B, -ahead_B))


def class_shift(ratio_B: Array, other_ratio_B: None, desirable_B: Array, weight_B: Array) -> Array:
    """δ = ½·(mean of r over the desirable + mean over the undesirable), nats, of the whole batch.

    (2404.04656, section 4.) Each class counts half, however many rows it has; TRL pools the rows.
    A class that the batch lacks is left out. Not lagged: see `preference_anchored.reward_shift`.
    """
    desirable_B = desirable_B.astype(bool)  # ~1 of a whole number is −2, and true
    means, present = [], []
    for class_B in (desirable_B, ~desirable_B):
        of_class_B = jnp.where(class_B, weight_B, 0)
        share = jnp.sum(of_class_B)
        means.append(jnp.sum(of_class_B * ratio_B) / jnp.where(share > 0, share, 1))
        present.append(share > 0)
    classes = jnp.maximum(present[0].astype(int) + present[1], 1)
    return jnp.full(weight_B.shape, (means[0] + means[1]) / classes)


def apo_zero_unpaired(
    logp_B: Array, logp_ref_B: Array, desirable_B: Array, *, beta: float
) -> Array:
    """ℓ = 1 − σ(β·r) if desirable, else σ(β·r)   (2408.06266, section 4, a side at a time)

    KTO with z₀ = 0: it needs no mismatched pairs, so a batch of one row will do.

    Args:
        logp_B, logp_ref_B, desirable_B: as in the head of this file.
        beta: β > 0.
    """
    reward_B = beta * _ratio(logp_B, logp_ref_B, desirable_B)
    return sigmoid(jnp.where(desirable_B, -reward_B, reward_B))


def _ratio(logp_B, logp_ref_B, desirable_B):
    chex.assert_equal_shape([logp_B, logp_ref_B, desirable_B])
    return logp_B - logp_ref_B
