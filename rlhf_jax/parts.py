"""Parts of a record as they are given: of the kind that its annotations ask for, bound, in range.

What a record is made of is refused where it is written, not at its first use, hours later and in
the words of a trace. Numbers may be traced: jax takes records apart and puts them together again
with what it likes in the place of their leaves, so only what is plainly something else is refused
there.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import types
import typing
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rlhf_jax.bind import Bound, bind
from rlhf_jax.errors import ConfigError, check_number, plain_number

_UNIT = {"low": 0.0, "high": 1.0}
_NOT_NEGATIVE = {"low": 0.0}
_POSITIVE = {"low": 0.0, "open_low": True}
_COUNT = {"low": 1}
_FLIPPED = {"low": 0.0, "high": 0.5, "open_high": True}

# The range outside which a number is a mistake, whichever function or record takes it.
RANGES = {
    **dict.fromkeys(("gamma", "lam", "ddof"), _UNIT),
    **dict.fromkeys(("low", "high", "clip", "eps", "cache"), _NOT_NEGATIVE),
    **dict.fromkeys(("coef", "centre"), _NOT_NEGATIVE),
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


def settle(record: Any, prefix: str = "") -> None:
    """Bind the functions among the parts of a new algorithm's record; check kinds and numbers.

    A plain module-level function becomes a `Bound`, and a single part a tuple where several may
    stand.

    Args:
        record: a `pytree` dataclass, in its `__post_init__`.
        prefix: of its fields' names in messages.

    Raises:
        ConfigError: a part of another kind than its annotation says; a number that is not finite
            or outside what its name promises (numbers of a user's own functions: not finite).
    """
    for name, hint in _hints(type(record)).items():
        several = typing.get_origin(hint) is tuple
        part = _as_bound(getattr(record, name), several)
        object.__setattr__(record, name, part)
        _check_kind(f"{prefix}{name}", part, hint)
        for item in part if several else (part,):
            _check_numbers(f"{prefix}{name}", name, item)


def check_calls(record: Any, prefix: str = "", **called_with: Sequence[str]) -> None:
    """Refuse parts that could not be called as they will be.

    Args:
        record: with settled parts.
        prefix: of its fields' names in messages.
        called_with: for each part that is a function, the names of the arguments it will be given.

    Raises:
        ConfigError: it takes others, or is bound without a keyword that it needs.
    """
    for name, given in called_with.items():
        part = getattr(record, name)
        for item in part if isinstance(part, tuple) else (part,):
            why = item and _why_not_called(item.fn, tuple(given), tuple(item.kw))
            if why:
                raise ConfigError(
                    f"{prefix}{name}={item} cannot be called with ({', '.join(given)}): {why}; "
                    f"it is {_plain_signature(item.fn)}"
                )


def check_kinds(record: Any, prefix: str = "") -> None:
    """Refuse options of another kind than their annotations say: a text for a number, say.

    Args:
        record: a config, in its `__post_init__`.
        prefix: of its fields' names in messages.

    Raises:
        ConfigError: what, where, and what it takes.
    """
    for name, hint in _hints(type(record)).items():
        _check_kind(f"{prefix}{name}", getattr(record, name), hint)


@lru_cache(maxsize=256)
def _hints(of: Any) -> dict[str, Any]:
    """What may stand in each field of a record, or each argument of a function, if that is told."""
    try:
        hints = typing.get_type_hints(of)
    except (NameError, TypeError):  # names that only a type checker sees
        return {}
    names = getattr(of, "__dataclass_fields__", hints)
    return {name: hints[name] for name in names}


def _as_bound(part: Any, several: bool) -> Any:
    if several:
        parts = part if isinstance(part, (tuple, list)) else (part,)
        return tuple(_as_bound(item, False) for item in parts)
    return bind(part) if callable(part) and not isinstance(part, Bound) else part


def _check_kind(where: str, value: Any, hint: Any) -> None:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = typing.get_args(hint) if union else (hint,)
    if not any(_is_kind(value, kind) for kind in kinds):
        wanted = " or ".join(dict.fromkeys(map(_wanted, kinds)))
        is_type = "left out" if value is None else _with_article(type(value).__name__)
        advice = ""
        if isinstance(value, str) and value.isidentifier() and Bound in kinds:
            advice = f": not its name, but bind({value}, ...)"
        shown = repr(value) if len(repr(value)) <= 80 else f"{repr(value)[:80]}…"
        raise ConfigError(f"{where}={shown} is {is_type}; it takes {wanted}{advice}")
    several = [kind for kind in kinds if typing.get_origin(kind) is tuple]
    if several and isinstance(value, (tuple, list)):
        for item in value:
            _check_kind(where, item, typing.get_args(several[0])[0])


_PLAIN = (str, bytes, bool, list, dict, tuple, set, Bound)


def _is_kind(value: Any, kind: Any) -> bool:
    """Of that kind; of a kind that is not known here anything is."""
    if kind is type(None):
        return value is None
    if kind is Bound:
        return callable(value)
    if kind is bool:
        return isinstance(value, (bool, np.bool_))
    if kind is str:
        return isinstance(value, (str, os.PathLike))
    if kind is int:
        return isinstance(plain_number(value), int)
    if kind is float:  # or what jax puts in the place of a number, which may be a record of its own
        record = dataclasses.is_dataclass(value) and not type(value).__module__.startswith("jax.")
        return not (isinstance(value, _PLAIN) or callable(value) or record)
    if typing.get_origin(kind) is tuple:
        return isinstance(value, (tuple, list))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return isinstance(value, kind)
    return True


_NAMES = {
    Bound: "a function, as bind(function, ...)",
    type(None): "None",
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "True or False",
}


def _wanted(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return f"a tuple, each {_wanted(typing.get_args(kind)[0])}"
    return _NAMES.get(kind) or getattr(kind, "__name__", str(kind))


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _check_numbers(where: str, name: str, part: Any) -> None:
    """Concrete numbers are in range, those of a `Bound` by the names of its arguments."""
    if isinstance(part, Bound):
        ours = part.fn.__module__.startswith("rlhf_jax.")
        for key, value in part.kw.items():
            if key in _hints(part.fn):
                _check_kind(f"{where}.{key}", value, typing.Optional[_hints(part.fn)[key]])  # noqa: UP045
            _check_numbers(f"{where}.{key}", key if ours else "", value)
    elif plain_number(part) is not None:
        check_number(where, part, **RANGES.get(name, {}))


@lru_cache(maxsize=1024)  # asked again whenever jax puts a record together
def _why_not_called(fn: Callable, given: tuple[str, ...], keywords: tuple[str, ...]) -> str | None:
    try:
        inspect.signature(fn).bind(*given, **dict.fromkeys(keywords))
    except TypeError as error:
        return str(error)
    return None


def _plain_signature(fn: Callable) -> str:
    signature = inspect.signature(fn)
    names = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return f"{fn.__name__}{signature.replace(parameters=names, return_annotation=signature.empty)}"
