"""DPO and the losses that, like it, look at the difference of a pair's two sides.

Every paired loss takes (logp_BS, logp_ref_BS, length_BS) and numbers by keyword, and gives loss_B;
side 0 is the preferred one. A loss that needs a statistic of the whole batch takes it fourth (see
`preference_anchored.bco`, `preference_transport`), one that reads no reference is handed None
(`preference_free`).

    logp_BS      Σ over the side's counted tokens of log π, nats, ≤ 0: the sum, not the mean
    logp_ref_BS  the same under the reference, no gradient
    length_BS    counted tokens, the same that were summed; a side without any is 0, not NaN

r = log π − log π_ref is a side's log-ratio and h = r_w − r_l the pair's. Swapping the sides turns
h into −h: no loss here is symmetric. With π = π_ref, h is 0 and −log σ(βh) is ln 2 = .693147 for
every β: the best test that reference and policy were scored alike.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid, relu, sigmoid

# --- implicit rewards: what a loss compares, in nats, without its β ------------------------------


def log_ratio(logp_BS: Array, logp_ref_BS: Array, length_BS: Array) -> Array:
    """r = log π(y) − log π_ref(y), summed over the response (2305.18290, section 4).

    Args: [B, S] each, as in the head of this file.
    """
    chex.assert_equal_shape([logp_BS, logp_ref_BS, length_BS])
    return logp_BS - logp_ref_BS


def mean_log_ratio(logp_BS: Array, logp_ref_BS: Array, length_BS: Array) -> Array:
    """r/|y|: nats a token. Args as in `log_ratio`."""
    return log_ratio(logp_BS, logp_ref_BS, length_BS) / tokens(length_BS)


def tokens(length_BS: Array) -> Array:
    """max(|y|, 1): a divisor that a side without counted tokens cannot make 0."""
    return jnp.maximum(length_BS, 1)


def lead(reward_BS: Array) -> Array:
    """What the preferred side is ahead by."""
    chex.assert_shape(reward_BS, (None, 2))
    return reward_BS[:, 0] - reward_BS[:, 1]


# --- losses --------------------------------------------------------------------------------------


def dpo(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = −log σ(β·h)   (2305.18290, eq. 7)

    Gradient −β·σ(−βh)·(∇log π(y_w) − ∇log π(y_l)). π_ref .15/.12, π .20/.08 and β .1 give .659090;
    a walk-through in circulation prints .676, which is the loss at half of that margin.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in the head of this file; lengths are not read.
        beta: β > 0, .1 in the paper (.5 for summarisation).
    """
    return -log_sigmoid(beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS)))


def dpo_averaged(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = −log σ(β·(r_w/|y_w| − r_l/|y_l|)): length-normalised DPO (Tulu 3, 2411.15124, section 5).

    Args:
        logp_BS, logp_ref_BS, length_BS: as in the head of this file.
        beta: β > 0, 5 in the paper: nats a token are small.
    """
    return -log_sigmoid(beta * lead(mean_log_ratio(logp_BS, logp_ref_BS, length_BS)))


def cdpo(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float, smoothing: float
) -> Array:
    """ℓ = −(1 − ε)·log σ(βh) − ε·log σ(−βh): labels that are wrong with probability ε.

    (Mitchell 2023, "A note on DPO with noisy preferences".) Least at σ(βh) = 1 − ε, so the margin
    stays finite. TRL's `sigmoid` ignores its label smoothing; OpenRLHF applies it, as here.

    Args:
        logp_BS, logp_ref_BS, length_BS, beta: as in `dpo`.
        smoothing: ε in [0, .5).
    """
    margin_B = beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS))
    return -(1 - smoothing) * log_sigmoid(margin_B) - smoothing * log_sigmoid(-margin_B)


def robust_dpo(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float, smoothing: float
) -> Array:
    """ℓ = (−(1 − ε)·log σ(βh) + ε·log σ(−βh)) / (1 − 2ε)   (2403.00409, section 3.1)

    Its mean over labels flipped with probability ε is the loss on clean labels. May be negative.

    Args:
        logp_BS, logp_ref_BS, length_BS, beta: as in `dpo`.
        smoothing: ε in [0, .5).
    """
    margin_B = beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS))
    flipped_B = smoothing * log_sigmoid(-margin_B)
    return (flipped_B - (1 - smoothing) * log_sigmoid(margin_B)) / (1 - 2 * smoothing)


def hinge(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = max(0, 1 − β·h): SLiC's hinge on DPO's margin (2305.10425, section 2; 2309.06657).

    Args:
        logp_BS, logp_ref_BS, length_BS: as in the head of this file.
        beta: β > 0; 1/β is the margin that is asked for, in nats.
    """
    return relu(1 - beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS)))


def ipo(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = (h − 1/(2β))²   (2310.12036, eq. 17, whose τ is β here)

    The log-ratios are sums, as in the paper's equation, OpenRLHF and the DPO authors' code. TRL
    averages them over tokens: `ipo_averaged`.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in the head of this file; lengths are not read.
        beta: τ > 0.
    """
    return (lead(log_ratio(logp_BS, logp_ref_BS, length_BS)) - 0.5 / beta) ** 2


def ipo_averaged(logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float) -> Array:
    """ℓ = (r_w/|y_w| − r_l/|y_l| − 1/(2β))²: IPO on nats a token, as TRL has it.

    (2310.12036, eq. 17, averaged; the authors confirmed it for their language-model runs.)

    Args: as in `ipo`.
    """
    return (lead(mean_log_ratio(logp_BS, logp_ref_BS, length_BS)) - 0.5 / beta) ** 2


def exo(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float, soft: float = 1e-3
) -> Array:
    """ℓ = KL(σ(βh) ‖ 1 − ε) = σ(βh)·log(σ(βh)/(1 − ε)) + σ(−βh)·log(σ(−βh)/ε)

    (2402.00856, section 3.2, two completions.) The reverse KL from the policy's preference to the
    label's, softened by ε: DPO is the forward one. It saturates: at h → −∞ the gradient is 0.

    Args:
        logp_BS, logp_ref_BS, length_BS, beta: as in `dpo`.
        soft: ε in (0, .5); at 0 the loss is infinite.
    """
    margin_B = beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS))
    right_B = sigmoid(margin_B) * (log_sigmoid(margin_B) - jnp.log1p(-soft))
    return right_B + sigmoid(-margin_B) * (log_sigmoid(-margin_B) - jnp.log(soft))


def discopop(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float, tau: float = 0.05
) -> Array:
    """ℓ = (1 − m)·(−log σ(ρ)) + m·e^(−ρ), ρ = β·h, m = σ(ρ/τ)   (2406.08414, LRML)

    Not convex: at τ = .05 dℓ/dρ is +.784264 at ρ = 0, so the first step from the reference *lowers*
    the margin, to a minimum at ρ = −.118570; beyond the maximum at +.072006 it falls again.

    Args:
        logp_BS, logp_ref_BS, length_BS: as in the head of this file.
        beta: β > 0, .05 in the paper.
        tau: τ > 0; below 1 the loss stays finite at any margin.
    """
    margin_B = beta * lead(log_ratio(logp_BS, logp_ref_BS, length_BS))
    # m·e^(−ρ) in logs: e^(−ρ) alone overflows where m is 0
    grown_B = jnp.exp(log_sigmoid(margin_B / tau) - margin_B)
    return grown_B - sigmoid(-margin_B / tau) * log_sigmoid(margin_B)


def dpop(
    logp_BS: Array, logp_ref_BS: Array, length_BS: Array, *, beta: float, penalty: float
) -> Array:
    """ℓ = −log σ(β·(h − λ·max(0, −r_w)))   (2402.13228, section 4)

    DPO can raise the margin while both sides fall; here the preferred one may not fall below the
    reference for free.

    Args:
        logp_BS, logp_ref_BS, length_BS, beta: as in `dpo` (β .3 in the paper).
        penalty: λ ≥ 0, 5 to 500 in the paper.
    """
    ratio_BS = log_ratio(logp_BS, logp_ref_BS, length_BS)
    return -log_sigmoid(beta * (lead(ratio_BS) - penalty * relu(-ratio_BS[:, 0])))
