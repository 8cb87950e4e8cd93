"""Supervised fine-tuning: next-token loss, one value a token."""

from __future__ import annotations

from jax import Array


def next_token_loss(logp_BT: Array) -> Array:
    """ℓ_t = −log π(y_t | y_<t): cross-entropy with the demonstrated token, in nats.

    Reduce it with a weight from `losses.aggregate` over the completion's mask (end token inside
    it, else the model never learns to stop).

    Args:
        logp_BT: [B, T] ≤ 0, from `ops.logprobs.token_logprobs`.
    """
    return -logp_BT
