"""RLOO: REINFORCE with a leave-one-out baseline (2402.14740)."""

from __future__ import annotations

from rlhf_jax.advantages import leave_one_out
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import sequence_sum
from rlhf_jax.losses.kl import KL, k1
from rlhf_jax.losses.surrogate import product_ratio, unclipped


def rloo(*, kl_coef: float | None = 0.03) -> PolicyObjective:
    """∇J = 1/k Σ_i [R_i − 1/(k−1) Σ_{j≠i} R_j] ∇log π(y_i),  R = score − β log π(y)/π_ref(y)

    (eqs. 5, 6.) The response is one action: k1 is charged token by token and the leave-one-out
    baseline is taken of the sums, so the KL of the whole sequence is inside R. The ratio is the
    product over the sequence, 1 for the first update after sampling, as in the paper.

    Args:
        kl_coef: β ≥ 0, .03 for summarisation and .10 for dialogue in the paper; None builds no
            reference.
    """
    return PolicyObjective(
        advantage=bind(leave_one_out),
        ratio=bind(product_ratio),
        surrogate=bind(unclipped),
        aggregate=bind(sequence_sum),
        reward_kl=None if kl_coef is None else KL(estimator=bind(k1), coef=kl_coef),
    )
