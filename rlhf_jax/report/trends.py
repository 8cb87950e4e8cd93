"""A metric at the beginning of a run against its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.report.curves import series_of

ERRORS = 3.0  # standard errors that a change must exceed
FEW = 10  # below: the first value against the last


@dataclass(frozen=True)
class Ends:
    """A metric at the beginning and at the end; `error` is the standard error of the change."""

    early: float
    late: float
    error: float

    @property
    def rose(self) -> bool:
        return self.late - self.early > ERRORS * self.error

    @property
    def fell(self) -> bool:
        return self.early - self.late > ERRORS * self.error


class Metrics:
    """The logged lines of a run, asked by name.

    Args:
        lines: of metrics.jsonl.
        samples_per_prompt: G of its rollouts; None: it has none.
    """

    def __init__(self, lines: Iterable[Mapping[str, Any]], samples_per_prompt: int | None = None):
        self.lines = list(lines)
        self.samples_per_prompt = samples_per_prompt

    def values(self, name: str) -> np.ndarray:
        return np.asarray(series_of(self.lines, name)[1], float)

    def names(self, prefix: str) -> list[str]:
        return sorted({n for line in self.lines for n in line if n.startswith(prefix)})

    def ends(self, *names: str) -> Ends | None:
        """Of the first of these metrics that has two values; None if none has."""
        for name in names:
            values = self.values(name)
            if len(values) >= 2:
                return ends(values)
        return None

    @property
    def score(self) -> Ends | None:
        """What the run is trained to raise."""
        return self.ends("score", "eval/score")


def tenth(values: np.ndarray) -> int:
    """How many values the beginning, or the end, is the mean of."""
    return max(5, len(values) // 10)


def ends(values: np.ndarray) -> Ends:
    """Beginning and end of at least two values."""
    if len(values) < FEW:
        return Ends(float(values[0]), float(values[-1]), 0.0)
    width = tenth(values)
    return between(values[:width], values[-width:])


def between(early: np.ndarray, late: np.ndarray) -> Ends:
    """From one stretch of at least two values to another."""
    error = math.sqrt(sum(x.var(ddof=1) / len(x) for x in (early, late)))
    return Ends(float(early.mean()), float(late.mean()), error)
