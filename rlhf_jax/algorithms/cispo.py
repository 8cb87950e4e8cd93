"""CISPO: the importance weight is clipped, no token loses its gradient (2506.13585)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import reweighted
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.surrogate import token_ratio


def cispo(
    *, high: float = 4.0, low: float | None = None, ddof: int = 0, eps: float = 1e-6
) -> PolicyObjective:
    """J = E[1/Σ|o_i| Σ_i Σ_t sg[min(r_t, 1 + ε_high)] Â_i log π(o_t)]   (eq. 4)

    Group-normalised advantages, token mean, no KL (section 3.1). The paper does not state ε_high;
    4.0 is the absolute cap of 5 at which 2510.13786 finds the result insensitive to it.

    Args:
        high: ε_high ≥ 0 of the cap 1 + ε_high.
        low: ε_low ≥ 0 of a lower bound 1 − ε_low; None: none, as in the paper.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.
    """
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(token_ratio),
        surrogate=bind(reweighted.cispo, high=high, low=low),
        aggregate=bind(token_mean),
    )
