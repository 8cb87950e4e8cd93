"""Divergences between a teacher's and a student's next-token distributions, one value a token.

For one's own script: hand in log-probs of a chunk of positions at a time; nothing here holds more
than it is given.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array
from jax.nn import logsumexp


def kl_divergence(logp_BTV: Array, logq_BTV: Array) -> Array:
    """KL(p ‖ q) = Σ_v p_v·(log p_v − log q_v) in nats; a token of probability 0 adds 0.

    Args:
        logp_BTV: [B, T, V] log-probs, −∞ allowed.
        logq_BTV: [B, T, V] log-probs, −∞ allowed where p is 0 too.
    """
    chex.assert_equal_shape([logp_BTV, logq_BTV])
    held_BTV = jnp.isfinite(logp_BTV)  # select before subtracting: 0·(−∞ + ∞) is NaN
    gap_BTV = jnp.where(held_BTV, logp_BTV, 0) - jnp.where(held_BTV, logq_BTV, 0)
    return jnp.sum(jnp.exp(logp_BTV) * gap_BTV, axis=-1)


def generalised_jsd(teacher_BTV: Array, student_BTV: Array, *, mix: float) -> Array:
    """JSD_β = β·KL(t ‖ m) + (1 − β)·KL(s ‖ m), m = β·t + (1 − β)·s   (2306.13649, eq. 1)

    The mixture leans to the teacher as β grows. The paper's limits (divided by β(1 − β)) are its
    names for the two ends: β = 0 is the forward KL(t ‖ s), as in distillation, β = 1 the reverse
    KL(s ‖ t); both are returned undivided. Reduce with a weight of `losses.aggregate`: a mean over
    counted tokens, not over rows.

    Args:
        teacher_BTV: [B, T, V] log-probs, no gradient.
        student_BTV: [B, T, V] log-probs.
        mix: β in [0, 1], a Python number: the two ends are other formulas.
    """
    chex.assert_equal_shape([teacher_BTV, student_BTV])
    if mix == 0.0:
        return kl_divergence(teacher_BTV, student_BTV)
    if mix == 1.0:
        return kl_divergence(student_BTV, teacher_BTV)
    both = jnp.stack([teacher_BTV + jnp.log(mix), student_BTV + jnp.log1p(-mix)])
    mixed_BTV = logsumexp(both, axis=0)
    forward_BT = kl_divergence(teacher_BTV, mixed_BTV)
    return mix * forward_BT + (1 - mix) * kl_divergence(student_BTV, mixed_BTV)
