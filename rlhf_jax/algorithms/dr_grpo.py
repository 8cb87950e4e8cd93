"""Dr. GRPO: GRPO without its two biases (2503.20783)."""

from __future__ import annotations

from rlhf_jax.advantages import group_centre
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import constant_length
from rlhf_jax.losses.surrogate import clipped, token_ratio


def dr_grpo(*, length: int, low: float = 0.2, high: float = 0.2) -> PolicyObjective:
    """J = E[1/(G·L) Σ_i Σ_t min(r_t Â_i, clip(r_t, 1 ± ε) Â_i)], Â_i = R_i − mean   (section 3.2)

    GRPO without the standard deviation (which favours very easy and very hard prompts), without
    1/|o_i| (which favours long wrong answers), and without KL: two biases less, no claim about
    the variance. The constant L is the authors' code, not the equation. Against GRPO exactly
    `advantage`, `aggregate`, `loss_kl` differ.

    Args:
        length: L, the most tokens that a response may have.
        low, high: clip widths ≥ 0.
    """
    return PolicyObjective(
        advantage=bind(group_centre),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=low, high=high),
        aggregate=bind(constant_length, length=length),
    )
