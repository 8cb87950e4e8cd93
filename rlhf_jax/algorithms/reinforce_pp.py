"""REINFORCE++: returns whitened over the whole batch, PPO's clip, no critic (2501.03262)."""

from __future__ import annotations

from rlhf_jax.advantages import group_centre, reward_to_go
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.kl import KL, k1, k2
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.ops.masked import whiten


def reinforce_pp(
    *, kl_coef: float | None = 0.01, gamma: float = 1.0, clip: float = 0.2
) -> PolicyObjective:
    """Â_t = Σ_{s≥t} γ^{s−t}(r_s − β k1_s), then (Â − mean)/std over all tokens of the batch.

    (Section 3; token-level clip, token mean.) The mean and deviation are the population's, over
    the counted tokens of the whole rollout, with 1e-8 in the variance. β = .01 is OpenRLHF's
    default.

    Args:
        kl_coef: β ≥ 0 in the reward; None builds no reference.
        gamma: γ in [0, 1].
        clip: ε ≥ 0.
    """
    return PolicyObjective(
        advantage=bind(reward_to_go, gamma=gamma),
        whiten=bind(whiten),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=clip, high=clip),
        aggregate=bind(token_mean),
        reward_kl=None if kl_coef is None else KL(estimator=bind(k1), coef=kl_coef),
    )


def reinforce_pp_baseline(*, kl_coef: float | None = 0.01, clip: float = 0.2) -> PolicyObjective:
    """The variant with a group baseline: Â_i = R_i − mean(group), then whitened; k2 in the loss.

    Args: as in `reinforce_pp`.
    """
    return PolicyObjective(
        advantage=bind(group_centre),
        whiten=bind(whiten),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=clip, high=clip),
        aggregate=bind(token_mean),
        loss_kl=None if kl_coef is None else KL(estimator=bind(k2), coef=kl_coef),
    )
