"""KTO: Kahneman-Tversky optimisation (2402.01306), from single answers, each desirable or not."""

from __future__ import annotations

from rlhf_jax.algorithms.preference_unpaired import UnpairedObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_unpaired as losses


def kto(
    *, beta: float = 0.1, desirable_weight: float = 1.0, undesirable_weight: float = 1.0
) -> UnpairedObjective:
    """λ_y − v(x, y), about z₀ = max(0, mean log-ratio of mismatched pairs)   (eq. 8)

    z₀ is of the whole batch, where the authors' code takes each micro-batch's; no gradient.

    Args:
        beta: β > 0.
        desirable_weight, undesirable_weight: λ_D, λ_U ≥ 0; the paper asks for λ_D·n_D/(λ_U·n_U)
            in [1, 4/3].
    """
    return UnpairedObjective(
        loss=bind(
            losses.kto,
            beta=beta,
            desirable_weight=desirable_weight,
            undesirable_weight=undesirable_weight,
        ),
        statistic=bind(losses.mismatched_kl),
    )
