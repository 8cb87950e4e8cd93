"""Scalar heads on a decoder's hidden states."""

from __future__ import annotations

import jax
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


def init_reward_head(key: Array, d_model: int) -> dict[str, Array]:
    """A reward model's head before training: w ~ N(0, 1/(D + 1)), b = 0.

    Standard deviation 1/√(D + 1): Huang et al. (2023), detail 8, as Stiennon et al. (2009.01325).
    Not zeros, as a critic's: all completions would score the same, and the trunk would get no
    gradient in the first step.

    Args:
        key: of the run's seed, so that two runs of one seed begin alike.
        d_model: width D of the hidden states.

    Returns:
        `{"w_D", "b"}` in float32.
    """
    scale = (d_model + 1) ** -0.5
    w_D = scale * jax.random.normal(key, (d_model,), jnp.float32)
    return {"w_D": w_D, "b": jnp.zeros((), jnp.float32)}


def last_real(attend_BT: Array) -> Array:
    """Column of each row's last real token.

    Read from the mask and never from ids: where the pad id is also the end id, a search for the
    first pad finds the wrong token, and a row without padding has no pad to find.

    Args:
        attend_BT: True on real tokens; padding may be left, right or absent.

    Returns:
        last_B int32; T − 1 for a row without any real token, whose score means nothing.
    """
    back_B = jnp.argmax(attend_BT[:, ::-1], axis=1)  # the first of equals: 0 if nothing is real
    return (attend_BT.shape[1] - 1 - back_B).astype(jnp.int32)


def scalar_at_last(head: dict[str, Array], hidden_BTD: Array, attend_BT: Array) -> Array:
    """One number a row, read at its last real token: a reward model's score_B, in float32."""
    hidden_B1D = jnp.take_along_axis(hidden_BTD, last_real(attend_BT)[:, None, None], axis=1)
    return scalar(head, hidden_B1D)[:, 0]


def normalised(head: dict[str, Array], *, gain: float, bias: float) -> dict[str, Array]:
    """The head whose output is gain · (this one's) + bias."""
    return {"w_D": gain * head["w_D"], "b": gain * head["b"] + bias}
