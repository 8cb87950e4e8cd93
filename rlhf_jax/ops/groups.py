"""Statistics of groups that are told by id: rows of a group may lie anywhere and differ in number.

`group_B` holds ids in [0, B). Statistics are segment sums with B segments, so shapes stay static; a
valid entry under any other id (a dataset's own numbers, say) becomes NaN, which no run overlooks.
Whole numbers and half precision are computed in float32.
Entries that are all equal within their group give exactly 0 (a float32 mean leaves a residue that
a small standard deviation would blow up), and so does a group with one entry. What is not valid is
left out of the statistics, whatever it holds, and gets 0.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import Array


def group_normalise(
    score_B: Array, group_B: Array, *, ddof: int, eps: float, valid_B: Array | None = None
) -> Array:
    """(r_i − mean(group)) / (std(group) + eps); a group of equal scores, or of one, gives 0.

    (2402.03300, section 4.1.2, "outcome supervision".)

    Args:
        score_B: [B].
        group_B: [B] int, ids in [0, B).
        ddof: 0 population, 1 sample standard deviation.
        eps: ≥ 0, added to the standard deviation.
        valid_B: [B] bool; False is left out of the statistics and gets 0.
    """
    chex.assert_rank([score_B, group_B], 1)
    valid_B = _all_valid(score_B, valid_B)
    normal_BT = group_normalise_entries(
        score_B[:, None], valid_B[:, None], group_B, ddof=ddof, eps=eps
    )
    return normal_BT[:, 0]


def group_normalise_entries(
    x_BT: Array, valid_BT: Array, group_B: Array, *, ddof: int, eps: float
) -> Array:
    """(x − mean)/(std + eps) over all valid entries of all rows of a group together.

    (2402.03300, section 4.1.3: the step rewards of a group are normalised as one set.)

    Args:
        x_BT: [B, T].
        valid_BT: [B, T] bool; False is left out and gets 0.
        group_B, ddof, eps: as in `group_normalise`.
    """
    centred_BT = _centred(x_BT, valid_BT, group_B)
    count_B = _per_group(jnp.sum(valid_BT, axis=1, dtype=centred_BT.dtype), group_B)
    squares_B = _per_group(jnp.sum(centred_BT**2, axis=1), group_B)
    std_B = jnp.sqrt(squares_B / jnp.maximum(count_B - ddof, 1.0))
    # Where the deviations are exactly 0 (equal group, nothing valid) divide by 1, not by 0.
    return centred_BT / jnp.where(std_B > 0, std_B + eps, 1.0)[:, None]


def group_centred(score_B: Array, group_B: Array, *, valid_B: Array | None = None) -> Array:
    """r_i − mean(group); arguments and rules as in `group_normalise` (2503.20783, section 3.2)."""
    chex.assert_rank([score_B, group_B], 1)
    return _centred(score_B[:, None], _all_valid(score_B, valid_B)[:, None], group_B)[:, 0]


def group_leave_one_out(score_B: Array, group_B: Array, *, valid_B: Array | None = None) -> Array:
    """r_i − mean of the others = k/(k − 1)·(r_i − mean(group))   (2402.14740, eq. 6)

    Arguments and rules as in `group_normalise`; a group of one has no others and gives 0.
    """
    centred_B = group_centred(score_B, group_B, valid_B=valid_B)
    count_B = _per_group(_all_valid(score_B, valid_B).astype(centred_B.dtype), group_B)
    return centred_B * count_B / jnp.maximum(count_B - 1.0, 1.0)


def group_leave_one_out_normalised(
    score_B: Array, group_B: Array, *, ddof: int, eps: float, valid_B: Array | None = None
) -> Array:
    """(r_i − mean of the others) / (std of the others + eps); not divided where that std is 0.

    With c the deviations from the group's mean and S = Σc², the others' squares about their own
    mean are S − c_i²·k/(k − 1). Where the others are all equal that is only rounding, so equality
    is told by counting, and the difference itself is returned: [0, 0, 1] gives 1 for the third.

    Args: as in `group_normalise`.
    """
    valid_B = _all_valid(score_B, valid_B)
    centred_B = group_centred(score_B, group_B, valid_B=valid_B)
    count_B = _per_group(valid_B.astype(centred_B.dtype), group_B)
    ratio_B = count_B / jnp.maximum(count_B - 1.0, 1.0)
    squares_B = _per_group(centred_B**2, group_B) - centred_B**2 * ratio_B
    std_B = jnp.sqrt(jnp.maximum(squares_B, 0.0) / jnp.maximum(count_B - 1.0 - ddof, 1.0))
    divide_B = (std_B > 0) & ~_others_equal(score_B, group_B, valid_B)
    return centred_B * ratio_B / jnp.where(divide_B, std_B + eps, 1.0)


def mixed_group(score_B: Array, group_B: Array, valid_B: Array | None = None) -> Array:
    """True on rows whose group holds at least two different scores (2503.14476, eq. 11)."""
    low_B, high_B = _range(score_B[:, None], _all_valid(score_B, valid_B)[:, None], group_B)
    return high_B > low_B


def _others_equal(score_B, group_B, valid_B):
    """True where all valid scores of the group but the row's own are one number."""
    low_B, high_B = _range(score_B[:, None], valid_B[:, None], group_B)
    others_B = _per_group(valid_B.astype(jnp.int32), group_B) - 1
    lows_B = _per_group((valid_B & (score_B == low_B)).astype(jnp.int32), group_B)
    highs_B = _per_group((valid_B & (score_B == high_B)).astype(jnp.int32), group_B)
    odd_high_B = (score_B == high_B) & (lows_B >= others_B)
    odd_low_B = (score_B == low_B) & (highs_B >= others_B)
    return odd_high_B | odd_low_B


def _all_valid(score_B, valid_B):
    return jnp.ones(score_B.shape, bool) if valid_B is None else valid_B


def _range(x_BT, valid_BT, group_B):
    """Smallest and largest valid entry of each row's group."""
    rows = x_BT.shape[0]
    high_B = jnp.max(jnp.where(valid_BT, x_BT, -jnp.inf), axis=1)
    low_B = jnp.min(jnp.where(valid_BT, x_BT, jnp.inf), axis=1)
    high_B = jax.ops.segment_max(high_B, group_B, rows)[group_B]
    return jax.ops.segment_min(low_B, group_B, rows)[group_B], high_B


def _centred(x_BT, valid_BT, group_B):
    x_BT = x_BT.astype(jnp.promote_types(x_BT.dtype, jnp.float32))
    valid_BT = valid_BT.astype(bool)
    clean_BT = jnp.where(valid_BT, x_BT, 0)
    count_B = _per_group(jnp.sum(valid_BT, axis=1, dtype=x_BT.dtype), group_B)
    mean_B = _per_group(jnp.sum(clean_BT, axis=1), group_B) / jnp.maximum(count_B, 1.0)
    low_B, high_B = _range(x_BT, valid_BT, group_B)
    counts_BT = valid_BT & (high_B > low_B)[:, None]
    centred_BT = jnp.where(counts_BT, clean_BT - mean_B[:, None], 0)
    known_B = (group_B >= 0) & (group_B < x_BT.shape[0])
    return jnp.where(valid_BT & ~known_B[:, None], jnp.nan, centred_BT)


def _per_group(x_B, group_B):
    """Each row's group sum."""
    return jax.ops.segment_sum(x_B, group_B, num_segments=x_B.shape[0])[group_B]
