"""How per-token losses become one number: a weight that depends on mask and groups alone.

loss = Σ_bt weight_bt·ℓ_bt. Take the weight once from the whole (global) update batch, after
filters and corrections have settled the mask; then cut rows into micro-batches and add the sums
and the gradients. No count of micro-batches, devices or processes appears anywhere.

Each function takes (mask_BT, group_B) and gives weight_BT, float32, 0 outside the mask.
`group_B` serves reductions that mean "per prompt"; the ones here do not look at it.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array

from rlhf_jax.ops.masked import masked_count, masked_sum


def token_mean(mask_BT: Array, group_B: Array) -> Array:
    """w = m / Σm: every counted token of the batch weighs the same (2503.14476, eq. 8).

    Args:
        mask_BT: [B, T] bool.
        group_B: [B] int, not used.
    """
    return _checked(mask_BT, group_B) / masked_count(mask_BT)


def sequence_mean(mask_BT: Array, group_B: Array) -> Array:
    """w = m / (|y_i|·B′): the mean over rows of each row's token mean (2402.03300, eq. 3).

    B′ counts the rows with at least one counted token: a row that was filtered or masked away is
    as if it had not been drawn. Short rows weigh more per token.

    Args: as in `token_mean`.
    """
    weight_BT = _checked(mask_BT, group_B)
    rows = masked_count(jnp.any(mask_BT, axis=1))
    return weight_BT / masked_count(mask_BT, axis=1)[:, None] / rows


def sequence_sum(mask_BT: Array, group_B: Array) -> Array:
    """w = m / B: the mean over rows of each row's token sum (2402.14740, eq. 4).

    B counts all rows, empty ones too: the response is one action, and an expectation over actions
    divides by how many were drawn.

    Args: as in `token_mean`.
    """
    return _checked(mask_BT, group_B) / mask_BT.shape[0]


def constant_length(mask_BT: Array, group_B: Array, *, length: int) -> Array:
    """w = m / (B·L): token sums over a constant, the same for short and long rows.

    (2503.20783; the authors' code divides by the generation limit, so that neither the row's nor
    the batch's length enters.) B counts all rows, empty ones too. The paper's equation has no
    constant, and verl's "seq-mean-token-sum-norm" no 1/B: its number is B times this one.

    Args:
        mask_BT, group_B: as in `token_mean`.
        length: L ≥ 1, the most tokens that a response may have.
    """
    return _checked(mask_BT, group_B) / (mask_BT.shape[0] * length)


def _checked(mask_BT, group_B):
    chex.assert_rank([mask_BT, group_B], [2, 1])
    return mask_BT.astype(jnp.float32)


def weighted_sum(loss_BT: Array, weight_BT: Array) -> Array:
    """Σ weight·ℓ; entries of weight 0 are left out, whatever they hold."""
    chex.assert_equal_shape([loss_BT, weight_BT])
    counted_BT = weight_BT != 0
    return masked_sum(jnp.where(counted_BT, loss_BT, 0) * weight_BT, counted_BT)
