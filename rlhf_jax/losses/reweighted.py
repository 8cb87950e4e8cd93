"""Policy surrogates that weigh or drop tokens by another rule than the clip of the ratio.

The contract is that of `losses/surrogate.py`: (logp_BT, logp_old_BT, ratio_BT, advantage_BT,
mask_BT) and numbers by keyword give loss_BT, to be minimised, 0 outside the mask with gradient
exactly 0 there. On fresh weights every one has REINFORCE's gradient −Â_t·∇log π(y_t).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.bind import Bound
from rlhf_jax.losses.surrogate import clean, clipped, dual_clipped, log_ratio, row_ratio, unclipped
from rlhf_jax.ops.masked import masked_mean


def cispo(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    high: float,
    low: float | None = None,
) -> Array:
    """ℓ_t = −sg[min(r_t, 1 + ε_high)]·Â_t·log π(y_t): the weight is clipped, never the gradient.

    (CISPO of MiniMax-M1, 2506.13585, eqs. 4, 5.) Every token keeps a gradient. The factor log π is
    what carries it: −sg[w]·Â alone would have none. The paper uses no lower bound; with `low` the
    weight is at least 1 − ε_low (verl). The bound is 1 + ε_high as in the paper and verl; TRL takes
    the absolute cap, so its 5.0 is high = 4.0 here.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        high: ε_high ≥ 0.
        low: ε_low ≥ 0; None: no lower bound.
    """
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    weight_BT = jnp.minimum(ratio_BT, 1 + high)
    if low is not None:
        weight_BT = jnp.maximum(weight_BT, 1 - low)
    return -lax.stop_gradient(weight_BT) * advantage_BT * jnp.where(mask_BT, logp_BT, 0)


def sapo(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
) -> Array:
    """ℓ_t = −(4/τ)·σ(τ·(r_t − 1))·Â_t, τ by the sign of Â_t: a soft gate instead of a clip.

    (2511.20347.) The gate's slope at r = 1 is 1 for every τ, and falls off smoothly on both sides,
    faster for a larger τ: tokens with Â ≤ 0, whose gradients raise the logits of all other tokens,
    get the larger one. At r = 1 the value is −2Â/τ, not −Â.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        tau_positive: τ > 0 where Â > 0.
        tau_negative: τ > 0 elsewhere.
    """
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    tau_BT = jnp.where(advantage_BT > 0, tau_positive, tau_negative)
    return -(4.0 / tau_BT) * jax.nn.sigmoid(tau_BT * (ratio_BT - 1.0)) * advantage_BT


def gmpo(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    low: float,
    high: float,
) -> Array:
    """ℓ_t = −s_i·Â_t, s_i = exp((1/|y_i|) Σ_t d_t), d_t the log-ratio bounded token by token.

    d_t = min(log r_t, ε_high) where Â_t > 0, max(log r_t, −ε_low) elsewhere   (2507.20673)

    The geometric mean of ratios that are clipped first, each on the side to which its advantage
    pushes. A clipped token has gradient 0 and still counts in the mean; the others have s_i (times
    their own ∇log π, as in `geometric_ratio`), so with `sequence_mean` weights the gradient is that
    of the sequence objective. The paper clips to (e^−.4, e^.4): widths are in nats, and of one
    size there; with two sizes `low` is the bound for Â ≤ 0. The ratio handed in is not read: the
    bound needs the advantage's sign, which a ratio does not see.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        low, high: ε_low, ε_high ≥ 0, nats.
    """
    delta_BT = log_ratio(logp_BT, logp_old_BT, mask_BT)
    _, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    bounded_BT = jnp.where(
        advantage_BT > 0,
        jnp.where(delta_BT > high, high, delta_BT),
        jnp.where(delta_BT < -low, -low, delta_BT),
    )
    mean_B = masked_mean(bounded_BT, mask_BT, axis=1)
    return -row_ratio(bounded_BT, mean_B, mask_BT) * advantage_BT


def dro(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    beta: float,
) -> Array:
    """ℓ_t = −Â_t·log π(y_t) + (β/2)·(log π(y_t) − log π_old(y_t))²: no ratio, a quadratic tether.

    (2405.19107, the policy's part of DRO, token by token.) The gradient is
    −(Â − β·log r)·∇log π: it vanishes where the log-ratio has moved by Â/β.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        beta: β > 0.
    """
    delta_BT = log_ratio(logp_BT, logp_old_BT, mask_BT)
    _, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    return -advantage_BT * jnp.where(mask_BT, logp_BT, 0) + 0.5 * beta * delta_BT**2


def probability_masked(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    threshold: float,
) -> Array:
    """ℓ_t = −r_t·Â_t, and 0 where the token's probability has moved too far the way Â pushes it.

    Dropped: Â_t > 0 and π − π_old > δ, or Â_t < 0 and π − π_old < −δ   (DPPO, binary total
    variation, 2602.04879). A ratio of 2 at probability 1e-4 moves next to nothing and stays; a
    ratio of 1.2 at .8 is dropped. Dropped tokens stay in the denominators: it is a weight.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        threshold: δ in [0, 1], a difference of probabilities.
    """
    moved_BT = jnp.where(mask_BT, jnp.exp(logp_BT) - jnp.exp(logp_old_BT), 0)
    ratio_BT, advantage_BT = clean(ratio_BT, advantage_BT, mask_BT)
    gone_BT = jnp.sign(advantage_BT) * moved_BT > threshold
    return jnp.where(gone_BT, 0, -ratio_BT * advantage_BT)


def off_policy_masked(
    logp_BT: Array,
    logp_old_BT: Array,
    ratio_BT: Array,
    advantage_BT: Array,
    mask_BT: Array,
    *,
    inner: Bound,
    threshold: float,
) -> Array:
    """`inner`, and 0 for negative advantages in rows that have drifted too far from π_old.

    Dropped: Â_t < 0 and (1/|y_i|) Σ_t (log π_old − log π) > δ   (DeepSeek-V3.2, 2512.02556)

    A row that the policy no longer says teaches nothing by being pushed down further. Dropped
    tokens stay in the denominators.

    Args:
        logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT: as in `unclipped`.
        inner: the surrogate that is masked.
        threshold: δ ≥ 0, nats a token.
    """
    loss_BT = inner(logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT)
    drift_B = masked_mean(-log_ratio(logp_BT, logp_old_BT, mask_BT), mask_BT, axis=1)
    gone_BT = (advantage_BT < 0) & (drift_B > threshold)[:, None]
    return jnp.where(gone_BT, 0, loss_BT)


# −Â_t times something: where the advantage is 0 there is no gradient, whatever the ratio is.
_OF_ADVANTAGE = (unclipped, clipped, dual_clipped, cispo, sapo, gmpo, probability_masked)


def needs_advantage(surrogate: Bound) -> bool:
    """True where it is known that tokens of advantage 0 get no gradient from this surrogate."""
    if surrogate.fn is off_policy_masked:
        return needs_advantage(surrogate.kw["inner"])
    return surrogate.fn in _OF_ADVANTAGE
