"""Attention arithmetic without parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from rlhf_jax.ops.logprobs import soft_cap

NEVER = -1e30  # finite: exp(NEVER − max) is 0, and a gradient through it is 0, not NaN


def causal_mask(
    attend_BT: Array,
    position_BT: Array,
    window: int | None = None,
    segment_BT: Array | None = None,
) -> Array:
    """mask_BTS: query t may look at key s. Causal and a real token, or the position itself.

    The diagonal is always allowed, so that a padded query attends to itself: its row is finite
    and depends on nothing else, while nobody attends to it. A `window` lets a query see so many
    tokens, itself included, counted in positions: padding takes no room in it. With segments a
    query sees its own alone.
    """
    t = jnp.arange(attend_BT.shape[1])
    causal_TT = t[:, None] >= t[None, :]
    self_TT = t[:, None] == t[None, :]
    mask_BTS = (causal_TT[None] & attend_BT[:, None, :]) | self_TT[None]
    if segment_BT is not None:
        mask_BTS &= segment_BT[:, :, None] == segment_BT[:, None, :]
    if window is not None:
        mask_BTS &= position_BT[:, :, None] - position_BT[:, None, :] < window
    return mask_BTS


def positions(attend_BT: Array, segment_BT: Array | None = None) -> Array:
    """position_BT: how many real tokens stand before, in the row or in the token's segment.

    Segments are runs of one number; each begins at position 0.
    """
    before_BT = jnp.maximum(jnp.cumsum(attend_BT, axis=1) - 1, 0)
    if segment_BT is None:
        return before_BT
    opens_BT = segment_BT != jnp.pad(segment_BT, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
    return before_BT - jax.lax.cummax(jnp.where(opens_BT, before_BT, 0), axis=1)


def full_attention(
    q_BTHK: Array,
    k_BSJK: Array,
    v_BSJK: Array,
    mask_BTS: Array,
    *,
    scale: float,
    cap: float | None,
) -> Array:
    """softmax(cap(q·k · scale)) v with grouped heads, scores and softmax in float32 -> BTHK."""
    b, t, h, k = q_BTHK.shape
    j = k_BSJK.shape[2]
    q = (q_BTHK * scale).reshape(b, t, j, h // j, k)
    scores = jnp.einsum("btjgk,bsjk->bjgts", q, k_BSJK, preferred_element_type=jnp.float32)
    scores = jnp.where(mask_BTS[:, None, None], soft_cap(scores, cap), NEVER)
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = jnp.einsum("bjgts,bsjk->btjgk", weights.astype(v_BSJK.dtype), v_BSJK)
    return mixed.reshape(b, t, h, k)


def cached_masks(
    attend_PL: Array, room: int, length: Array, window: int | None
) -> tuple[Array, Array]:
    """mask_PL, mask_R: what the own token number `length` sees of its prompt and of the own ones.

    Args:
        attend_PL: False on prompt padding.
        room: columns of the own cache.
        length: own tokens before this one, which stands in column `length`.
        window: as in `causal_mask`.
    """
    r = jnp.arange(room)
    if window is None:
        return attend_PL, r <= length
    # tokens from a prompt's column to this one, both included
    span_PL = jnp.cumsum(attend_PL[:, ::-1], axis=1)[:, ::-1] + length + 1
    return attend_PL & (span_PL <= window), (r <= length) & (length - r < window)


def cached_attention(
    q_PGHK: Array,
    prompt_kv: tuple[Array, Array],
    own_kv: tuple[Array, Array],
    masks: tuple[Array, Array],
    *,
    scale: float,
    cap: float | None,
) -> Array:
    """One query per sample over its prompt's keys and its own, as `masks` allow -> [P, G, H, K].

    The softmax is joint over both parts; they are not concatenated, and the prompt part is not
    repeated for the samples: its G·H queries are rows of one matmul per prompt and head.
    """
    p, g, h, k = q_PGHK.shape
    (pk_PJLK, pv_PJLK), (ok_PGJRK, ov_PGJRK), (mask_PL, mask_R) = prompt_kv, own_kv, masks
    j = pk_PJLK.shape[1]
    q = (q_PGHK * scale).reshape(p, g, j, h // j, k)
    wide = {"preferred_element_type": jnp.float32}
    on_prompt = soft_cap(jnp.einsum("pgjhk,pjlk->pgjhl", q, pk_PJLK, **wide), cap)
    on_own = soft_cap(jnp.einsum("pgjhk,pgjrk->pgjhr", q, ok_PGJRK, **wide), cap)
    on_prompt = jnp.where(mask_PL[:, None, None, None, :], on_prompt, NEVER)
    on_own = jnp.where(mask_R[None, None, None, None, :], on_own, NEVER)

    top = jnp.maximum(on_prompt.max(-1, keepdims=True), on_own.max(-1, keepdims=True))
    on_prompt, on_own = jnp.exp(on_prompt - top), jnp.exp(on_own - top)
    total = on_prompt.sum(-1, keepdims=True) + on_own.sum(-1, keepdims=True)
    dtype = pv_PJLK.dtype
    mixed = jnp.einsum("pgjhl,pjlk->pgjhk", on_prompt.astype(dtype), pv_PJLK, **wide)
    mixed += jnp.einsum("pgjhr,pgjrk->pgjhk", on_own.astype(dtype), ov_PGJRK, **wide)
    return (mixed / total).astype(q_PGHK.dtype).reshape(p, g, h, k)
