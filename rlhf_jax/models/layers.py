"""The modules of one decoder layer (Flax NNX), and the stacked tree that holds N of them.

A module speaks of one layer (`q_DHK`). Outside, layers are stacked on a leading axis and their
names say so (`q_NDHK`); `one_layer` and `stacked` rename between the two.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from rlhf_jax.models.config import DecoderConfig


def _weight(*shape: int) -> nnx.Param:
    return nnx.Param(jnp.zeros(shape, jnp.float32))  # `Model.init` fills it


class RMSNorm(nnx.Module):
    """x / √(mean(x²) + ε) · scale, statistics in float32."""

    def __init__(self, width: int, eps: float):
        self.scale_D = nnx.Param(jnp.ones((width,), jnp.float32))
        self.eps = eps

    def __call__(self, x: Array) -> Array:
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        scale = self.scale_D[...].astype(jnp.float32)
        return (wide * scale.reshape((1,) * (x.ndim - 1) + scale.shape)).astype(x.dtype)


class Attention(nnx.Module):
    """Projections of grouped-query attention; what is attended to comes as a function."""

    def __init__(self, config: DecoderConfig):
        d, h, j, k = config.d_model, config.num_heads, config.num_kv_heads, config.head_dim
        self.q_DHK = _weight(d, h, k)
        self.k_DJK = _weight(d, j, k)
        self.v_DJK = _weight(d, j, k)
        self.o_HKD = _weight(h, k, d)

    def project(self, x: Array) -> tuple[Array, Array, Array]:
        """x[..., D] -> queries [..., H, K], keys and values [..., J, K], before rotation."""
        return tuple(_dot(x, w, 1) for w in (self.q_DHK, self.k_DJK, self.v_DJK))

    def output(self, heads: Array) -> Array:
        return _dot(heads, self.o_HKD, 2)


class MLP(nnx.Module):
    """SwiGLU: (silu(x W_gate) ⊙ x W_up) W_down."""

    def __init__(self, config: DecoderConfig):
        d, f = config.d_model, config.d_ff
        self.gate_DF = _weight(d, f)
        self.up_DF = _weight(d, f)
        self.down_FD = _weight(f, d)

    def __call__(self, x: Array) -> Array:
        return _dot(jax.nn.silu(_dot(x, self.gate_DF, 1)) * _dot(x, self.up_DF, 1), self.down_FD, 1)


class Block(nnx.Module):
    """One layer: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig):
        self.norm_attn = RMSNorm(config.d_model, config.norm_eps)
        self.attn = Attention(config)
        self.norm_mlp = RMSNorm(config.d_model, config.norm_eps)
        self.mlp = MLP(config)

    def __call__(self, x: Array, rotate: Callable, attend: Callable):
        """`rotate` turns queries and keys to their positions; `attend(q, k, v)` returns the
        mixed heads and whatever it has to hand on (new keys and values, a cache, nothing)."""
        q, k, v = self.attn.project(self.norm_attn(x))
        heads, carried = attend(rotate(q), rotate(k), v)
        x = x + self.attn.output(heads)
        return x + self.mlp(self.norm_mlp(x)), carried


class Embed(nnx.Module):
    def __init__(self, config: DecoderConfig):
        self.w_VD = _weight(config.vocab_padded, config.d_model)


class Head(nnx.Module):
    def __init__(self, config: DecoderConfig):
        self.w_DV = _weight(config.d_model, config.vocab_padded)


def _dot(x: Array, weight: nnx.Param, axes: int) -> Array:
    """Contract the last `axes` of x with the first of the weight, in the dtype of x."""
    return jnp.tensordot(x, weight[...].astype(x.dtype), axes)


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


def rotary(position: Array, head_dim: int, theta: float) -> Callable[[Array], Array]:
    """Rotation of [..., heads, K] vectors to `position[...]` (Su et al. 2104.09864, eq. 34).

    Half-split convention of the Hugging Face checkpoints: pair i is (x_i, x_{i+K/2}), turned by
    position · theta^(−2i/K). Angles in float32.
    """
    power = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequency = (1.0 / theta**power).reshape((1,) * position.ndim + (-1,))
    angle = position.astype(jnp.float32)[..., None] * frequency
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]

    def rotate(x: Array) -> Array:
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        turned = (first * cos - second * sin, second * cos + first * sin)
        return jnp.concatenate(turned, axis=-1).astype(x.dtype)

    return rotate
