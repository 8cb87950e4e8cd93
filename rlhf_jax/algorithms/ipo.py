"""IPO: identity preference optimisation (2310.12036), summed and averaged."""

from __future__ import annotations

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses import preference as losses


def ipo(*, beta: float = 0.1) -> PreferenceObjective:
    """(h − 1/(2β))² on sums of response tokens (eq. 17, whose τ is β): the paper's form."""
    return PreferenceObjective(loss=bind(losses.ipo, beta=beta))


def ipo_averaged(*, beta: float = 0.1) -> PreferenceObjective:
    """The same on nats a token: what TRL trains, and the authors' language-model runs."""
    return PreferenceObjective(
        loss=bind(losses.ipo_averaged, beta=beta), reward=bind(losses.mean_log_ratio)
    )
