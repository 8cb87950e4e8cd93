"""Parameters of a model before any training."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

_STD_OF_UNIT = 0.87962566  # standard deviation of a unit normal truncated at 2σ
_CONSTANT = {"scale": 1.0, "gain": 0.0, "bias": 0.0}  # by the first word of a leaf's name
_INTO_RESIDUAL = ("o", "down")  # projections whose output is added to the residual stream


def fill(key: Array, shapes: dict[str, Any], *, width: int, num_layers: int) -> dict[str, Any]:
    """Float32 arrays for a tree of shapes whose names end in their dimensions.

    Matrices are normal truncated at 2σ with σ = 1/√D, which keeps logits and activations of order
    1 at any width; those that write into the residual stream have 1/√(2ND), so that its variance
    at the start does not grow with depth. Scales are 1, gains and biases 0. (A fixed σ = .02 is
    this rule at a width of 2,500; a decoder 96 wide needs several times the steps with it.)

    Every matrix has one axis of the model width D, so one random array [D, columns] is cut into
    all of them: a random call takes .4 s to compile on CPU, and one for each matrix made 5.4 s of
    a small model's start.

    Args:
        shapes: `ShapeDtypeStruct`s, all of them stacked on a leading N or none.
        width: D.
        num_layers: N.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    named = [(*path[-1].key.rsplit("_", 1), leaf.shape) for path, leaf in leaves]
    lead = (num_layers,) if named[0][1].startswith("N") else ()
    columns = [math.prod(shape[len(lead) :]) // width for _, _, shape in named]
    constant = [_CONSTANT.get(name.split("_")[0]) for name, _, _ in named]
    total = sum(c for c, value in zip(columns, constant, strict=True) if value is None)
    unit = jax.random.truncated_normal(key, -2.0, 2.0, (*lead, width, total)) / _STD_OF_UNIT

    arrays, start = [], 0
    for (name, dims, shape), count, value in zip(named, columns, constant, strict=True):
        if value is not None:
            arrays.append(jnp.full(shape, value, jnp.float32))
            continue
        std = 1.0 / math.sqrt(width * (2 * num_layers if name in _INTO_RESIDUAL else 1))
        others = [s for s, dim in zip(shape, dims, strict=True) if dim not in "ND"]
        cut = (unit[..., start : start + count] * std).reshape(*lead, width, *others)
        arrays.append(jnp.moveaxis(cut, len(lead), dims.index("D")))
        start += count
    return jax.tree.unflatten(tree, arrays)
