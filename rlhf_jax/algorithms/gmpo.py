"""GMPO: the geometric mean of clipped token ratios (2507.20673)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import reweighted
from rlhf_jax.losses.aggregate import sequence_mean
from rlhf_jax.losses.surrogate import token_ratio


def gmpo(
    *, low: float = 0.4, high: float = 0.4, ddof: int = 0, eps: float = 1e-6
) -> PolicyObjective:
    """J = E[1/G Σ_i Â_i (Π_t r′_t)^{1/|o_i|}], r′ the ratio clipped where Â_i pushes it

    GSPO's ratio, but clipped token by token before the mean, so one far token neither drags the
    row nor silences it. The clip of (e^−.4, e^.4) is the paper's; no KL.

    Args:
        low, high: clip widths ≥ 0, nats.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.
    """
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(token_ratio),
        surrogate=bind(reweighted.gmpo, low=low, high=high),
        aggregate=bind(sequence_mean),
    )
