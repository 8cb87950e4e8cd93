"""The decoder as pure functions of a nested dict of arrays.

    embed/w_VD
    layers/norm_attn/scale_ND   layers/attn/{q_NDHK, k_NDJK, v_NDJK, o_NHKD}
    layers/norm_mlp/scale_ND    layers/mlp/{gate_NDF, up_NDF, down_NFD}
    norm_out/scale_D            head/w_DV  (absent when the head is the embedding)

Further parameters are there where the config asks for them: positions/w_TD; norm_attn_out and
norm_mlp_out; in attn norm_q, norm_k and bias_{q_NHK, k_NJK, v_NJK, o_ND}; in mlp
bias_{gate_NF, up_NF, down_ND}; a norm's gain_ND instead of its scale, or a bias_ND beside it.

Any matrix of a layer may be a `models.lora.LowRank`: a frozen weight with an adapter beside it.

Layers are stacked on N and scanned, so the program does not grow with depth. Where layers differ
in what they see, both kinds' masks and rotations are made once and each layer picks its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from rlhf_jax.errors import check_choice
from rlhf_jax.models.attention import (
    cached_attention,
    cached_masks,
    causal_mask,
    full_attention,
    positions,
)
from rlhf_jax.models.cache import OwnCache, PromptCache, write_own
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.init import fill
from rlhf_jax.models.layers import (
    Block,
    Embed,
    Head,
    Positions,
    block_of,
    make_norm,
    norm_of,
    shapes_of,
    stacked,
)
from rlhf_jax.models.lora import merged
from rlhf_jax.models.rope import rotate, turns
from rlhf_jax.ops.logprobs import soft_cap
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
        layer = shapes_of(lambda: Block(config))
        tree = {
            "embed": shapes_of(lambda: Embed(config)),
            "layers": jax.tree.map(
                lambda x: jax.ShapeDtypeStruct((config.num_layers, *x.shape), x.dtype),
                stacked(layer),
            ),
            "norm_out": shapes_of(lambda: make_norm(config)),
        }
        if config.rope is None:
            tree["positions"] = shapes_of(lambda: Positions(config))
        if not config.tie_embeddings:
            tree["head"] = shapes_of(lambda: Head(config))
        return tree

    def hidden(
        self,
        params: Params,
        tokens_BT: Array,
        attend_BT: Array,
        segment_BT: Array | None = None,
    ) -> Array:
        """Hidden states after the final norm, h_t of the tokens up to and including t.

        Args:
            params: as `init` returns.
            tokens_BT: ids in [0, vocab_padded).
            attend_BT: bool, False on padding, which may be left, right or between; a token's
                position is the number of real tokens before it.
            segment_BT: numbers of the documents packed into a row, each a run of one number: no
                token sees another document, and positions begin anew with each. None: a row is one.

        Returns:
            hidden_BTD in `compute_dtype`; padded positions hold finite values nobody reads.
        """
        return self._run(params, tokens_BT, attend_BT, segment_BT, keep_kv=False)[0]

    def head(self, params: Params) -> Array:
        """head_DV: the matrix that turns hidden states into logits, V = vocab_padded."""
        return params["embed"]["w_VD"].T if self.config.tie_embeddings else params["head"]["w_DV"]

    def logits(self, params: Params, hidden: Array) -> Array:
        """Float32 logits [..., V] of hidden states [..., D]; −inf at padded vocabulary."""
        head_DV = self.head(params).astype(self.compute_dtype)
        logits = jnp.tensordot(hidden, head_DV, 1, preferred_element_type=jnp.float32)
        return mask_vocab(soft_cap(logits, self.config.logit_softcap), self.config.vocab_size)

    def prepare(self, params: Params) -> Params:
        """The parameters as `prefill`, `decode`, `head` and `logits` read them in a decoding loop:
        adapters merged, matrices in `compute_dtype` and, if layers are unrolled, cut into N trees,
        all once instead of at every step."""

        def cast(path, x):
            in_norm = any(part.key.startswith("norm") for part in path)
            return x if in_norm else x.astype(self.compute_dtype)

        params = jax.tree_util.tree_map_with_path(cast, merged(params))
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
        position_P1 = (prompt.attend_PL.sum(1) + own.length)[:, None]  # broadcast over G
        room = jax.tree.leaves(own.k)[0].shape[-2]

        def sight(window, rope):
            masks = cached_masks(prompt.attend_PL, room, own.length, window)
            return masks, turns(position_P1, rope, config.head_dim)

        pick = self._picker(sight)

        def layer(x_PGD, layer_data, prompt_kv, own_kv):
            weights, is_local = layer_data
            masks, turns = pick(is_local)

            def attend(q, k, v):
                kv = tuple(
                    write_own(c, new, own.length) for c, new in zip(own_kv, (k, v), strict=True)
                )
                return cached_attention(q, prompt_kv, kv, masks, **self._scores), kv

            return block_of(config, weights)(x_PGD, partial(rotate, turns=turns), attend)

        over, local = _looped_layers, self._local_N()
        if self._unrolls():
            over, local = _unrolled_layers, self._cut(local)
        x_PGD, (k, v) = over(
            layer,
            self.embed(prepared, tokens_PG, position_P1),
            (prepared["layers"], local),
            (prompt.k, prompt.v),
            (own.k, own.v),
        )
        return self.norm_out(prepared, x_PGD), OwnCache(k=k, v=v, length=own.length + 1)

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        # The table is gathered over fsdp like any weight before its use, and activations have
        # whole widths: else its split of D would spread into them and be turned back every layer.
        table_VD = hold(params["embed"]["w_VD"], "tensor", None)
        x = jnp.take(table_VD, tokens, axis=0).astype(self.compute_dtype)
        if self.config.scale_embeddings:
            x = x * jnp.asarray(self.config.d_model**0.5, x.dtype)
        if self.config.rope is None:
            table_TD = hold(params["positions"]["w_TD"], None, None)
            x = x + jnp.take(table_TD, position, axis=0).astype(self.compute_dtype)
        return hold(x, ROW_AXES)

    def norm_out(self, params: Params, x: Array) -> Array:
        return norm_of(self.config, params["norm_out"])(x)

    @property
    def _scores(self) -> dict[str, float | None]:
        return {"scale": self.config.score_scale, "cap": self.config.attn_softcap}

    def _picker(self, sight: Callable) -> Callable[[Array | None], Any]:
        """`sight(window, rope)` of each kind of layer, made here once -> the one of a layer."""
        kinds = [sight(window, rope) for window, rope in self.config.kinds]
        if len(kinds) == 1:
            return lambda is_local: kinds[0]
        every, near = kinds
        return lambda is_local: jax.tree.map(lambda e, n: jnp.where(is_local, n, e), every, near)

    def _local_N(self) -> Array | None:
        """Which layers are local; None if all are alike."""
        local = self.config.local_layers
        return None if local is None else jnp.asarray(local)

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

    def _run(
        self,
        params: Params,
        tokens_BT: Array,
        attend_BT: Array,
        segment_BT: Array | None = None,
        *,
        keep_kv: bool,
    ):
        """-> hidden_BTD and, if asked, every layer's rotated keys and values [N, B, T, J, K]."""
        config = self.config
        attend_BT = attend_BT.astype(bool)
        position_BT = positions(attend_BT, segment_BT)

        def sight(window, rope):
            mask_BTT = causal_mask(attend_BT, position_BT, window, segment_BT)
            return mask_BTT, turns(position_BT, rope, config.head_dim)

        pick = self._picker(sight)

        def layer(x_BTD, layer_data):
            weights, is_local = layer_data
            mask_BTT, turns = pick(is_local)

            def attend(q, k, v):
                heads = full_attention(q, k, v, mask_BTT, **self._scores)
                return heads, ((k, v) if keep_kv else None)

            x_BTD, kv = block_of(config, weights)(x_BTD, partial(rotate, turns=turns), attend)
            return hold(x_BTD, ROW_AXES), kv

        if REMAT[self.remat] is not None:
            # under scan the barrier that guards against common-subexpression merging is not needed
            layer = jax.checkpoint(layer, policy=REMAT[self.remat], prevent_cse=False)
        x_BTD = self.embed(params, tokens_BT, position_BT)
        x_BTD, kv = jax.lax.scan(layer, x_BTD, (params["layers"], self._local_N()))
        return self.norm_out(params, x_BTD), kv


def _unrolled_layers(layer, x, layer_data, prompt_kv, own_kv):
    written = []
    for w, is_local, pk, pv, k, v in zip(*layer_data, *prompt_kv, *own_kv, strict=True):
        x, kv = layer(x, (w, is_local), (pk, pv), (k, v))
        written.append(kv)
    return x, tuple(zip(*written, strict=True))


def _looped_layers(layer, x, layer_data, prompt_kv, own_kv):
    # The whole stacked cache is carried and updated in place; as scan inputs and outputs it would
    # be copied at every step.
    def step(n, carry):
        x, own_kv = carry
        w, prompt, own = jax.tree.map(
            lambda a: jax.lax.dynamic_index_in_dim(a, n, 0, keepdims=False),
            (layer_data, prompt_kv, own_kv),
        )
        x, kv = layer(x, w, prompt, own)
        put = lambda a, new: jax.lax.dynamic_update_index_in_dim(a, new, n, 0)  # noqa: E731
        return x, jax.tree.map(put, own_kv, kv)

    depth = jax.tree.leaves(layer_data)[0].shape[0]
    return jax.lax.fori_loop(0, depth, step, (x, own_kv))


def mask_vocab(logits: Array, vocab_size: int) -> Array:
    """−inf at the columns that only pad the vocabulary."""
    if logits.shape[-1] == vocab_size:
        return logits
    real = jnp.arange(logits.shape[-1]) < vocab_size
    return jnp.where(real.reshape((1,) * (logits.ndim - 1) + (-1,)), logits, -jnp.inf)
