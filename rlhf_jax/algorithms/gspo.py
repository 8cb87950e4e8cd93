"""GSPO: group sequence policy optimisation (2507.18071)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import sequence_mean
from rlhf_jax.losses.surrogate import clipped, geometric_ratio


def gspo(
    *, low: float = 3e-4, high: float = 4e-4, ddof: int = 0, eps: float = 1e-6
) -> PolicyObjective:
    """J = E[1/G Σ_i min(s_i Â_i, clip(s_i, 1 − ε_low, 1 + ε_high) Â_i)],  s_i = (Π_t r_t)^{1/|y_i|}

    (Eqs. 5–7.) The ratio is the geometric mean over the response, so its deviations are smaller
    by the length and so are the clip widths, 3e-4 and 4e-4 (section 5.1). No KL. GSPO-token
    (eqs. 13, 14) is the same record with an advantage that varies by token.

    Args:
        low, high: clip widths ≥ 0.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.
    """
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(geometric_ratio),
        surrogate=bind(clipped, low=low, high=high),
        aggregate=bind(sequence_mean),
    )
