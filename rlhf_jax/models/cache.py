"""Key/value caches of the decoder: one part per prompt, one part per sample.

The G samples of a prompt share what the prompt wrote: `PromptCache` holds it once. What a sample
has written itself is in `OwnCache`, at one column per step, the same column for every sample:
responses all begin right after the prompt, so a step is one uniform write.

Either every layer's arrays lie stacked on a leading N (`Layers` is one array), or each layer has
its own (`Layers` is a tuple of N arrays without the N): see `Model.unroll_decode`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from rlhf_jax.types import pytree, replace

Layers = Array | tuple[Array, ...]


@pytree
class PromptCache:
    """Rotated keys and values [P, J, L, K] of each layer; `attend_PL` False on prompt padding."""

    k: Layers
    v: Layers
    attend_PL: Array


@pytree
class OwnCache:
    """Rotated keys and values [P, G, J, R, K] of each layer; the first `length` columns are
    written."""

    k: Layers
    v: Layers
    length: Array


def empty_own(prompt: PromptCache, num_samples: int, size: int) -> OwnCache:
    """Room for `size` tokens of each of `num_samples` samples of every prompt."""

    def room(x: Array) -> Array:
        *layers, p, j, _, k = x.shape
        return jnp.zeros((*layers, p, num_samples, j, size, k), x.dtype)

    k, v = jax.tree.map(room, (prompt.k, prompt.v))
    return OwnCache(k=k, v=v, length=jnp.zeros((), jnp.int32))


def grow_own(own: OwnCache, size: int) -> OwnCache:
    """The same cache with room for `size` tokens (at least as many as it has)."""

    def wider(x: Array) -> Array:
        pad = [(0, 0)] * x.ndim
        pad[-2] = (0, size - x.shape[-2])
        return jnp.pad(x, pad)

    k, v = jax.tree.map(wider, (own.k, own.v))
    return replace(own, k=k, v=v)


def write_own(cache_PGJRK: Array, new_PGJK: Array, column: Array) -> Array:
    """One layer's cache with `new_PGJK` at this column."""
    return jax.lax.dynamic_update_slice_in_dim(cache_PGJRK, new_PGJK[:, :, :, None], column, axis=3)
