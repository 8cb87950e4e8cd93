"""What a reward function tells beside its scores: counts for the metrics, how it may be run, and
which files it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from rlhf_jax.bind import Bound

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


def reads_files(look: Callable[..., str]) -> Callable[[Callable], Callable]:
    """Marks a function that reads files which its arguments name, a model's for example.

    A run looks at them before it begins, and does not go on with others: `look(**its arguments)`
    refuses files that the function could not use and returns a fingerprint of their content.
    """

    def mark(reward: Callable) -> Callable:
        reward.look = look
        return reward

    return mark


def look_at_files(rewards: Iterable[Callable]) -> list[str]:
    """Fingerprints of the files that reward functions read, those within others' arguments too.

    Raises:
        ConfigError: a function could not use its files.
    """
    found = []
    for reward in rewards:
        fn, kw = getattr(reward, "fn", reward), getattr(reward, "kw", {})
        found += look_at_files(value for value in kw.values() if isinstance(value, Bound))
        if hasattr(fn, "look"):
            found.append(fn.look(**kw))
    return found
