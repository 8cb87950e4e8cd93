"""Means over seeds with intervals, and differences between two configs on the same seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95


def mean_interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over the first axis, and half the width of its 95 % interval by Student's t.

    Args:
        values: [n, …], one row a seed.

    Returns:
        mean and half-width, both […]; the latter is NaN where n = 1.
    """
    values = np.asarray(values, float)
    mean, n = values.mean(axis=0), len(values)
    if n < 2:
        return mean, np.full_like(mean, np.nan)
    return mean, _quantile(n) * values.std(axis=0, ddof=1) / math.sqrt(n)


@dataclass(frozen=True)
class Difference:
    """Other minus base over `n` seeds that both have; `half` of the 95 % interval and `p`, of no
    difference by a two-sided paired t-test, are None where n < 2 or all differences are equal."""

    n: int
    mean: float
    half: float | None
    p: float | None


def difference(base: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """Compare two configs seed by seed; None if no seed is in both.

    Args:
        base, other: seed -> outcome.
    """
    seeds = sorted(base.keys() & other.keys())
    if not seeds:
        return None
    deltas = np.array([other[seed] - base[seed] for seed in seeds])
    n, mean = len(deltas), float(deltas.mean())
    error = float(deltas.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
    # equal differences differ by rounding alone: no spread to judge by
    if error <= 1e-12 * max(1.0, abs(mean)):
        return Difference(n, mean, None, None)
    p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Difference(n, mean, _quantile(n) * error, p)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for how many there are (Holm 1979); None stays None."""
    order = sorted((i for i, p in enumerate(ps) if p is not None), key=lambda i: ps[i])
    corrected: list[float | None] = [None] * len(ps)
    least = 0.0
    for rank, i in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * ps[i]))
        corrected[i] = least
    return corrected


def _quantile(n: int) -> float:
    return float(stdtrit(n - 1, 0.5 + CONFIDENCE / 2))
