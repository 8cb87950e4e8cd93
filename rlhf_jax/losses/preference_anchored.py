"""Paired losses that hold each side against an anchor of its own, not only against the other.

The contract is that of `losses.preference`; r_w and r_l are the sides' log-ratios.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid, sigmoid

from rlhf_jax.losses.preference import log_ratio


def nca(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = −log σ(β·r_w) − ½·log σ(−β·r_w) − ½·log σ(−β·r_l)   (2402.05369, section 4.1, a pair)

    Least at r_w = ln 2/β: the preferred side is raised, but not without bound.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`.
        beta: β > 0, .01 in the paper.
    """
    chosen_B, rejected_B = _sides(beta * log_ratio(logp_BS, logp_ref_BS, length_BS))
    noise_B = log_sigmoid(-chosen_B) + log_sigmoid(-rejected_B)
    return -log_sigmoid(chosen_B) - 0.5 * noise_B


def bco(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, shift_B: Array, *, beta: float
) -> Array:
    """ℓ = −log σ(β·(r_w − δ)) − log σ(−β·(r_l − δ))   (2404.04656, section 4)

    A classifier of good and bad responses whose logit is the reward, about the reward shift δ.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`.
        shift_B: δ in nats (the paper's divided by β), no gradient; `reward_shift` of the whole
            batch, or any scalar.
        beta: β > 0, .01 in the paper.
    """
    ratio_BS = log_ratio(logp_BS, logp_ref_BS, length_BS)
    chosen_B, rejected_B = _sides(ratio_BS)
    return -log_sigmoid(beta * (chosen_B - shift_B)) - log_sigmoid(-beta * (rejected_B - shift_B))


def reward_shift(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, weight_B: Array) -> Array:
    """δ = ½·(E[r_w] + E[r_l]) over the whole batch, nats, the same in every row.

    (2404.04656, section 4, which keeps a moving average.) Ours is the mean of this batch under
    the policy that the gradient is taken at: not lagged, nothing to save or restore, and exact for
    every cut. TRL averages over all batches since the start, so its δ lags behind the policy.

    Args:
        logp_BS, logp_ref_BS, length_BS: [B, 2], all rows of the batch.
        weight_B: [B], sums to 1.
    """
    ratio_BS = log_ratio(logp_BS, logp_ref_BS, length_BS)
    return jnp.full(weight_B.shape, jnp.sum(weight_B * jnp.mean(ratio_BS, axis=1)))


def sppo_hard(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = (r_w − 1/(2β))² + (r_l + 1/(2β))²   (2405.00675, section 3, hard labels, η = 1/β)

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`; the reference is the policy of
            the last round. The log-ratios are not scaled by β (an older form in circulation does).
        beta: β > 0, .001 in the paper.
    """
    chosen_B, rejected_B = _sides(log_ratio(logp_BS, logp_ref_BS, length_BS))
    return (chosen_B - 0.5 / beta) ** 2 + (rejected_B + 0.5 / beta) ** 2


def apo_zero(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = 1 − σ(β·r_w) + σ(β·r_l)   (2408.06266, section 4, plus 1: ≥ 0)

    Raises the preferred side and lowers the other: for a policy worse than its preferred data.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in `losses.preference`.
        beta: β > 0, .1 in the paper.
    """
    chosen_B, rejected_B = _sides(beta * log_ratio(logp_BS, logp_ref_BS, length_BS))
    return sigmoid(-chosen_B) + sigmoid(rejected_B)


def apo_down(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = σ(β·r_w) + 1 − σ(β·(r_w − r_l))   (2408.06266, section 4, plus 1)

    Lowers both sides, the other one more: for a policy better than its preferred data.

    Args: as in `apo_zero`.
    """
    chosen_B, rejected_B = _sides(beta * log_ratio(logp_BS, logp_ref_BS, length_BS))
    return sigmoid(chosen_B) + sigmoid(rejected_B - chosen_B)


def _sides(reward_BS):
    return reward_BS[:, 0], reward_BS[:, 1]
