"""GRPO: group-relative policy optimisation (DeepSeekMath, 2402.03300)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import sequence_mean
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.losses.surrogate import clipped, token_ratio


def grpo(
    *,
    beta: float | None = 0.04,
    low: float = 0.2,
    high: float = 0.2,
    ddof: int = 0,
    eps: float = 1e-6,
) -> PolicyObjective:
    """J = E[1/G Σ_i 1/|o_i| Σ_t min(r_t Â_i, clip(r_t, 1 ± ε) Â_i) − β k3_t]   (eq. 3)

    Â_i = (R_i − mean)/std over the G samples of a prompt. β = .04 is the paper's; it does not
    state ε, .2 is PPO's. With one update a rollout and β = None the loss is 0 by construction
    (centred advantages at ratio 1) while its gradient is not: watch the score.

    Args:
        beta: KL coefficient in the loss; None builds no reference.
        low, high: clip widths ≥ 0.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.
    """
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=low, high=high),
        aggregate=bind(sequence_mean),
        loss_kl=None if beta is None else KL(estimator=bind(k3), coef=beta),
    )
