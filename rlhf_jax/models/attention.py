"""Attention arithmetic without parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

NEVER = -1e30  # finite: exp(NEVER − max) is 0, and a gradient through it is 0, not NaN


def causal_mask(attend_BT: Array) -> Array:
    """mask_BTS: query t may look at key s. Causal and a real token, or the position itself.

    The diagonal is always allowed, so that a padded query attends to itself: its row is finite
    and depends on nothing else, while nobody attends to it.
    """
    t = jnp.arange(attend_BT.shape[1])
    causal_TT = t[:, None] >= t[None, :]
    self_TT = t[:, None] == t[None, :]
    return (causal_TT[None] & attend_BT[:, None, :]) | self_TT[None]


def full_attention(q_BTHK: Array, k_BSJK: Array, v_BSJK: Array, mask_BTS: Array) -> Array:
    """softmax(q·k / √K) v with grouped heads, scores and softmax in float32 -> [B, T, H, K]."""
    b, t, h, k = q_BTHK.shape
    j = k_BSJK.shape[2]
    q = (q_BTHK * k**-0.5).reshape(b, t, j, h // j, k)
    scores = jnp.einsum("btjgk,bsjk->bjgts", q, k_BSJK, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(jnp.where(mask_BTS[:, None, None], scores, NEVER), axis=-1)
    mixed = jnp.einsum("bjgts,bsjk->btjgk", weights.astype(v_BSJK.dtype), v_BSJK)
    return mixed.reshape(b, t, h, k)
