"""What a reward function tells beside its scores: counts for the metrics, and how it may be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_COUNTS: ContextVar[Counter | None] = ContextVar("reward_counts", default=None)


def note(what: str, count: float = 1) -> None:
    """Count something for the metrics, as reward_WHAT/NAME of the function that is being called.

    Outside `counting`, as where a reward function is called by hand, it does nothing.
    """
    counts = _COUNTS.get()
    if counts is not None:
        counts[what] += count


@contextmanager
def counting() -> Iterator[Counter]:
    """Collects what is noted within, in this thread or in tasks that it starts."""
    counts: Counter = Counter()
    token = _COUNTS.set(counts)
    try:
        yield counts
    finally:
        _COUNTS.reset(token)


def overlaps(reward: Callable) -> Callable:
    """Marks a function that waits for other processes or machines and never uses a device.

    `compose` may call it in a thread of its own, beside others.
    """
    reward.overlaps = True
    return reward
