"""One kind of error for what a user can mend: wrong option, file, model, data, reward function.

`experiments/launch.py` prints it without a traceback and exits with code 2.
"""

from __future__ import annotations

import difflib
import importlib.util
import math
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np


class ConfigError(ValueError):
    """Says what is wrong, where, and the nearest valid choice."""


class ConfigWarning(UserWarning):
    """A choice that runs, and that does not do what its name suggests: says what instead."""


class Interrupted(RuntimeError):
    """Asked to stop (Ctrl-C), after the loop has saved: says where it stands and how to go on."""


def nearest(name: str, options: Iterable[str]) -> str:
    """A clause for an error message: the near names first, else all of them."""
    options = sorted(map(str, options))
    close = difflib.get_close_matches(str(name), options, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(options)}"


def check_choice(where: str, value: str, options: Iterable[str]) -> None:
    options = tuple(options)
    if value not in options:
        raise ConfigError(f"{where}={value!r} is unknown; {nearest(value, options)}")


def plain_number(value: Any) -> int | float | None:
    """The number that a value is: Python's, or NumPy's (a scalar, an array of no axis); else None.

    Arrays of jax are none: to look at one is to wait for it, and traced ones hold nothing.
    """
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0:
        value = value.item()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def check_number(
    where: str,
    value: float,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Refuse a number that is not finite or outside [low, high] (or the open end asked for)."""
    number = plain_number(value)
    largest = sys.float_info.max  # a whole number may be beyond every float
    if number is None or not -largest <= number <= largest:
        raise ConfigError(f"{where}={value!r} is not a finite number")
    below = number <= low if open_low else number < low
    above = number >= high if open_high else number > high
    if below or above:
        left, right = "(" if open_low else "[", ")" if open_high else "]"
        raise ConfigError(f"{where}={value} is outside {left}{low:g}, {high:g}{right}")


def require(module: str, *, extra: str) -> None:
    """Refuse to go on without a library that is installed by an extra of this package."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{module} is not installed: pip install 'rlhf_jax[{extra}]'")


def check_divides(what: str, whole: int, part_name: str, part: int) -> None:
    """Refuse a batch that does not divide, naming the nearest sizes of either that do."""
    if part < 1 or whole % part:
        options = [d for d in range(1, whole + 1) if whole % d == 0]
        near = sorted(options, key=lambda d: (abs(d - part), d))[:3]
        message = f"{what}={whole} does not divide by {part_name}={part}; nearest: {sorted(near)}"
        if part > 1:  # as of a batch on three devices: it may be the batch that should change
            below = whole // part * part
            wholes = " or ".join(str(n) for n in (below, below + part) if n)
            message += f", or {what}={wholes}"
        raise ConfigError(message)
