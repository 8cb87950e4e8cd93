"""Ragged token lists to rectangles: prompts end together, demonstrations begin together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def pad_left(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Right-aligned rows, so that every response begins at column `length`.

    Args:
        rows: token ids, each at most `length` long.
        length: columns of the result (L).
        pad_id: fills the columns before a row; never read, since `attend` is False there.

    Returns:
        tokens int32 and attend bool, both [len(rows), length].

    Raises:
        ValueError: a row is longer than `length`; what to cut is the caller's decision.
    """
    return _pad(rows, length, pad_id, left=True)


def pad_right(
    rows: Sequence[Sequence[int]], length: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Left-aligned rows; arguments, result and error as in `pad_left`."""
    return _pad(rows, length, pad_id, left=False)


def _pad(rows, length, pad_id, *, left):
    tokens = np.full((len(rows), length), pad_id, np.int32)
    attend = np.zeros((len(rows), length), bool)
    for i, ids in enumerate(rows):
        if len(ids) > length:
            raise ValueError(f"row {i} has {len(ids)} tokens, more than the {length} columns")
        # not [-len(ids):], which is the whole row where ids is empty
        where = slice(length - len(ids), length) if left else slice(0, len(ids))
        tokens[i, where] = ids
        attend[i, where] = True
    return tokens, attend
