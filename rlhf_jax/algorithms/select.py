"""Which tokens of a rollout teach: the parts of an objective's `select`.

Each takes `Scored` (its mask after filters) and gives (weight_BT, mask_BT), as a correction does:
the weight multiplies the surrogate alone and leaves the denominators; what leaves the mask leaves
the denominators, the KL and the entropy bonus too. Advantages are settled before, so a row that is
dropped here was still in its group's baseline.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rlhf_jax.errors import ConfigError
from rlhf_jax.types import Scored


def drop_truncated(scored: Scored) -> tuple[Array, Array]:
    """Rows cut short without an end token leave the mask (DAPO's overlong filtering, 2503.14476).

    Their scores stay in the baselines: they were drawn, their outcome is just not to be learned
    from. If every row was cut short nothing is counted and no step is taken.
    """
    mask_BT = scored.mask_BT & ~scored.truncated_B[:, None]
    return jnp.ones(mask_BT.shape, jnp.float32), mask_BT


def top_entropy(scored: Scored, *, share: float = 0.2) -> tuple[Array, Array]:
    """w_t = 1[H_t ≥ the (1 − ρ)-quantile of the batch's H], 0 elsewhere (2506.01939, ρ = .2)

    Only the tokens at which the policy was undecided teach. The quantile runs over the counted
    tokens of the whole rollout, interpolated linearly, never over padding; the entropy is the
    sampler's, of the policy that sampled, so that a cut into updates changes nothing.

    Args:
        scored: reads `entropy_BT`, nats.
        share: ρ in [0, 1], the part of the tokens that stays.

    Raises:
        ConfigError: there is no `entropy_BT`.
    """
    if scored.entropy_BT is None:
        raise ConfigError("select=top_entropy reads Scored.entropy_BT, which is None")
    threshold = _quantile(scored.entropy_BT, scored.mask_BT, 1.0 - share)
    kept_BT = scored.mask_BT & (scored.entropy_BT >= threshold)
    return kept_BT.astype(jnp.float32), scored.mask_BT


def _quantile(x_BT, mask_BT, q):
    """The q-quantile of the counted entries, linear between neighbours."""
    ascending = jnp.sort(jnp.where(mask_BT, x_BT, jnp.inf).ravel())
    last = jnp.maximum(jnp.sum(mask_BT) - 1, 0)
    at = q * last.astype(jnp.float32)
    below = jnp.floor(at).astype(jnp.int32)
    low, high = ascending[below], ascending[jnp.minimum(below + 1, last)]
    # an empty batch holds only infinities, and ∞ − ∞ is NaN
    return low + (at - below) * jnp.where(high > low, high - low, 0)
