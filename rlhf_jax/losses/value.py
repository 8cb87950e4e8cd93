"""Critic regression, one value a token, 0 outside the mask with gradient exactly 0 there."""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array

from rlhf_jax.bind import Bound
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import pytree


def squared(value_BT: Array, value_old_BT: Array, return_BT: Array, mask_BT: Array) -> Array:
    """ℓ_t = ½(V_t − R_t)²   (1707.06347, eq. 9, with the ½ of the code)

    Args:
        value_BT: [B, T] V of the prefix before token t.
        value_old_BT: [B, T] the value when the batch was scored; not used here.
        return_BT: [B, T] targets, no gradient.
        mask_BT: [B, T] bool.
    """
    error_BT = _error(value_BT, return_BT, mask_BT)
    return 0.5 * error_BT**2


def clipped_squared(
    value_BT: Array, value_old_BT: Array, return_BT: Array, mask_BT: Array, *, clip: float
) -> Array:
    """ℓ_t = ½·max((V − R)², (clip(V, V_old − c, V_old + c) − R)²)

    (OpenAI baselines and lm-human-preferences code, not in a paper.) The gradient is 0 where the
    clipped term is the larger.

    Args:
        value_BT, value_old_BT, return_BT, mask_BT: as in `squared`.
        clip: c ≥ 0, in units of the return.
    """
    moved_BT = jnp.clip(value_BT - value_old_BT, -clip, clip)
    near_BT = _error(value_old_BT + moved_BT, return_BT, mask_BT) ** 2
    plain_BT = _error(value_BT, return_BT, mask_BT) ** 2
    return 0.5 * jnp.where(near_BT > plain_BT, near_BT, plain_BT)


def _error(value_BT, return_BT, mask_BT):
    chex.assert_equal_shape([value_BT, return_BT, mask_BT])
    return jnp.where(mask_BT, value_BT - return_BT, 0)


@pytree
class ValueTerm:
    """The critic's part of an objective: loss, coefficient, and λ of its targets.

    `lam` None: the targets are V_old + Â with the advantage's own λ (2203.02155). A number: they
    use this λ (1 is Monte Carlo, VAPO's decoupled GAE, 2504.05118).

    Raises:
        ConfigError: what `settle` and `check_calls` raise.
    """

    loss: Bound
    """squared or clipped_squared."""
    coef: float
    """Factor of the critic's loss, ≥ 0."""
    lam: float | None = None
    """λ of the critic's targets, in [0, 1]; None: the advantage's own."""

    def __post_init__(self):
        settle(self, "ValueTerm ")
        arrays = ("value_BT", "value_old_BT", "return_BT", "mask_BT")
        check_calls(self, "ValueTerm ", loss=arrays)
