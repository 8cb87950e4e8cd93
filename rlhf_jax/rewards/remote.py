"""Two processes that call each other's functions and hand over nothing but plain data.

One holds the tests, the other the program that nobody trusts. What the program returns arrives as
numbers, texts and containers of them, rebuilt here from JSON, so an object that claims to equal
everything, a patched builtin or a rewritten assert never reaches a test. What is no plain data
arrives as a `Remote`, which forwards calls and attributes and equals only itself.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import importlib
import json
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

MAX_ITEMS = 100_000  # taken from one iterator


class AnswerGone(BaseException):
    """The program's process has ended; no `except Exception` in a test may hide it."""


class AnswerError(Exception):
    """The program raised something that is no exception of Python's own."""


class Peer:
    """One end of the line.

    Args:
        read_fd, write_fd: pipes to the other end.
        trusting: whether the other end may reach into what it was given. The end with the tests
            allows calls alone.
    """

    def __init__(self, read_fd: int, write_fd: int, *, trusting: bool):
        self.read = os.fdopen(read_fd, "rb")
        self.write_fd, self.trusting = write_fd, trusting
        self.given: list[Any] = []
        self.number_of: dict[int, int] = {}

    def send(self, message: Any) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        try:
            while data:
                data = data[os.write(self.write_fd, data) :]
        except OSError:
            raise AnswerGone from None

    def receive(self) -> Any:
        line = self.read.readline()
        if not line:
            raise AnswerGone
        return json.loads(line)

    def request(self, kind: str, target: int, *what: Any) -> Any:
        """Ask the other end; serve what it asks meanwhile; return or raise what it answers."""
        self.send([kind, target, *what])
        while True:
            message = self.receive()
            if message[0] == "return":
                return message[1:]
            if message[0] == "raise":
                raise _exception(str(message[1]), str(message[2]))
            self.serve(message)

    def serve(self, message: list[Any]) -> None:
        """Answer one request."""
        try:
            answer = ["return", *self._do(*message)]
        except AnswerGone:
            raise
        except BaseException as error:  # sys.exit() in a program is an error like any other
            try:
                text = str(error)[:1000]
            except BaseException:
                text = ""
            answer = ["raise", type(error).__name__, text]
        self.send(answer)

    def _do(self, kind: str, target: int, *what: Any) -> list[Any]:
        thing = self.given[target]
        if kind == "call":
            args = [self.decode(value) for value in what[0]]
            before = [json.dumps(value) for value in what[0]]
            keywords = {name: self.decode(value) for name, value in what[1].items()}
            result = self.encode(thing(*args, **keywords))
            # arguments that were changed in place go back
            after = [
                self.encode(arg) if isinstance(arg, (list, dict, set, bytearray)) else None
                for arg in args
            ]
            changed = {
                place: value
                for place, value in enumerate(after)
                if value is not None and json.dumps(value) != before[place]
            }
            return [result, changed]
        if not self.trusting:
            raise PermissionError(kind)
        if kind == "get":
            return [self.encode(getattr(thing, what[0]))]
        return [self.encode(_OPERATIONS[kind](thing, *map(self.decode, what)))]

    def encode(self, value: Any) -> Any:
        """JSON of a value; what is not plain data becomes a number in `given`.

        Of a subclass only the part that is plain: a class of the program's own cannot speak for
        its objects.
        """
        if value is None or value is True or value is False:
            return value
        if isinstance(value, Remote):
            return {"yours": value._Remote__number}
        for kind, plain in _SCALARS:
            if isinstance(value, kind):
                return plain(value)
        if isinstance(value, list):
            return [self.encode(item) for item in list.__iter__(value)]
        for kind, tag in ((tuple, "tuple"), (set, "set"), (frozenset, "frozenset")):
            if isinstance(value, kind):
                return {tag: [self.encode(item) for item in kind.__iter__(value)]}
        if isinstance(value, collections.deque):
            items = [self.encode(item) for item in collections.deque.__iter__(value)]
            return {"deque": [items, value.maxlen]}
        if isinstance(value, dict):
            items = [[self.encode(k), self.encode(v)] for k, v in dict.items(value)]
            return {"dict": items}
        if type(value) in _STANDARD:
            return {"standard": [type(value).__name__, *map(self.encode, value.__reduce__()[1])]}
        if isinstance(value, types.ModuleType) and value.__name__ in sys.modules:
            return {"module": value.__name__}
        if isinstance(value, Iterator) and self.trusting:
            return {"iterator": [self.encode(v) for v, _ in zip(value, range(MAX_ITEMS))]}  # noqa: B905
        if hasattr(value, "item") and getattr(value, "shape", None) == ():
            return self.encode(value.item())  # a scalar of NumPy
        return self._give(value)

    def _give(self, value: Any) -> Any:
        number = self.number_of.get(id(value))
        if number is None:
            number = self.number_of[id(value)] = len(self.given)
            self.given.append(value)  # kept, so its id stays its own
        return {"mine": number}

    def decode(self, value: Any) -> Any:
        """The value of `encode`'s JSON from the other end."""
        if not isinstance(value, (dict, list)):
            return value
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        ((tag, inside),) = value.items()
        if tag == "mine":
            return Remote(self, inside)
        if tag == "yours":
            return self.given[inside]
        if tag == "module":
            return importlib.import_module(inside)
        if tag in _NUMBERS:
            return _NUMBERS[tag](inside)
        if tag == "dict":
            return {self.decode(k): self.decode(v) for k, v in inside}
        if tag == "deque":
            return collections.deque(map(self.decode, inside[0]), inside[1])
        if tag == "standard":
            kind = next(kind for kind in _STANDARD if kind.__name__ == inside[0])
            return kind(*map(self.decode, inside[1:]))
        return _CONTAINERS[tag](map(self.decode, inside))


class Remote:
    """Something on the other end. Calls, attributes, items and iteration are forwarded."""

    __slots__ = ("__number", "__peer")

    def __init__(self, peer: Peer, number: int):
        self.__peer, self.__number = peer, number

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        peer = self.__peer
        sent = [peer.encode(value) for value in args]
        named = {name: peer.encode(value) for name, value in keywords.items()}
        result, changed = peer.request("call", self.__number, sent, named)
        for place, value in changed.items():
            _refill(args[int(place)], peer.decode(value))
        return peer.decode(result)

    def __ask(self, kind: str, *what: Any) -> Any:
        return self.__peer.decode(
            self.__peer.request(kind, self.__number, *map(self.__peer.encode, what))[0]
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self.__ask("get", name)

    def __len__(self) -> int:
        return self.__ask("len")

    def __iter__(self) -> Any:
        return iter(self.__ask("list"))

    def __getitem__(self, key: Any) -> Any:
        return self.__ask("item", key)

    def __str__(self) -> str:
        return str(self.__ask("str"))

    def __repr__(self) -> str:
        return str(self.__ask("repr"))


_OPERATIONS = {
    "len": len,
    "list": lambda thing: [item for item, _ in zip(thing, range(MAX_ITEMS))],  # noqa: B905
    "item": lambda thing, key: thing[key],
    "str": str,
    "repr": repr,
}
# kind -> its JSON; by the kind's own methods, not by those of a subclass
_SCALARS = (
    (int, lambda value: int.__index__(value)),
    (float, lambda value: float.__float__(value)),
    (str, lambda value: "".join(str.__iter__(value))),
    (complex, lambda value: {"complex": [value.real, value.imag]}),
    (bytes, lambda value: {"bytes": list(bytes.__iter__(value))}),
    (bytearray, lambda value: {"bytearray": list(bytearray.__iter__(value))}),
    (range, lambda value: {"range": [value.start, value.stop, value.step]}),
    (decimal.Decimal, lambda value: {"decimal": decimal.Decimal.__str__(value)}),
    (
        fractions.Fraction,
        lambda value: {"fraction": [int(value.numerator), int(value.denominator)]},
    ),
)
_NUMBERS = {
    "complex": lambda parts: complex(*parts),
    "bytes": bytes,
    "bytearray": bytearray,
    "range": lambda parts: range(*parts),
    "decimal": decimal.Decimal,
    "fraction": lambda parts: fractions.Fraction(*parts),
}
_CONTAINERS = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": lambda items: iter(list(items)),
}
_STANDARD = (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)


def _refill(old: Any, new: Any) -> None:
    """`old` with what `new` holds, in place."""
    if isinstance(old, (list, bytearray)):
        old[:] = new
    else:
        old.clear()
        old.update(new)


def _exception(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # such as UnicodeDecodeError, which takes five arguments
            pass
    return AnswerError(f"{name}: {text}")
