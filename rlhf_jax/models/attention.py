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


def cached_attention(
    q_PGHK: Array,
    prompt_kv: tuple[Array, Array],
    own_kv: tuple[Array, Array],
    attend_PL: Array,
    length: Array,
) -> Array:
    """One query per sample over its prompt's keys and its own first `length` ones -> [P, G, H, K].

    The softmax is joint over both parts; they are not concatenated, and the prompt part is not
    repeated for the samples: its G·H queries are rows of one matmul per prompt and head.
    """
    p, g, h, k = q_PGHK.shape
    (pk_PJLK, pv_PJLK), (ok_PGJRK, ov_PGJRK) = prompt_kv, own_kv
    j = pk_PJLK.shape[1]
    q = (q_PGHK * k**-0.5).reshape(p, g, j, h // j, k)
    wide = {"preferred_element_type": jnp.float32}
    on_prompt = jnp.einsum("pgjhk,pjlk->pgjhl", q, pk_PJLK, **wide)
    on_own = jnp.einsum("pgjhk,pgjrk->pgjhr", q, ok_PGJRK, **wide)
    written_R = jnp.arange(ok_PGJRK.shape[3]) < length
    on_prompt = jnp.where(attend_PL[:, None, None, None, :], on_prompt, NEVER)
    on_own = jnp.where(written_R[None, None, None, None, :], on_own, NEVER)

    top = jnp.maximum(on_prompt.max(-1, keepdims=True), on_own.max(-1, keepdims=True))
    on_prompt, on_own = jnp.exp(on_prompt - top), jnp.exp(on_own - top)
    total = on_prompt.sum(-1, keepdims=True) + on_own.sum(-1, keepdims=True)
    dtype = pv_PJLK.dtype
    mixed = jnp.einsum("pgjhl,pjlk->pgjhk", on_prompt.astype(dtype), pv_PJLK, **wide)
    mixed += jnp.einsum("pgjhr,pgjrk->pgjhk", on_own.astype(dtype), ov_PGJRK, **wide)
    return (mixed / total).astype(q_PGHK.dtype).reshape(p, g, h, k)
