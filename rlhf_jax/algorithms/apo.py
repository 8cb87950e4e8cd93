"""APO: anchored preference optimisation (2408.06266), from pairs or from single answers."""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.algorithms.preference_unpaired import UnpairedObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_anchored, preference_unpaired


def apo_zero(*, beta: float = 0.1) -> PreferenceObjective:
    """Raise the preferred side, lower the other: for a policy worse than its preferred data."""
    return PreferenceObjective(loss=bind(preference_anchored.apo_zero, beta=beta))


def apo_down(*, beta: float = 0.1) -> PreferenceObjective:
    """Lower both sides, the other one more: for a policy better than its preferred data."""
    return PreferenceObjective(loss=bind(preference_anchored.apo_down, beta=beta))


def apo_zero_unpaired(*, beta: float = 0.1) -> UnpairedObjective:
    """`apo_zero` a side at a time: KTO with z₀ = 0, which needs no mismatched pairs."""
    return UnpairedObjective(loss=bind(preference_unpaired.apo_zero_unpaired, beta=beta))
