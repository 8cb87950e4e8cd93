"""Numbers as a person reads them."""

from __future__ import annotations

import math
from typing import Any


def number(value: Any) -> str:
    """Four digits, thousands apart; – for none."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float) and (value != int(value) or abs(value) >= 1e15):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{int(value):,}"


def plus_minus(mean: float, half: float | None, sign: str = "") -> str:
    """0.912 ± 0.013; without ± where there is no interval."""
    known = half is not None and math.isfinite(half)
    return f"{mean:{sign}.3f} ± {half:.3f}" if known else f"{mean:{sign}.3f}"
