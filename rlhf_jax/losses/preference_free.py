"""Paired losses that read no reference: `logp_ref_BS` is None; else as `losses.preference`."""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array, lax
from jax.nn import log_sigmoid

from rlhf_jax.losses.preference import lead, tokens

# A mean log-prob nearer to 0 than this is taken as this: its odds would be infinite.
_SUREST = -1e-12


def total_logp(logp_BS: Array, logp_ref_BS: None, length_BS: Array) -> Array:
    """log π(y), nats: CPO's implicit reward, without its β."""
    chex.assert_equal_shape([logp_BS, length_BS])
    return logp_BS


def mean_logp(logp_BS: Array, logp_ref_BS: None, length_BS: Array) -> Array:
    """log π(y)/|y|, nats a token: the implicit reward of SimPO and ORPO, without its β."""
    return total_logp(logp_BS, logp_ref_BS, length_BS) / tokens(length_BS)


def simpo(
    logp_BS: Array, logp_ref_BS: None, length_BS: Array, *, beta: float, margin: float
) -> Array:
    """ℓ = −log σ(β/|y_w|·log π(y_w) − β/|y_l|·log π(y_l) − γ)   (2405.14734, eq. 6)

    γ itself, as in the paper; open-instruct's option is the ratio γ/β. TRL's adds an NLL term
    unless its coefficient is set to 0: none here.

    Args:
        logp_BS, length_BS: as in `losses.preference`.
        logp_ref_BS: None.
        beta: β > 0, 2 to 2.5 in the paper (10 for instruct models).
        margin: γ ≥ 0, with γ/β .1 to .8.
    """
    return -log_sigmoid(beta * lead(mean_logp(logp_BS, logp_ref_BS, length_BS)) - margin)


def cpo(logp_BS: Array, logp_ref_BS: None, length_BS: Array, *, beta: float) -> Array:
    """ℓ = −log σ(β·(log π(y_w) − log π(y_l)))   (2401.08417, section 3, L_prefer)

    DPO with a uniform reference. The paper adds the NLL of the preferred side: see
    `algorithms.cpo`.

    Args:
        logp_BS, length_BS: as in `losses.preference`; lengths are not read.
        logp_ref_BS: None.
        beta: β > 0, .1 in the paper.
    """
    return -log_sigmoid(beta * lead(total_logp(logp_BS, logp_ref_BS, length_BS)))


def orpo(logp_BS: Array, logp_ref_BS: None, length_BS: Array, *, beta: float) -> Array:
    """ℓ = −β·log σ(log odds(y_w) − log odds(y_l)), odds = p/(1 − p), p = exp(log π(y)/|y|)

    (2403.07691, eq. 7, whose λ is β here.) The paper adds the NLL of the preferred side: see
    `algorithms.orpo`. A side of p = 1 to float32 is held at 1 − 10⁻¹², without gradient.

    Args:
        logp_BS, length_BS: as in `losses.preference`.
        logp_ref_BS: None.
        beta: λ > 0, .1 or .2 in the paper.
    """
    mean_BS = mean_logp(logp_BS, logp_ref_BS, length_BS)
    mean_BS = jnp.where(mean_BS < _SUREST, mean_BS, _SUREST)
    return -beta * log_sigmoid(lead(mean_BS - _log1m_exp(mean_BS)))


def _log1m_exp(x):
    """log(1 − eˣ) for x < 0, to the last digit at both ends."""
    near = x > -0.6931472  # eˣ > ½: 1 − eˣ cancels, expm1 does not
    close = jnp.log(-jnp.expm1(jnp.where(near, x, -1.0)))
    far = jnp.log1p(-jnp.exp(jnp.where(near, -1.0, x)))
    return jnp.where(near, close, far)


def wpo_weight(logp_BS: Array, length_BS: Array) -> Array:
    """w = Π_sides exp(log π(y)/|y|), no gradient: pairs the policy would write weigh more.

    (2406.11827, section 3, without the alignment that divides by the policy's own Σ_v π² a token.)
    Not normalised over the batch, as in the paper.
    """
    return lax.stop_gradient(jnp.exp(jnp.sum(mean_logp(logp_BS, None, length_BS), axis=1)))
