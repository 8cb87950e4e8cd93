"""AOT: alignment via optimal transport (2406.05882): compare distributions, not pairs.

Sorted over the whole batch, micro-batches and devices alike: a batch is what the distribution is
estimated from, so larger is better.
"""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_transport as losses


def aot(*, beta: float = 0.1) -> PreferenceObjective:
    """Sorted leads of the policy over sorted leads of the reference."""
    return PreferenceObjective(
        loss=bind(losses.aot, beta=beta), statistic=bind(losses.matched_leads)
    )


def aot_unpaired(*, beta: float = 0.1) -> PreferenceObjective:
    """Sorted log-ratios of the preferred sides over those of the others."""
    return PreferenceObjective(
        loss=bind(losses.aot_unpaired, beta=beta), statistic=bind(losses.matched_sides)
    )
