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


def cut_learnt(
    ids: list[int], learn: list[bool], max_tokens: int, side: str
) -> tuple[list[int], list[bool]] | None:
    """Cut as many tokens as are too many, off the left or the right; None: nothing is left.

    A row without a token to learn teaches nothing, and a first token has nothing to be predicted
    from: what the left cut leaves of a completion that it runs into is read alone.
    """
    surplus = max(0, len(ids) - max_tokens)
    if side == "left":
        ids, learn = ids[surplus:], learn[surplus:]
        opening = learn.index(False) if False in learn else len(learn)
        learn = [False] * opening + learn[opening:]
    else:
        ids, learn = ids[:max_tokens], learn[:max_tokens]
    return (ids, learn) if any(learn) else None


def fit_sides(prompt: list[int], sides: list[list[int]], max_tokens: int, side: str):
    """Cut completions that share a prompt, which stays one and the same for all.

    The longest completion decides how much the prompt loses on the left; on the right each
    completion loses what it has too much. None where any completion would vanish.
    """
    surplus = max(0, len(prompt) + max(map(len, sides)) - max_tokens)
    if side == "left":
        prompt = prompt[surplus:] if surplus < len(prompt) else []
    else:
        room = max(0, max_tokens - len(prompt))
        sides = [completion[:room] for completion in sides]
    return (prompt, sides) if prompt and all(sides) else None
