"""ReMax: REINFORCE with the greedy response's score as baseline (2310.10505)."""

from __future__ import annotations

from rlhf_jax.advantages import greedy_baseline
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import sequence_sum
from rlhf_jax.losses.kl import KL, k1
from rlhf_jax.losses.surrogate import token_ratio, unclipped


def remax(*, kl_coef: float | None = 0.05) -> PolicyObjective:
    """∇J = E[Σ_t ∇log π(y_t) (Σ_{s≥t} r_s − r(x, ȳ))], ȳ the greedy response

    One greedy generation more a prompt, no critic and no group: G = 1 will do. The paper's β
    depends on its reward model; .05 is that of `ppo`.

    Args:
        kl_coef: β ≥ 0 in the reward; None builds no reference.
    """
    return PolicyObjective(
        advantage=bind(greedy_baseline),
        ratio=bind(token_ratio),
        surrogate=bind(unclipped),
        aggregate=bind(sequence_sum),
        reward_kl=None if kl_coef is None else KL(estimator=bind(k1), coef=kl_coef),
    )
