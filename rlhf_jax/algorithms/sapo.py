"""SAPO: a soft gate in place of the clip (2511.20347)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import reweighted
from rlhf_jax.losses.aggregate import sequence_mean
from rlhf_jax.losses.surrogate import token_ratio


def sapo(
    *,
    tau_positive: float = 1.0,
    tau_negative: float = 1.05,
    ddof: int = 0,
    eps: float = 1e-6,
) -> PolicyObjective:
    """J = E[1/G Σ_i 1/|y_i| Σ_t (4/τ) σ(τ(r_t − 1)) Â_i], τ by the sign of Â_i

    GRPO with another surrogate and no KL. At r = 1 the slope is 1 for every τ, so the first update
    after sampling is GRPO's; the loss value there is −2Â/τ and means nothing by itself.

    Args:
        tau_positive, tau_negative: τ > 0; the larger for negative advantages damps those sooner.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.
    """
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(token_ratio),
        surrogate=bind(reweighted.sapo, tau_positive=tau_positive, tau_negative=tau_negative),
        aggregate=bind(sequence_mean),
    )
