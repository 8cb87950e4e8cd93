"""VAPO: PPO for long answers, with decoupled and length-adaptive GAE (2504.05118)."""

from __future__ import annotations

from rlhf_jax.advantages import gae_adaptive
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.losses.value import ValueTerm, squared
from rlhf_jax.ops.masked import whiten


def vapo(
    *,
    alpha: float = 0.05,
    low: float = 0.2,
    high: float = 0.28,
    value_coef: float = 0.1,
) -> PolicyObjective:
    """PPO's loss with λ = 1 − 1/(α·l) in the policy's GAE and λ = 1 in the critic's targets.

    Clip-higher, token mean, several samples a prompt, no KL. Two of the paper's parts
    are not in a loss of this form and not here: pretraining the critic on Monte-Carlo returns,
    and the likelihood of correct answers added with weight .1.

    Args:
        alpha: α > 0; rows of at most 1/α tokens get λ = 0.
        low, high: clip widths ≥ 0.
        value_coef: of the critic's loss, ≥ 0.
    """
    return PolicyObjective(
        advantage=bind(gae_adaptive, gamma=1.0, alpha=alpha),
        whiten=bind(whiten),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=low, high=high),
        aggregate=bind(token_mean),
        value=ValueTerm(loss=bind(squared), coef=value_coef, lam=1.0),
    )
