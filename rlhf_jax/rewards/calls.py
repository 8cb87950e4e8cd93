"""How reward functions are called: one after another, or beside each other where that helps."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from rlhf_jax.rewards.notes import counting


@dataclass(frozen=True)
class Called:
    """What became of one call: a value or an error, its counts, and how long it took."""

    value: Any
    error: Exception | None
    counts: Counter
    seconds: float


def called(reward: Callable, asked: tuple[list, list, list]) -> Called:
    """Call a function, awaiting what it returns if that is awaitable; its exceptions are kept."""
    began = time.monotonic()
    value, error = None, None
    with counting() as counts:
        try:
            value = reward(*map(list, asked))  # its own lists: it may do with them as it likes
            if inspect.isawaitable(value):
                value = _finished(value)
        except Exception as raised:
            error = raised
        except SystemExit as left:  # it would end the run, maybe with the exit code of a success
            error = RuntimeError(f"a reward function left by SystemExit({left.code!r})")
    return Called(value, error, counts, time.monotonic() - began)


def call_all(rewards: Sequence[Callable], asked: tuple[list, list, list]) -> list[Called]:
    """Call every function; in order.

    Those that wait for something else (`async`, or marked by `notes.overlaps`) start first, in a
    thread each. The others, which may use a device, run here one after another: under several
    processes all devices must see the same programs in the same order.
    """
    beside = [c for c, reward in enumerate(rewards) if len(rewards) > 1 and _waits(reward)]
    found: dict[int, Called] = {}
    with ThreadPoolExecutor(max(len(beside), 1), thread_name_prefix="reward") as threads:
        # a context each: one context cannot be entered by two threads
        started = {c: threads.submit(copy_context().run, called, rewards[c], asked) for c in beside}
        for c, reward in enumerate(rewards):
            if c not in started:
                found[c] = called(reward, asked)
        found |= {c: future.result() for c, future in started.items()}
    return [found[c] for c in range(len(rewards))]


def _waits(reward: Callable) -> bool:
    fn = getattr(reward, "fn", reward)  # a Bound holds the function
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004  an object whose __call__ is async
    )
    return is_async or getattr(fn, "overlaps", False)


def _finished(awaitable: Awaitable[Any]) -> Any:
    """Its result, also where this thread is within an event loop already, as in a notebook."""

    async def result() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(result())
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(copy_context().run, asyncio.run, result()).result()
