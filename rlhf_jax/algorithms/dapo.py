"""DAPO: clip-higher, token-level loss, over-length penalty, mixed groups only (2503.14476)."""

from __future__ import annotations

from rlhf_jax.advantages import group_norm, mixed_group
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.algorithms.shaping import overlong_penalty
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.surrogate import clipped, token_ratio


def dapo(
    *,
    low: float = 0.2,
    high: float = 0.28,
    max_length: int | None = None,
    cache: int | None = None,
    ddof: int = 0,
    eps: float = 1e-6,
) -> PolicyObjective:
    """J = E[1/Σ|o_i| Σ_i Σ_t min(r_t Â_i, clip(r_t, 1 − ε_low, 1 + ε_high) Â_i)], 0 < #correct < G

    (Eq. 8.) ε .2/.28, no KL. A group whose scores (before the length penalty) are all equal is
    dropped; sampling again until the batch is full is the loop's business.

    Args:
        low, high: ε_low, ε_high ≥ 0.
        max_length, cache: L and C of the over-length penalty in tokens (16,384 + 4,096 and 4,096
            in the paper); both None for none.
        ddof, eps: of the standard deviation, see `advantages.group_norm`.

    Raises:
        ConfigError: only one of `max_length` and `cache` is given, or cache > max_length.
    """
    shape_score = ()
    if (max_length is None) != (cache is None):
        raise ConfigError(
            f"dapo(max_length={max_length}, cache={cache}): the over-length penalty needs both"
        )
    if max_length is not None:
        if cache > max_length:
            raise ConfigError(f"dapo(cache={cache}) is above max_length={max_length}")
        shape_score = (bind(overlong_penalty, max_length=max_length, cache=cache),)
    return PolicyObjective(
        advantage=bind(group_norm, ddof=ddof, eps=eps),
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=low, high=high),
        aggregate=bind(token_mean),
        shape_score=shape_score,
        keep_group=bind(mixed_group),
    )
