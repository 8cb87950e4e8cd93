"""Policy surrogates as scalar loops: one row of log-probs in, one row of losses out."""

from __future__ import annotations

import inspect
import math

# --- one token -----------------------------------------------------------------------------------


def unclipped(ratio, advantage):
    return -ratio * advantage


def clipped(ratio, advantage, *, low, high):
    bounded = min(max(ratio, 1 - low), 1 + high)
    return -min(ratio * advantage, bounded * advantage)


def dual_clipped(ratio, advantage, *, low, high, cap):
    objective = -clipped(ratio, advantage, low=low, high=high)
    return -max(objective, cap * advantage) if advantage < 0 else -objective


def cispo(ratio, advantage, logp, *, high, low=None):
    weight = min(ratio, 1 + high)
    return -(weight if low is None else max(weight, 1 - low)) * advantage * logp


def sapo(ratio, advantage, *, tau_positive, tau_negative):
    tau = tau_positive if advantage > 0 else tau_negative
    return -4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage


def dro(ratio, advantage, logp, old, *, beta):
    return -advantage * logp + beta / 2 * (logp - old) ** 2


def probability_masked(ratio, advantage, logp, old, *, threshold):
    moved = math.exp(logp) - math.exp(old)
    gone = moved > threshold if advantage > 0 else moved < -threshold
    return 0.0 if gone and advantage != 0 else -ratio * advantage


# --- one row: what a token costs depends on the others -------------------------------------------


def gmpo(logp_T, old_T, ratio_T, advantage_T, mask_T, *, low, high):
    at = [t for t, m in enumerate(mask_T) if m]
    bounded = [
        min(logp_T[t] - old_T[t], high) if advantage_T[t] > 0 else max(logp_T[t] - old_T[t], -low)
        for t in at
    ]
    ratio = math.exp(sum(bounded) / len(at)) if at else 1.0
    return [-ratio * a if m else 0.0 for a, m in zip(advantage_T, mask_T, strict=True)]


def off_policy_masked(logp_T, old_T, ratio_T, advantage_T, mask_T, *, inner, threshold):
    row = surrogate_row(inner, logp_T, old_T, ratio_T, advantage_T, mask_T)
    gaps = [b - a for a, b, m in zip(logp_T, old_T, mask_T, strict=True) if m]
    far = bool(gaps) and sum(gaps) / len(gaps) > threshold
    return [0.0 if far and a < 0 else x for x, a in zip(row, advantage_T, strict=True)]


_HERE = globals()
# Their importance weight carries no gradient: differences are taken with the weight held still.
STOPPED = ("cispo",)


def surrogate_row(bound, logp_T, old_T, ratio_T, advantage_T, mask_T):
    """The loop of this name over one row; 0 outside the mask."""
    fn = _HERE[bound.fn.__name__]
    inputs = {"logp_T": logp_T, "old_T": old_T, "advantage_T": advantage_T, "ratio_T": ratio_T}
    if "mask_T" in inspect.signature(fn).parameters:
        return fn(**inputs, mask_T=mask_T, **bound.kw)
    names = [
        n for n in ("ratio", "advantage", "logp", "old") if n in inspect.signature(fn).parameters
    ]
    columns = [inputs[f"{n}_T"] for n in names]
    return [fn(*x, **bound.kw) if m else 0.0 for *x, m in zip(*columns, mask_T, strict=True)]
