"""Whether two answers are equal in mathematics, by math-verify: what a worker of `maths` runs.

math-verify's own time limit is `signal.alarm`, which works in the main thread alone and cannot
stop a long computation in C; it is off here, and the worker's runner is killed instead.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

# Forms that answers often have. The LaTeX parser learns a form when it first sees it, in tenths of
# a second; a runner forked after that knows it.
_WARM = (
    (r"\frac{1}{2}", "0.5"),
    (r"x^2+2x+1", "(x+1)^2"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"(-\infty,3]", r"(1,2)"),
    (r"\sqrt{2}/2", r"\frac{\sqrt{2}}{2}"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    (r"x=5", r"5\%"),
    (r"2\pi r", r"\sin(x)"),
    (r"1,2", r"90^\circ"),
    (r"3+4i", r"\log_2 8"),
    (r"x\le 3", r"5!"),
)


def load() -> None:
    logging.disable(logging.CRITICAL)  # math-verify warns once that its time limit is off
    for gold, answer in _WARM:
        equal(gold, answer)


def enter(options: dict[str, Any]) -> None:
    """Nothing to do in a new runner."""


def work(item: list[str]) -> bool | None:
    """`equal` of (gold, answer)."""
    return equal(*item)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> tuple:
    from math_verify import LatexExtractionConfig, parse

    settings = LatexExtractionConfig(boxed_match_priority=-1)
    return tuple(parse(f"${text}$", [settings], fallback_mode="no_fallback", parsing_timeout=None))


def equal(gold: str, answer: str) -> bool | None:
    """True or False; None where the gold answer cannot be read as mathematics."""
    from math_verify import verify

    read = _parsed(gold)
    if not read:
        return None
    found = _parsed(answer)
    return bool(found and verify(list(read), list(found), timeout_seconds=None))
