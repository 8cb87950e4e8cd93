"""The decoder as pure functions of a nested dict of arrays.

    embed/w_VD
    layers/norm_attn/scale_ND   layers/attn/{q_NDHK, k_NDJK, v_NDJK, o_NHKD}
    layers/norm_mlp/scale_ND    layers/mlp/{gate_NDF, up_NDF, down_NFD}
    norm_out/scale_D            head/w_DV  (absent when the head is the embedding)

Layers are stacked on N and scanned, so the program does not grow with depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.typing import DTypeLike

from rlhf_jax.errors import check_choice
from rlhf_jax.models.attention import cached_attention, causal_mask, full_attention
from rlhf_jax.models.cache import OwnCache, PromptCache, write_own
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.init import fill
from rlhf_jax.models.layers import Block, Embed, Head, RMSNorm, one_layer, rotary, stacked
from rlhf_jax.parallel.sharding import ROW_AXES, hold

Params = dict[str, Any]

# What the backward pass keeps of each layer: everything; the matmul outputs; its input only.
REMAT = {
    "none": None,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    "full": jax.checkpoint_policies.nothing_saveable,
}


@dataclass(frozen=True)
class Model:
    """A decoder: pure methods of (params, arrays). Hashable, so it can be closed over by `jit`.

    Args:
        config: the shape.
        compute_dtype: of activations and matmul inputs; parameters keep their own dtype, norms,
            rotations, softmax and logits are float32 whatever it is.
        remat: what `hidden` keeps for its backward pass: "none" recomputes nothing, "dots"
            recomputes all but the matmuls with weights, "full" whole layers.
        unroll_decode: how `decode` walks the layers. True: one after the other in the program,
            each with caches of its own. False: a loop over stacked caches, updated in place; the
            program does not grow with depth. None: True on CPU, else False.
    """

    config: DecoderConfig
    compute_dtype: DTypeLike = jnp.float32
    remat: str = "none"
    unroll_decode: bool | None = None

    def __post_init__(self):
        check_choice("remat", self.remat, REMAT)

    def init(self, key: Array) -> Params:
        """Float32 parameters drawn as `models.init.fill` says."""
        key_layers, key_rest = jax.random.split(key)
        rest = self.abstract()
        layers = rest.pop("layers")
        sizes = {"width": self.config.d_model, "num_layers": self.config.num_layers}
        return {"layers": fill(key_layers, layers, **sizes), **fill(key_rest, rest, **sizes)}

    def abstract(self) -> Params:
        """The parameter tree as `ShapeDtypeStruct`s; nothing is computed."""
        config = self.config
        layer = _shapes(lambda: Block(config))
        tree = {
            "embed": _shapes(lambda: Embed(config)),
            "layers": jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((config.num_layers, *x.shape), x.dtype),
                stacked(layer),
            ),
            "norm_out": _shapes(lambda: RMSNorm(config.d_model, config.norm_eps)),
        }
        if not config.tie_embeddings:
            tree["head"] = _shapes(lambda: Head(config))
        return tree

    def hidden(self, params: Params, tokens_BT: Array, attend_BT: Array) -> Array:
        """Hidden states after the final norm, h_t of the tokens up to and including t.

        Args:
            params: as `init` returns.
            tokens_BT: ids in [0, vocab_padded).
            attend_BT: bool, False on padding, which may be left, right or between; a token's
                position is the number of real tokens before it.

        Returns:
            hidden_BTD in `compute_dtype`; padded positions hold finite values nobody reads.
        """
        return self._run(params, tokens_BT, attend_BT, keep_kv=False)[0]

    def head(self, params: Params) -> Array:
        """head_DV: the matrix that turns hidden states into logits, V = vocab_padded."""
        return params["embed"]["w_VD"].T if self.config.tie_embeddings else params["head"]["w_DV"]

    def logits(self, params: Params, hidden: Array) -> Array:
        """Float32 logits [..., V] of hidden states [..., D]; −inf at padded vocabulary."""
        head_DV = self.head(params).astype(self.compute_dtype)
        return mask_vocab(
            jnp.tensordot(hidden, head_DV, 1, preferred_element_type=jnp.float32),
            self.config.vocab_size,
        )

    def prepare(self, params: Params) -> Params:
        """The parameters as `prefill`, `decode`, `head` and `logits` read them in a decoding loop:
        matrices in `compute_dtype` and, if layers are unrolled, cut into N trees, both once
        instead of at every step."""

        def cast(path, x):
            is_scale = path[-1].key.startswith("scale")
            return x if is_scale else x.astype(self.compute_dtype)

        params = jax.tree_util.tree_map_with_path(cast, params)
        return {**params, "layers": self._cut(params["layers"])} if self._unrolls() else params

    def prefill(
        self, params: Params, tokens_PL: Array, attend_PL: Array
    ) -> tuple[Array, PromptCache]:
        """Run left-padded prompts once.

        Args:
            params: as `init` returns (not prepared).
            tokens_PL, attend_PL: prompts that end at column L − 1.

        Returns:
            last_PD: the hidden state of each prompt's last token, from which its samples draw
                their first; and the cache they share.
        """
        hidden_PLD, kv = self._run(params, tokens_PL, attend_PL, keep_kv=True)
        k, v = (x.swapaxes(2, 3) for x in kv)  # NPLJK -> NPJLK
        if self._unrolls():
            k, v = self._cut(k), self._cut(v)
        return hidden_PLD[:, -1], PromptCache(k=k, v=v, attend_PL=attend_PL.astype(bool))

    def decode(
        self, prepared: Params, tokens_PG: Array, prompt: PromptCache, own: OwnCache
    ) -> tuple[Array, OwnCache]:
        """Append one token to every sample.

        Args:
            prepared: parameters from `prepare`.
            tokens_PG: the next token of each sample, its (own.length + 1)-th.
            prompt, own: caches; `own` must have a free column.

        Returns:
            hidden_PGD of these tokens, and `own` with their keys and values written.
        """
        config = self.config
        position_PG = (prompt.attend_PL.sum(1) + own.length)[:, None]  # broadcast over G
        rotate = rotary(position_PG, config.head_dim, config.rope_theta)

        def layer(x_PGD, weights, prompt_kv, own_kv):
            def attend(q, k, v):
                kv = tuple(
                    write_own(c, new, own.length) for c, new in zip(own_kv, (k, v), strict=True)
                )
                heads = cached_attention(q, prompt_kv, kv, prompt.attend_PL, own.length + 1)
                return heads, kv

            return block_of(config, weights)(x_PGD, rotate, attend)

        over = _unrolled_layers if self._unrolls() else _looped_layers
        x_PGD, (k, v) = over(
            layer,
            self.embed(prepared, tokens_PG),
            prepared["layers"],
            (prompt.k, prompt.v),
            (own.k, own.v),
        )
        return self.norm_out(prepared, x_PGD), OwnCache(k=k, v=v, length=own.length + 1)

    def embed(self, params: Params, tokens: Array) -> Array:
        # The table is gathered over fsdp like any weight before its use, and activations have
        # whole widths: else its split of D would spread into them and be turned back every layer.
        table_VD = hold(params["embed"]["w_VD"], "tensor", None)
        return hold(jnp.take(table_VD, tokens, axis=0).astype(self.compute_dtype), ROW_AXES)

    def norm_out(self, params: Params, x: Array) -> Array:
        norm = RMSNorm(self.config.d_model, self.config.norm_eps)
        return nnx.merge(nnx.split(norm)[0], params["norm_out"])(x)

    def _unrolls(self) -> bool:
        # On CPU the loop takes 1.3 to 1.6 times as long (2 cores, 4 layers of width 256, 64 rows ×
        # 64 tokens, float32): every step copies each layer's weights and caches out of the stack,
        # and at 64 rows a matmul costs little more than such a copy. On accelerators a slice of
        # the stack is read where it lies, and a program that grows with depth compiles slowly.
        if self.unroll_decode is None:
            return jax.default_backend() == "cpu"
        return self.unroll_decode

    def _cut(self, tree: Any) -> tuple:
        """A stacked tree as N trees without the leading axis."""
        return tuple(jax.tree.map(lambda x, n=n: x[n], tree) for n in range(self.config.num_layers))

    def _run(self, params: Params, tokens_BT: Array, attend_BT: Array, *, keep_kv: bool):
        """-> hidden_BTD and, if asked, every layer's rotated keys and values [N, B, T, J, K]."""
        config = self.config
        attend_BT = attend_BT.astype(bool)
        position_BT = jnp.maximum(jnp.cumsum(attend_BT, axis=1) - 1, 0)
        rotate = rotary(position_BT, config.head_dim, config.rope_theta)
        mask_BTT = causal_mask(attend_BT)

        def attend(q, k, v):
            return full_attention(q, k, v, mask_BTT), ((k, v) if keep_kv else None)

        def layer(x_BTD, weights):
            x_BTD, kv = block_of(config, weights)(x_BTD, rotate, attend)
            return hold(x_BTD, ROW_AXES), kv

        if REMAT[self.remat] is not None:
            # under scan the barrier that guards against common-subexpression merging is not needed
            layer = jax.checkpoint(layer, policy=REMAT[self.remat], prevent_cse=False)
        x_BTD, kv = jax.lax.scan(layer, self.embed(params, tokens_BT), params["layers"])
        return self.norm_out(params, x_BTD), kv


def _unrolled_layers(layer, x, weights, prompt_kv, own_kv):
    written = []
    for w, pk, pv, k, v in zip(weights, *prompt_kv, *own_kv, strict=True):
        x, kv = layer(x, w, (pk, pv), (k, v))
        written.append(kv)
    return x, tuple(zip(*written, strict=True))


def _looped_layers(layer, x, weights, prompt_kv, own_kv):
    # The whole stacked cache is carried and updated in place; as scan inputs and outputs it would
    # be copied at every step.
    def step(n, carry):
        x, own_kv = carry
        w, prompt, own = jax.tree.map(
            lambda a: jax.lax.dynamic_index_in_dim(a, n, 0, keepdims=False),
            (weights, prompt_kv, own_kv),
        )
        x, kv = layer(x, w, prompt, own)
        put = lambda a, new: jax.lax.dynamic_update_index_in_dim(a, new, n, 0)  # noqa: E731
        return x, jax.tree.map(put, own_kv, kv)

    depth = jax.tree.leaves(weights)[0].shape[0]
    return jax.lax.fori_loop(0, depth, step, (x, own_kv))


def mask_vocab(logits: Array, vocab_size: int) -> Array:
    """−inf at the columns that only pad the vocabulary."""
    if logits.shape[-1] == vocab_size:
        return logits
    real = jnp.arange(logits.shape[-1]) < vocab_size
    return jnp.where(real.reshape((1,) * (logits.ndim - 1) + (-1,)), logits, -jnp.inf)


def block_of(config: DecoderConfig, weights: Params) -> Block:
    """The module of one layer, holding these weights (a slice of the stacked tree)."""
    return nnx.merge(_block_graph(config), one_layer(weights))


@lru_cache(maxsize=64)
def _block_graph(config: DecoderConfig):
    return nnx.split(nnx.eval_shape(lambda: Block(config)))[0]


def _shapes(make: Callable[[], nnx.Module]) -> Params:
    return nnx.to_pure_dict(nnx.state(nnx.eval_shape(make)))
