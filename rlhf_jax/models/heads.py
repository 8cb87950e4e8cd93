"""Scalar heads on a decoder's hidden states."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array


def init_scalar_head(d_model: int) -> dict[str, Array]:
    """A critic's head before training: zeros.

    Huang et al., "The N implementation details of RLHF with PPO" (2023), detail 11. With w = 0
    every first value is 0, so the first advantages are the rewards themselves and not the noise of
    a random projection, whatever the width and scale of the trunk. The head still learns: its own
    gradient is (V − R)·h, which is not zero; the trunk's begins one step later. There is no seed to
    forget.

    Args:
        d_model: width D of the hidden states.

    Returns:
        `{"w_D": zeros, "b": 0}` in float32.
    """
    return {"w_D": jnp.zeros((d_model,), jnp.float32), "b": jnp.zeros((), jnp.float32)}


def scalar(head: dict[str, Array], hidden_BTD: Array) -> Array:
    """One number a position, in float32.

        value_BT[b, t] = Σ_d hidden_BTD[b, t, d] · w_D[d] + b

    The value at column t has read token t. The value of the prefix *before* token t, as an
    estimator wants it, is this shifted by `ops.logprobs.shift_right`; nothing is shifted here.

    Args:
        head: `{"w_D", "b"}` of `init_scalar_head`.
        hidden_BTD: hidden states after the final norm, any float dtype.

    Returns:
        value_BT: float32; bf16 hidden states are widened first, for returns differ by less than
        bf16 can tell.
    """
    product_BT = jnp.einsum("btd,d->bt", hidden_BTD.astype(jnp.float32), head["w_D"])
    return product_BT + head["b"].astype(jnp.float32)
