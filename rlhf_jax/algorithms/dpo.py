"""DPO: direct preference optimisation (2305.18290), and the forms that keep its logistic loss.

Online DPO (2402.04792) is `dpo()` on pairs that the policy itself has just written.
"""

from __future__ import annotations

from collections.abc import Callable

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as losses
from rlhf_jax.losses.nll import NLL, averaged
from rlhf_jax.losses.preference_free import wpo_weight


def dpo(*, beta: float = 0.1) -> PreferenceObjective:
    """−log σ(β·h), sums of response tokens (eq. 7). β .1; .5 for summarisation in the paper."""
    return PreferenceObjective(loss=bind(losses.dpo, beta=beta))


def spin(*, lam: float = 0.1) -> PreferenceObjective:
    """SPIN (2401.01335, eq. 4.7 with the logistic loss): `dpo(beta=lam)`.

    What differs is the data: the preferred side is a demonstration, the other one the model's own
    answer of the last round, and the reference is that round's model.
    """
    return dpo(beta=lam)


def cdpo(*, beta: float = 0.1, smoothing: float = 0.1) -> PreferenceObjective:
    """Conservative DPO: labels wrong with probability `smoothing` in [0, .5)."""
    return PreferenceObjective(loss=bind(losses.cdpo, beta=beta, smoothing=smoothing))


def robust_dpo(*, beta: float = 0.1, smoothing: float = 0.1) -> PreferenceObjective:
    """Robust DPO (2403.00409): unbiased for the loss on clean labels; may be negative."""
    return PreferenceObjective(loss=bind(losses.robust_dpo, beta=beta, smoothing=smoothing))


def dpo_averaged(*, beta: float = 5.0) -> PreferenceObjective:
    """Length-normalised DPO (Tulu 3, 2411.15124), β 5."""
    return PreferenceObjective(
        loss=bind(losses.dpo_averaged, beta=beta), reward=bind(losses.mean_log_ratio)
    )


def dpop(*, beta: float = 0.3, penalty: float = 50.0) -> PreferenceObjective:
    """DPO-Positive (2402.13228): the preferred side may not fall below the reference for free."""
    return PreferenceObjective(loss=bind(losses.dpop, beta=beta, penalty=penalty))


def rpo(
    *, beta: float = 0.1, coef: float = 1.0, reduce: Callable = averaged
) -> PreferenceObjective:
    """DPO + α·NLL of the preferred side (2404.19733, eq. 1: α 1, the NLL averaged over tokens).

    Sources differ in what the NLL is divided by: the paper by the answer's length; 2405.16436
    (α .005) sums, `reduce=nll.summed`; TRL divides by the tokens of the batch,
    `reduce=nll.token_mean`.
    """
    return PreferenceObjective(loss=bind(losses.dpo, beta=beta), nll=NLL(coef=coef, reduce=reduce))


def wpo(*, beta: float = 0.01) -> PreferenceObjective:
    """Weighted DPO (2406.11827): pairs that the policy itself would write weigh more.

    `losses.preference_free.wpo_weight`: the paper's weight without its alignment term.
    """
    return PreferenceObjective(loss=bind(losses.dpo, beta=beta), weigh=bind(wpo_weight))
