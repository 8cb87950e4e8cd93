"""BCO: binary classifier optimisation (2404.04656), from pairs or from single answers."""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.algorithms.preference_unpaired import UnpairedObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_anchored, preference_unpaired


def bco(*, beta: float = 0.01) -> PreferenceObjective:
    """−log σ(β·(r_w − δ)) − log σ(−β·(r_l − δ)), δ the batch's mean log-ratio, not lagged."""
    return PreferenceObjective(
        loss=bind(preference_anchored.bco, beta=beta),
        statistic=bind(preference_anchored.reward_shift),
    )


def bco_unpaired(*, beta: float = 0.01) -> UnpairedObjective:
    """The same for single answers; each class counts half in δ."""
    return UnpairedObjective(
        loss=bind(preference_unpaired.bco_unpaired, beta=beta),
        statistic=bind(preference_unpaired.class_shift),
    )
