"""Small parameters for tests, made by numpy: `Model.init` would be compiled once a test file."""

import jax
import jax.numpy as jnp
import numpy as np


def random_params(model, seed: int, scale: float = 0.1):
    """Normal arrays of the model's shapes; norm scales around 1."""
    draw = np.random.default_rng(seed)

    def leaf(path, struct):
        mean = 1.0 if "scale" in jax.tree_util.keystr(path[-1:]) else 0.0
        return jnp.asarray(mean + scale * draw.normal(size=struct.shape), struct.dtype)

    return jax.tree_util.tree_map_with_path(leaf, model.abstract())
