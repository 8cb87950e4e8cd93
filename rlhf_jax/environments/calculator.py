"""A calculator that a policy may call before it answers: `<calc>12*7</calc>`."""

from __future__ import annotations

import ast
import operator
import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rlhf_jax.environments.contract import Row, Step
from rlhf_jax.errors import check_number

_CALL = re.compile(r"<calc>(.*?)</calc>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ALLOWED = re.compile(r"[0-9.+\-*/%()\s]+")
_LEADING_ZEROS = re.compile(r"(?<![0-9.])0+(?=[0-9])")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")
_LONGEST, _DIGITS, _POWER = 200, 60, 64  # characters of an expression, digits of a number

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg}


@dataclass(kw_only=True)
class Calculator:
    """A problem whose answer is a number, with a calculator at hand.

    A text with calls, `<calc>EXPRESSION</calc>`, gets a result for each, `<result>84</result>`, or
    what is wrong with it: `<result>error: division by zero</result>`. A text without a call ends
    the dialogue: reward 1 where what stands in its last `<answer>` tags (without such tags, the
    whole of it) is the row's "answer", as a number or as the same text, else 0. A row without an
    "answer" is not judged.

    Args:
        call_cost: the reward of a text with calls is −call_cost for each of them.
    """

    call_cost: float = 0.0
    _answer: str | None = field(default=None, init=False, repr=False)

    def __post_init__(self):
        check_number("call_cost", self.call_cost)

    def reset(self, row: Row) -> None:
        answer = row.get("answer")
        self._answer = None if answer is None else str(answer).strip()

    def step(self, text: str) -> Step:
        calls = _CALL.findall(text)
        if calls:
            results = "".join(f"<result>{calculated(call)}</result>" for call in calls)
            cost = self.call_cost * len(calls)
            return Step(results, None if self._answer is None else 0.0 - cost, False)
        if self._answer is None:
            return Step(None, None, True)
        final = _ANSWER.findall(text) or [text]
        return Step(None, float(same(final[-1].strip(), self._answer)), True)


def calculated(expression: str) -> str:
    """The value of an arithmetic expression as text, or "error: …".

    Numbers, + - * / // % ** and brackets, computed exactly and written with up to ten digits; the
    expression is parsed and its tree walked, never evaluated as code.
    """
    try:
        return _written(value_of(expression))
    except ZeroDivisionError:
        return "error: division by zero"
    except ValueError as error:
        return f"error: {error}"


def value_of(expression: str) -> Fraction:
    """The exact value.

    Raises:
        ValueError: it is no such expression, too long, or a number in it grows too large.
        ZeroDivisionError: it divides by zero.
    """
    if len(expression) > _LONGEST:
        raise ValueError("too long")
    if not _ALLOWED.fullmatch(expression):
        raise ValueError("only numbers, + - * / // % ** and brackets")
    try:
        line = " ".join(expression.split())
        tree = ast.parse(_LEADING_ZEROS.sub("", line), mode="eval")
        return _value(tree.body)
    except (SyntaxError, RecursionError, MemoryError):
        raise ValueError("not an expression") from None


def same(text: str, answer: str) -> bool:
    """Are the two the same text, or numbers of one value?"""
    if text == answer:
        return True
    if max(len(text), len(answer)) > _LONGEST:
        return False
    numbers = all(_NUMBER.fullmatch(number) for number in (text, answer))
    return numbers and Fraction(text) == Fraction(answer)


def _value(node: Any) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            # the digits as written: 0.1 is a tenth
            value = Fraction(repr(node.value))
        case ast.UnaryOp(op=op) if type(op) in _UNARY:
            value = _UNARY[type(op)](_value(node.operand))
        case ast.BinOp(op=ast.Pow()):
            value = _power(_value(node.left), _value(node.right))
        case ast.BinOp(op=op) if type(op) in _BINARY:
            value = Fraction(_BINARY[type(op)](_value(node.left), _value(node.right)))
        case _:
            raise ValueError("not an expression")
    if max(abs(value.numerator), value.denominator) >= 10**_DIGITS:
        raise ValueError("too large")
    return value


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _POWER:
        raise ValueError(f"powers are whole numbers within ±{_POWER}")
    return base ** int(exponent)


def _written(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.10g}"
