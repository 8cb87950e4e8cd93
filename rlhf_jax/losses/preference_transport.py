"""AOT: alignment of distributions by optimal transport, two forms (2406.05882).

The loss compares sorted values of the whole batch, so it cannot be taken a micro-batch at a time.
Its *matching* can: which value stands opposite which does not change under a small step, and the
gradient of a sort is that of the permutation. So each loss comes with a function that matches the
whole batch without gradient; the loss itself then works row by row and adds up over any cut to
the value and the gradient of the sorted form.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax
from jax.nn import log_sigmoid

from rlhf_jax.losses.preference import lead, log_ratio


def aot(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, target_B: Array, *, beta: float
) -> Array:
    """Σ_i −log σ(β·(u₍ᵢ₎ − v₍ᵢ₎)), u and v the sorted leads of policy and reference.

    (2406.05882, section 3, paired data, logistic loss.) u = log π(y_w) − log π(y_l), v the same of
    the reference: the distribution of leads is to dominate the reference's, no pair its own.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`.
        target_B: [B] `matched_leads` of the whole batch: v of the row's rank, nats.
        beta: β > 0.
    """
    return -log_sigmoid(beta * (lead(logp_BS) - target_B))


def matched_leads(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, weight_B: Array) -> Array:
    """For each row the reference's lead of the same rank as the row's own, nats.

    Args: [B, 2] each (all rows of the batch), and weight_B: [B], all alike; not read.
    """
    return _opposite(lead(logp_BS), lead(logp_ref_BS))


def aot_unpaired(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, opposite_BS: Array, *, beta: float
) -> Array:
    """Σ_i −log σ(β·(u₍ᵢ₎ − v₍ᵢ₎)), u and v the sorted log-ratios of preferred and other sides.

    (2406.05882, section 3, unpaired data.) Who shared a prompt with whom is not used. A row holds
    one term of its preferred side and one of its other side: the value is half of their sum, since
    every term is counted by both its ends; the gradient is the whole of each.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`.
        opposite_BS: [B, 2] `matched_sides` of the whole batch, nats.
        beta: β > 0.
    """
    ratio_BS = log_ratio(logp_BS, logp_ref_BS, length_BS)
    chosen_B = -log_sigmoid(beta * (ratio_BS[:, 0] - opposite_BS[:, 0]))
    rejected_B = -log_sigmoid(beta * (opposite_BS[:, 1] - ratio_BS[:, 1]))
    both_B = chosen_B + rejected_B
    return both_B - lax.stop_gradient(0.5 * both_B)


def matched_sides(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, weight_B: Array) -> Array:
    """For each side the log-ratio of the same rank among the batch's opposite sides, nats.

    Args: as in `matched_leads`.
    """
    ratio_BS = log_ratio(logp_BS, logp_ref_BS, length_BS)
    chosen_B, rejected_B = ratio_BS[:, 0], ratio_BS[:, 1]
    return jnp.stack([_opposite(chosen_B, rejected_B), _opposite(rejected_B, chosen_B)], axis=1)


def _opposite(x_B, y_B):
    """The value of y that has in y the rank that x_b has in x. Ties go by index, in both."""
    return jnp.zeros_like(y_B).at[jnp.argsort(x_B)].set(y_B[jnp.argsort(y_B)])
