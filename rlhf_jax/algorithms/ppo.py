"""PPO with a critic and a KL charged to the reward (1707.06347 as used in 1909.08593)."""

from __future__ import annotations

from rlhf_jax.advantages import gae
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.kl import KL, k1
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.losses.value import ValueTerm, clipped_squared
from rlhf_jax.ops.masked import whiten


def ppo(
    *,
    kl_coef: float | None = 0.05,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip: float = 0.2,
    value_clip: float = 0.2,
    value_coef: float = 0.1,
) -> PolicyObjective:
    """L = −min(r_t Â_t, clip(r_t, 1 ± ε) Â_t) + c₁·V-loss, token mean; Â from GAE, whitened.

    (1707.06347, eqs. 7, 9, 11.) r_t = score at the end − β·k1_t. Numbers: γ = 1, λ = .95, clips
    .2, c₁ = .1 of lm-human-preferences (1909.08593), repeated by 2403.17031; β = .05 is the
    latter's for summarisation. k1 in the reward has the true gradient of KL(π ‖ π_ref).

    Args:
        kl_coef: β ≥ 0; None builds no reference. For an adaptive β replace `reward_kl` by
            `KL(estimator=bind(k1), coef=.15, controller=bind(adaptive_coef, ...))`.
        gamma, lam: of GAE, in [0, 1].
        clip: ε ≥ 0 of the policy.
        value_clip: c ≥ 0 of the critic.
        value_coef: c₁ ≥ 0.
    """
    return PolicyObjective(
        advantage=bind(gae, gamma=gamma, lam=lam),
        whiten=bind(whiten),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=clip, high=clip),
        aggregate=bind(token_mean),
        reward_kl=None if kl_coef is None else KL(estimator=bind(k1), coef=kl_coef),
        value=ValueTerm(loss=bind(clipped_squared, clip=value_clip), coef=value_coef),
    )
