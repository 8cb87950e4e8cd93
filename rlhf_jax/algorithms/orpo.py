"""ORPO: odds-ratio preference optimisation (2403.07691): no reference, no separate SFT."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_free as losses
from rlhf_jax.losses.nll import NLL, averaged


def orpo(*, beta: float = 0.1, reduce: Callable = averaged) -> PreferenceObjective:
    """L_SFT + λ·L_OR   (eq. 6, whose λ is β here)

    L_SFT is the preferred side's NLL over its response tokens, averaged within the response. The
    authors' code and TRL count the prompt's tokens in it too; here a prompt is never trained on.

    Args:
        beta: λ > 0, .1 in the paper (.2 for one model).
        reduce: what the NLL is divided by, see `losses.nll`.
    """
    return PreferenceObjective(
        loss=bind(losses.orpo, beta=beta),
        reward=bind(losses.mean_logp),
        nll=NLL(coef=1.0, reduce=reduce),
    )
