"""What an argument's name promises throughout this package, and the refusal of other numbers."""

from __future__ import annotations

from rlhf_jax.bind import Bound
from rlhf_jax.errors import check_number

_UNIT = {"low": 0.0, "high": 1.0}
_NOT_NEGATIVE = {"low": 0.0}
_POSITIVE = {"low": 0.0, "open_low": True}
_COUNT = {"low": 1}
_FLIPPED = {"low": 0.0, "high": 0.5, "open_high": True}

# The range outside which a number is a mistake, whichever function takes it.
RANGES = {
    **dict.fromkeys(("gamma", "lam", "ddof"), _UNIT),
    **dict.fromkeys(("low", "high", "clip", "eps", "cache"), _NOT_NEGATIVE),
    **dict.fromkeys(("target", "horizon", "most", "limit", "gain", "alpha"), _POSITIVE),
    **dict.fromkeys(("tau_positive", "tau_negative"), _POSITIVE),
    **dict.fromkeys(("least", "share"), _UNIT),
    "threshold": _NOT_NEGATIVE,
    "cap": {"low": 1.0},
    **dict.fromkeys(("length", "max_length", "batch"), _COUNT),
    "floor": {"high": 0.0},
    # preferences
    **dict.fromkeys(("beta", "tau"), _POSITIVE),
    **dict.fromkeys(
        ("margin", "penalty", "odds", "desirable_weight", "undesirable_weight"), _NOT_NEGATIVE
    ),
    "smoothing": _FLIPPED,
    "soft": {**_FLIPPED, "open_low": True},
}


def check_numbers(where: str, part) -> None:
    """Refuse concrete numbers out of range; traced ones pass (jax rebuilds records with them).

    Args:
        where: name of the part, for the message.
        part: a number, a `Bound` (its arguments, by name if the function is this package's), or a
            record or tuple of such.

    Raises:
        ConfigError: a number is not finite, or outside what its name promises.
    """
    if isinstance(part, Bound):
        ours = part.fn.__module__.startswith("rlhf_jax.")
        for name, value in part.kw.items():
            if isinstance(value, Bound):
                check_numbers(f"{where}.{name}", value)
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                check_number(f"{where}.{name}", value, **(RANGES.get(name, {}) if ours else {}))
    elif hasattr(part, "__dataclass_fields__") and not type(part).__module__.startswith("jax."):
        # jax rebuilds records with records of its own in the place of numbers
        for field in part.__dataclass_fields__:
            check_numbers(f"{where}.{field}", getattr(part, field))
    elif isinstance(part, tuple):
        for item in part:
            check_numbers(where, item)
    elif isinstance(part, (int, float)):
        check_number(where, part)
