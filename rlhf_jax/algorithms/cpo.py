"""CPO: contrastive preference optimisation (2401.08417): DPO with a uniform reference, and NLL."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_free as losses
from rlhf_jax.losses.nll import NLL, token_mean


def cpo(
    *, beta: float = 0.1, coef: float | None = 1.0, reduce: Callable = token_mean
) -> PreferenceObjective:
    """−log σ(β·(log π(y_w) − log π(y_l))) + α·NLL(y_w)   (α 1 in the paper)

    The paper writes the NLL as a sum over the answer; its code, and TRL, divide by the preferred
    tokens of the batch: ours by default.

    Args:
        beta: β > 0.
        coef: α ≥ 0; None: no NLL term.
        reduce: what the NLL is divided by, see `losses.nll`.
    """
    return PreferenceObjective(
        loss=bind(losses.cpo, beta=beta),
        reward=bind(losses.total_logp),
        nll=None if coef is None else NLL(coef=coef, reduce=reduce),
    )
