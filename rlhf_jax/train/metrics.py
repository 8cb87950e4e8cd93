"""From the additive records of the updates of one step to plain numbers on the host."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rlhf_jax.ops.totals import Peak, Share, Total
from rlhf_jax.parallel.multihost import to_host

_LAST = ("learning_rate", "updates")


def update_numbers(updates: Sequence[dict[str, Any]]) -> dict[str, float]:
    """One number a name for the updates (epochs, minibatches) of one step.

    A `Total` (per token) is pooled: Σ sum / Σ count over all of them, never a mean of means. A
    `Share` (a part of an update's loss) and a norm are averaged over the updates. A `Peak` is the
    largest. `learning_rate` and `updates` are the last. `skipped` counts the skipped updates, and
    those enter nothing else. A name that no update has, or whose Total counted nothing, is absent
    rather than 0 or NaN.

    Args:
        updates: metrics of each update, as `make_update` returns them, still on the device.
    """
    updates = [to_host(metrics) for metrics in updates]
    applied = [metrics for metrics in updates if not metrics["skipped"]]
    numbers = {"skipped": float(len(updates) - len(applied))}
    for name in sorted(
        {name for metrics in applied for name in metrics} - {"rows_bad_B", "skipped"}
    ):
        values = [metrics[name] for metrics in applied if name in metrics]
        number = values[-1] if name in _LAST else _pool(values)
        if number is not None:
            numbers[name] = float(number)
    return numbers


def memory_used() -> dict[str, float]:
    """Most memory held so far, in GiB: `memory/device` of the fullest device of this process, where
    its backend counts (a CPU does not), and `memory/host` of the process. Waits for nothing."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    peaks = [s["peak_bytes_in_use"] for s in stats if "peak_bytes_in_use" in s]
    # Linux counts in KiB, macOS in bytes
    unit = 1 if sys.platform == "darwin" else 2**10
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    numbers = {"memory/host": host / 2**30}
    return numbers | ({"memory/device": max(peaks) / 2**30} if peaks else {})


def bad_rows(updates: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Skipped updates of a step (by position) -> the rows to blame, positions in that update.

    Empty when every update was applied. A list may be empty: each row is finite by itself, and
    the gradient or a sum over rows overflowed.
    """
    updates = [to_host({k: m[k] for k in ("skipped", "rows_bad_B")}) for m in updates]
    return {
        number: np.flatnonzero(metrics["rows_bad_B"]).tolist()
        for number, metrics in enumerate(updates)
        if metrics["skipped"]
    }


def _pool(values: list) -> float | None:
    first = values[0]
    if isinstance(first, Total):
        count = sum(float(value.count) for value in values)
        return sum(float(value.sum) for value in values) / count if count else None
    if isinstance(first, Peak):
        return max(float(value.peak) for value in values)
    if isinstance(first, Share):
        return float(np.mean([value.part for value in values]))
    return float(np.mean(values))
