"""SimPO: simple preference optimisation with a reference-free reward (2405.14734)."""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference_free as losses


def simpo(*, beta: float = 2.0, margin: float = 1.0) -> PreferenceObjective:
    """−log σ(β·(log π(y_w)/|y_w| − log π(y_l)/|y_l|) − γ)   (eq. 6)

    Args:
        beta: β > 0, 2 to 2.5 in the paper (10 for instruct models).
        margin: γ itself, not γ/β; the paper's γ/β is .1 to .8.
    """
    return PreferenceObjective(
        loss=bind(losses.simpo, beta=beta, margin=margin), reward=bind(losses.mean_logp)
    )
