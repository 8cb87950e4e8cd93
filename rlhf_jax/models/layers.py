"""The modules of one decoder layer (Flax NNX), and the stacked tree that holds N of them.

A module speaks of one layer (`q_DHK`). Outside, layers are stacked on a leading axis and their
names say so (`q_NDHK`); `one_layer` and `stacked` rename between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import LowRank

ACTIVATE: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_new": jax.nn.gelu,  # the tanh form
    "gelu_pytorch_tanh": jax.nn.gelu,
}


def _weight(*shape: int) -> nnx.Param:
    return nnx.Param(jnp.zeros(shape, jnp.float32))  # `Model.init` fills it


class RMSNorm(nnx.Module):
    """x / √(mean(x²) + ε) · scale, or · (1 + gain); statistics in float32.

    `dim` names the normed axis: the model's width D or a head's K.
    """

    def __init__(self, config: DecoderConfig, dim: str = "D"):
        self.eps, self.one_plus = config.norm_eps, config.norm == "rms+1"
        self.leaf = f"{'gain' if self.one_plus else 'scale'}_{dim}"
        shape = (config.d_model if dim == "D" else config.head_dim,)
        start = jnp.zeros if self.one_plus else jnp.ones
        setattr(self, self.leaf, nnx.Param(start(shape, jnp.float32)))

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale = getattr(self, self.leaf)[...].astype(jnp.float32)
        return (wide * _along(x, 1.0 + scale if self.one_plus else scale)).astype(x.dtype)


class LayerNorm(nnx.Module):
    """(x − mean(x)) / √(var(x) + ε) · scale + bias; statistics in float32."""

    def __init__(self, config: DecoderConfig):
        self.eps = config.norm_eps
        self.scale_D = nnx.Param(jnp.ones((config.d_model,), jnp.float32))
        self.bias_D = _weight(config.d_model)

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale, bias = (w[...].astype(jnp.float32) for w in (self.scale_D, self.bias_D))
        return (wide * _along(x, scale) + _along(x, bias)).astype(x.dtype)


def make_norm(config: DecoderConfig) -> nnx.Module:
    """The norm of the residual stream."""
    return LayerNorm(config) if config.norm == "layer" else RMSNorm(config)


class Attention(nnx.Module):
    """Projections of grouped-query attention; what is attended to comes as a function."""

    def __init__(self, config: DecoderConfig):
        d, h, j, k = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        self.q_DHK = _weight(d, h, k)
        self.k_DJK = _weight(d, j, k)
        self.v_DJK = _weight(d, j, k)
        self.o_HKD = _weight(h, k, d)
        if config.qkv_bias:
            self.bias_q_HK, self.bias_k_JK, self.bias_v_JK = (_weight(n, k) for n in (h, j, j))
        if config.out_bias:
            self.bias_o_D = _weight(d)
        if config.qk_norm:
            self.norm_q, self.norm_k = RMSNorm(config, "K"), RMSNorm(config, "K")
        self.qkv_bias, self.out_bias = config.qkv_bias, config.out_bias
        self.qk_norm = config.qk_norm

    def project(self, x: Array) -> tuple[Array, Array, Array]:
        """x[..., D] -> queries [..., H, K], keys and values [..., J, K], before rotation."""
        q, k, v = (_dot(x, w, 1) for w in (self.q_DHK, self.k_DJK, self.v_DJK))
        if self.qkv_bias:
            biases = (self.bias_q_HK, self.bias_k_JK, self.bias_v_JK)
            q, k, v = (_add(y, b) for y, b in zip((q, k, v), biases, strict=True))
        return (self.norm_q(q), self.norm_k(k), v) if self.qk_norm else (q, k, v)

    def output(self, heads: Array) -> Array:
        y = _dot(heads, self.o_HKD, 2)
        return _add(y, self.bias_o_D) if self.out_bias else y


class MLP(nnx.Module):
    """(act(x W_gate) ⊙ x W_up) W_down, or without a gate act(x W_up) W_down."""

    def __init__(self, config: DecoderConfig):
        d, f = config.d_model, config.d_ff
        self.parts = ("gate", "up") if config.gated else ("up",)
        for part in self.parts:
            setattr(self, f"{part}_DF", _weight(d, f))
        self.down_FD = _weight(f, d)
        self.biases = config.mlp_bias
        if self.biases:
            for part in self.parts:
                setattr(self, f"bias_{part}_F", _weight(f))
            self.bias_down_D = _weight(d)
        self.activation = config.activation

    def __call__(self, x: Array) -> Array:
        first, *second = (self._into(part, x) for part in self.parts)
        hidden = ACTIVATE[self.activation](first)
        y = _dot(hidden * second[0] if second else hidden, self.down_FD, 1)
        return _add(y, self.bias_down_D) if self.biases else y

    def _into(self, part: str, x: Array) -> Array:
        y = _dot(x, getattr(self, f"{part}_DF"), 1)
        return _add(y, getattr(self, f"bias_{part}_F")) if self.biases else y


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x)); each may be normed once more."""

    def __init__(self, config: DecoderConfig):
        self.norm_attn = make_norm(config)
        self.attn = Attention(config)
        self.norm_mlp = make_norm(config)
        self.mlp = MLP(config)
        self.norm_outputs = config.norm_outputs
        if self.norm_outputs:
            self.norm_attn_out, self.norm_mlp_out = make_norm(config), make_norm(config)

    def __call__(self, x: Array, rotate: Callable, attend: Callable):
        """`rotate` turns queries and keys to their positions; `attend(q, k, v)` returns the
        mixed heads and whatever it has to hand on (new keys and values, a cache, nothing)."""
        q, k, v = self.attn.project(self.norm_attn(x))
        heads, carried = attend(rotate(q), rotate(k), v)
        y = self.attn.output(heads)
        x = x + (self.norm_attn_out(y) if self.norm_outputs else y)
        y = self.mlp(self.norm_mlp(x))
        return x + (self.norm_mlp_out(y) if self.norm_outputs else y), carried


class Embed(nnx.Module):
    def __init__(self, config: DecoderConfig):
        self.w_VD = _weight(config.vocab_padded, config.d_model)


class Positions(nnx.Module):
    """A learned vector a position."""

    def __init__(self, config: DecoderConfig):
        self.w_TD = _weight(config.max_positions, config.d_model)


class Head(nnx.Module):
    def __init__(self, config: DecoderConfig):
        self.w_DV = _weight(config.d_model, config.vocab_padded)


def _dot(x: Array, weight: nnx.Param, axes: int) -> Array:
    """Contract the last `axes` of x with the first of the weight, in the dtype of x."""
    weight = weight.get_value()
    if not isinstance(weight, LowRank):
        return jnp.tensordot(x, weight.astype(x.dtype), axes)
    y = jnp.tensordot(x, weight.w.astype(x.dtype), axes)
    # never W + s·A·B here: its gradient would be as large as W's, and as dear
    low = weight.scale * jnp.tensordot(x, weight.a.astype(x.dtype), axes)
    return y + jnp.tensordot(low, weight.b.astype(x.dtype), 1)


def _add(x: Array, bias: nnx.Param) -> Array:
    """A bias along the last axes of x, in the dtype of x."""
    return x + _along(x, bias[...].astype(x.dtype))


def _along(x: Array, vector: Array) -> Array:
    """`vector` with axes of 1 before its own, as many as x has."""
    return vector.reshape((1,) * (x.ndim - vector.ndim) + vector.shape)


def one_layer(tree: dict) -> dict:
    """Names of a slice of the stacked tree: `q_NDHK` -> `q_DHK`."""
    return _rename(tree, lambda name, dims: f"{name}_{dims.removeprefix('N')}")


def stacked(tree: dict) -> dict:
    """Names of N layers stacked on the leading axis: `q_DHK` -> `q_NDHK`."""
    return _rename(tree, lambda name, dims: f"{name}_N{dims}")


def _rename(tree: dict, rule: Callable[[str, str], str]) -> dict:
    return {
        key: _rename(value, rule) if isinstance(value, dict) else value
        for key, value in (
            (k if isinstance(v, dict) else rule(*k.rsplit("_", 1)), v) for k, v in tree.items()
        )
    }


def block_of(config: DecoderConfig, weights: dict) -> Block:
    """The module of one layer, holding these weights (a slice of the stacked tree)."""
    return nnx.merge(_block_graph(config), one_layer(weights))


def norm_of(config: DecoderConfig, weights: dict) -> nnx.Module:
    """The norm after the last layer, holding these weights."""
    return nnx.merge(_norm_graph(config), weights)


@lru_cache(maxsize=64)
def _block_graph(config: DecoderConfig):
    return nnx.split(nnx.eval_shape(lambda: Block(config)))[0]


@lru_cache(maxsize=64)
def _norm_graph(config: DecoderConfig):
    return nnx.split(nnx.eval_shape(lambda: make_norm(config)))[0]


def shapes_of(make: Callable[[], nnx.Module]) -> dict:
    """Parameters of a module as `ShapeDtypeStruct`s; nothing is computed."""
    return nnx.to_pure_dict(nnx.state(nnx.eval_shape(make)))
