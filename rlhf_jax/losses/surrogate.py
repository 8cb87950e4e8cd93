"""Importance ratios and policy surrogates, one value a token.

A ratio takes (logp_BT, logp_old_BT, mask_BT) and gives ratio_BT, 1 outside the mask. A surrogate
takes (logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT) and numbers by keyword, and gives
loss_BT (to be minimised), 0 outside the mask; both with gradient exactly 0 there.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.ops.masked import masked_mean, masked_sum

# exp(20) ≈ 4.9e8 is far beyond any use of a ratio and far below float32 overflow. Where the
# clamp acts, the gradient is 0.
LOG_RATIO_LIMIT = 20.0


def log_ratio(logp_BT: Array, logp_old_BT: Array, mask_BT: Array) -> Array:
    """log π − log π_old at every counted token, unclamped; 0 outside the mask."""
    chex.assert_equal_shape([logp_BT, logp_old_BT, mask_BT])
    return jnp.where(mask_BT, logp_BT - logp_old_BT, 0)


def token_ratio(logp_BT: Array, logp_old_BT: Array, mask_BT: Array) -> Array:
    """r_t = exp(log π(y_t) − log π_old(y_t)), the log clamped to ±20.

    (1707.06347, section 3.)

    Args:
        logp_BT: [B, T] log π, ≤ 0.
        logp_old_BT: [B, T] log π_old, ≤ 0, no gradient.
        mask_BT: [B, T] bool.
    """
    return _exp(log_ratio(logp_BT, logp_old_BT, mask_BT))


def geometric_ratio(logp_BT: Array, logp_old_BT: Array, mask_BT: Array) -> Array:
    """s_i = exp((1/|y_i|) Σ_t log r_t), the same value at every token of the row.

    (2507.18071, eq. 7.) Token t's entry has gradient s_i with respect to its own log-prob and 0
    with respect to the others': it is GSPO-token, sg[s_i]·π(y_t)/sg[π(y_t)] (eq. 14). Summed over
    a row whose advantage and weight are constant this is the gradient of the sequence objective,
    eq. 5, in value and gradient; where the advantage varies by token it is the token form.

    Args: as in `token_ratio`.
    """
    delta_BT = log_ratio(logp_BT, logp_old_BT, mask_BT)
    return row_ratio(delta_BT, masked_mean(delta_BT, mask_BT, axis=1), mask_BT)


def product_ratio(logp_BT: Array, logp_old_BT: Array, mask_BT: Array) -> Array:
    """ρ_i = Π_t r_t = π(y_i)/π_old(y_i), the same value at every token of the row.

    The importance weight of a whole response as one action (2402.14740, section 3). Token t's
    entry has gradient ρ_i with respect to its own log-prob only, so with `sequence_sum` weights
    the row's gradient is ρ_i·Â_i·∇log π(y_i), while the loss value counts ρ_i·Â_i once a token.

    Args: as in `token_ratio`.
    """
    delta_BT = log_ratio(logp_BT, logp_old_BT, mask_BT)
    return row_ratio(delta_BT, masked_sum(delta_BT, mask_BT, axis=1), mask_BT)


def row_ratio(delta_BT: Array, log_ratio_B: Array, mask_BT: Array) -> Array:
    """exp(log_ratio_i) at every token of row i, with the gradient of the token's own `delta_BT`."""
    own_BT = delta_BT - lax.stop_gradient(delta_BT)  # value 0, gradient 1
    row_BT = lax.stop_gradient(log_ratio_B)[:, None] + own_BT
    return _exp(jnp.where(mask_BT, row_BT, 0))


def _exp(log_ratio_BT):
    return jnp.exp(jnp.clip(log_ratio_BT, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def unclipped(
    logp_BT: Array, logp_old_BT: Array, ratio_BT: Array, advantage_BT: Array, mask_BT: Array
) -> Array:
    """ℓ_t = −r_t·Â_t: importance-weighted policy gradient.

    (1707.06347, eq. 6.) On fresh weights the gradient is −Â_t·∇log π(y_t), REINFORCE.

    Args:
        logp_BT, logp_old_BT: unused here, part of the surrogate's contract.
        ratio_BT: [B, T] > 0.
        advantage_BT: [B, T], no gradient.
        mask_BT: [B, T] bool.
    """
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    return -ratio_BT * advantage_BT


def clipped(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    low: float,
    high: float,
) -> Array:
    """ℓ_t = −min(r_t·Â_t, clip(r_t, 1 − ε_low, 1 + ε_high)·Â_t).

    (1707.06347, eq. 7, with ε_low = ε_high; 2503.14476, eq. 10.) The gradient is 0 where Â > 0
    and r > 1 + ε_high, or Â < 0 and r < 1 − ε_low. On the bound itself it is full: the minimum is
    taken by a select, not by `jnp.minimum`, which would split the tie.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        low: ε_low ≥ 0.
        high: ε_high ≥ 0.
    """
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    bounded_BT = jnp.where(
        advantage_BT > 0,
        jnp.where(ratio_BT > 1 + high, 1 + high, ratio_BT),
        jnp.where(ratio_BT < 1 - low, 1 - low, ratio_BT),
    )
    return -bounded_BT * advantage_BT


def dual_clipped(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    low: float,
    high: float,
    cap: float,
) -> Array:
    """`clipped`, and for Â < 0 the ratio is bounded above too: ℓ_t ≤ −c·Â_t.

    −max(min(r·Â, clip(r, 1 − ε_low, 1 + ε_high)·Â), c·Â) where Â < 0   (1912.09729, eq. 5, c = 3)

    For Â < 0 the plain objective is unbounded in r, and so is its gradient: a clip takes an
    incentive away, it bounds no ratio. Past c the gradient is 0. The two-sided cap of INTELLECT-2,
    −min(min(r, δ)·Â, clip(r, 1 ± ε)·Â) (2505.07291), is this loss with c = δ: for
    Â > 0 a δ above 1 + ε_high never acts, for Â < 0 both bound r by δ.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT, low, high: as in `clipped`.
        cap: c ≥ 1, above 1 + ε_high.
    """
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    capped_BT = jnp.where((advantage_BT < 0) & (ratio_BT > cap), cap, ratio_BT)
    return clipped(logp_BT, logp_old_BT, capped_BT, advantage_BT, mask_BT, low=low, high=high)


def clean(ratio_BT: Array, advantage_BT: Array, mask_BT: Array) -> tuple[Array, Array]:
    """Select before multiplying: 0·NaN in the padding is NaN in the gradient."""
    chex.assert_equal_shape([ratio_BT, advantage_BT, mask_BT])
    return jnp.where(mask_BT, ratio_BT, 1), jnp.where(mask_BT, advantage_BT, 0)
