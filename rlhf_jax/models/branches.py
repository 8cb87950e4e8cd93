"""Many responses over one reading of their prompt, with gradient: a stem and its branches.

`read_stem` runs prompts once. `read_branches` runs rows of responses over it: each response sees
the prompt and itself, its positions go on from the prompt's, and several of one prompt may stand in
one row. Values and gradients are those of `Model.hidden` on prompt and response joined; the
gradient of a stem is the sum of what its branches send back.

The other half of `models/transformer.py`: it alone reads that file's private parts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rlhf_jax.models.attention import NEVER, causal_mask, positions
from rlhf_jax.models.layers import block_of
from rlhf_jax.models.rope import rotate, turns
from rlhf_jax.models.transformer import REMAT, Model
from rlhf_jax.ops.logprobs import soft_cap
from rlhf_jax.parallel.sharding import ROW_AXES, hold
from rlhf_jax.types import pytree


@pytree
class Stem:
    """What a response reads of its prompt: rotated keys and values [N, P, L, J, K] of all layers,
    and the hidden state of the last token, from which its first token is predicted."""

    last_PD: Array
    k_NPLJK: Array
    v_NPLJK: Array


def read_stem(model: Model, params: Any, tokens_PL: Array, attend_PL: Array) -> Stem:
    """Run prompts that end at column L − 1; arguments as in `Model.hidden`."""
    hidden_PLD, (k, v) = model._run(params, tokens_PL, attend_PL, keep_kv=True)
    return Stem(last_PD=hidden_PLD[:, -1], k_NPLJK=k, v_NPLJK=v)


def read_branches(
    model: Model,
    params: Any,
    stem: Stem,
    attend_PL: Array,
    tokens_PXR: Array,
    attend_PXR: Array,
    segment_PXR: Array,
) -> Array:
    """hidden_PXRD: hidden states of X rows of responses to each prompt.

    Args:
        model: the decoder that read the stem.
        params: the same.
        stem: of the P prompts.
        attend_PL: bool, False on prompt padding.
        tokens_PXR: ids in [0, vocab_padded).
        attend_PXR: bool, False on padding.
        segment_PXR: numbers of the responses in a row, each a run of one number.
    """
    config = model.config
    p, x, r = tokens_PXR.shape
    flat = lambda a: a.reshape(p * x, *a.shape[2:])  # noqa: E731
    tokens_BR, attend_BR, segment_BR = map(flat, (tokens_PXR, attend_PXR, segment_PXR))
    before_P = attend_PL.sum(axis=1)
    own_BR = positions(attend_BR, segment_BR)
    position_BR = own_BR + jnp.repeat(before_P, x)[:, None]

    def sight(window, rope):
        own_BRS = causal_mask(attend_BR, own_BR, window, segment_BR)
        prompt_PXRL = jnp.broadcast_to(attend_PL[:, None, None], (p, x, r, attend_PL.shape[1]))
        if window is not None:
            from_PL = positions(attend_PL)
            apart = position_BR.reshape(p, x, r, 1) - from_PL[:, None, None]
            prompt_PXRL = prompt_PXRL & (apart < window)
        mask = jnp.concatenate([prompt_PXRL, own_BRS.reshape(p, x, r, r)], axis=-1)
        return mask, turns(position_BR, rope, config.head_dim)

    pick = model._picker(sight)

    def layer(x_BRD, layer_data):
        weights, is_local, prompt_k, prompt_v = layer_data
        mask_PXRS, turned = pick(is_local)

        def attend(q, k, v):
            q, k, v = (a.reshape(p, x, *a.shape[1:]) for a in (q, k, v))
            heads = branch_attention(q, (prompt_k, prompt_v), (k, v), mask_PXRS, **model._scores)
            return flat(heads), None

        x_BRD, _ = block_of(config, weights)(x_BRD, partial(rotate, turns=turned), attend)
        return hold(x_BRD, ROW_AXES), None

    if REMAT[model.remat] is not None:
        layer = jax.checkpoint(layer, policy=REMAT[model.remat], prevent_cse=False)
    x_BRD = hold(model.embed(params, tokens_BR, position_BR), ROW_AXES)
    over = (params["layers"], model._local_N(), stem.k_NPLJK, stem.v_NPLJK)
    x_BRD, _ = jax.lax.scan(layer, x_BRD, over)
    return model.norm_out(params, x_BRD).reshape(p, x, r, -1)


def branch_attention(
    q_PXRHK: Array,
    prompt_kv: tuple[Array, Array],
    own_kv: tuple[Array, Array],
    mask_PXRS: Array,
    *,
    scale: float,
    cap: float | None,
) -> Array:
    """softmax(cap(q·k · scale)) v over the prompt's keys and the row's own, S = L + R -> PXRHK.

    The prompt's keys are not repeated for its rows: their queries are rows of one matmul.
    """
    p, x, r, h, k = q_PXRHK.shape
    (pk_PLJK, pv_PLJK), (ok_PXRJK, ov_PXRJK) = prompt_kv, own_kv
    length, j = pk_PLJK.shape[1:3]
    q = (q_PXRHK * scale).reshape(p, x, r, j, h // j, k)
    wide = {"preferred_element_type": jnp.float32}
    on_prompt = jnp.einsum("pxrjhk,pljk->pxjhrl", q, pk_PLJK, **wide)
    on_own = jnp.einsum("pxrjhk,pxsjk->pxjhrs", q, ok_PXRJK, **wide)
    scores = soft_cap(jnp.concatenate([on_prompt, on_own], axis=-1), cap)
    weights = jax.nn.softmax(jnp.where(mask_PXRS[:, :, None, None], scores, NEVER), axis=-1)
    weights = weights.astype(pv_PLJK.dtype)
    mixed = jnp.einsum("pxjhrl,pljk->pxrjhk", weights[..., :length], pv_PLJK)
    mixed += jnp.einsum("pxjhrs,pxsjk->pxrjhk", weights[..., length:], ov_PXRJK)
    return mixed.reshape(p, x, r, h, k)
