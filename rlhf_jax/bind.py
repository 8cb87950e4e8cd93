"""`bind(fn, **kw)`: a partial that can be compared, printed, and passed through `jax.jit`.

`functools.partial` and closures compare by identity: two equal algorithms would retrace, and a
test could not say that they are equal. A `Bound` compares by function and arguments, its repr is
the line that a log shows, and it is a pytree: floats (and arrays, and nested `Bound`s) are
leaves, so sweeping a coefficient costs no second trace; functions, ints, strings, bools and None
are static. Off is None, never 0.0: a leaf may be traced, so no Python branch may read it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax

_STATIC = (bool, int, str, bytes, type(None))


@jax.tree_util.register_pytree_with_keys_class
class Bound:
    """A function with some keyword arguments fixed. Make one with `bind`."""

    __slots__ = ("fn", "kw")

    def __init__(self, fn: Callable, kw: dict[str, Any]):
        object.__setattr__(self, "fn", fn)
        object.__setattr__(self, "kw", dict(sorted(kw.items())))

    def __setattr__(self, name, value):
        raise AttributeError(f"Bound is frozen; use .replace({name}=...) instead")

    def __call__(self, *args, **kw):
        return self.fn(*args, **{**self.kw, **kw})

    def replace(self, **kw) -> Bound:
        """The same function with some arguments changed; unknown names raise as in `bind`."""
        return bind(self.fn, **{**self.kw, **kw})

    def __eq__(self, other):
        return isinstance(other, Bound) and self.fn is other.fn and self.kw == other.kw

    def __hash__(self):
        return hash((self.fn, tuple(self.kw.items())))

    def __repr__(self):
        inside = ", ".join(f"{k}={_shown(v)}" for k, v in self.kw.items())
        return f"{self.fn.__name__}({inside})"

    def __reduce__(self):
        return _rebuild, (self.fn, self.kw)

    def tree_flatten_with_keys(self):
        leaves = [(k, v) for k, v in self.kw.items() if not _is_static(v)]
        static = tuple((k, v) for k, v in self.kw.items() if _is_static(v))
        keyed = [(jax.tree_util.GetAttrKey(k), v) for k, v in leaves]
        return keyed, (self.fn, tuple(k for k, _ in leaves), static)

    @classmethod
    def tree_unflatten(cls, aux, values):
        fn, names, static = aux
        return cls(fn, {**dict(zip(names, values, strict=True)), **dict(static)})


def _shown(value) -> str:
    """A function by its name: its address differs from run to run."""
    plain = callable(value) and not isinstance(value, Bound)
    return getattr(value, "__name__", None) or repr(value) if plain else repr(value)


def _rebuild(fn, kw):
    return Bound(fn, kw)


def _is_static(value) -> bool:
    if isinstance(value, tuple):
        return all(_is_static(v) for v in value)
    return isinstance(value, _STATIC) or (callable(value) and not isinstance(value, Bound))


def bind(fn: Callable, **kw) -> Bound:
    """Fix keyword arguments of a module-level function.

    Args:
        fn: a function found by name in its module (no lambda, no closure: those compare by
            identity), or a `Bound`, whose arguments are then extended.
        **kw: values for its keyword arguments.

    Raises:
        TypeError: `fn` is a lambda, closure or partial, or does not take one of the names.
    """
    if isinstance(fn, Bound):
        return fn.replace(**kw)
    name = getattr(fn, "__qualname__", None)
    if name is None or "<" in name:
        raise TypeError(
            f"bind takes a module-level function, not {name or fn!r}: equal algorithms must "
            "compare equal; define the function with `def` at the top of a file"
        )
    parameters = inspect.signature(fn).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [k for k in kw if k not in parameters]
    if unknown and not takes_any:
        raise TypeError(f"{fn.__name__} takes no {unknown}; it takes {list(parameters)}")
    return Bound(fn, kw)
