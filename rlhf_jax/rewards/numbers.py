"""Numbers and lists of numbers as answers write them, compared exactly, in microseconds."""

from __future__ import annotations

import re
from fractions import Fraction

_WHOLE = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_NUMBER = re.compile(rf"([-+]?)\s*\$?\s*({_WHOLE}?)(?:\.(\d*))?(\s*\\?%)?")
_FRACTION = re.compile(rf"([-+]?)\s*({_WHOLE})\s*/\s*({_WHOLE})")
_LATEX_FRACTION = re.compile(
    r"([-+]?)\s*\\[dt]?frac\s*(?:\{\s*(\d+)\s*\}|\s*(\d))\s*(?:\{\s*(\d+)\s*\}|\s*(\d))"
)


def number(text: str) -> Fraction | None:
    r"""The value of 1,234.50, -7, .5, 3/4, \frac{3}{4}, \frac34, and 50\% (here 50); else None."""
    text = text.strip().removesuffix(r"\%").removesuffix("%").rstrip()
    found = _LATEX_FRACTION.fullmatch(text)
    if found:
        sign, *parts = found.groups()
        top, bottom = [part for part in parts if part is not None]
    else:
        found = _FRACTION.fullmatch(text)
        if found:
            sign, top, bottom = found.groups()
        else:
            found = _NUMBER.fullmatch(text)
            if not found or not (found.group(2) or found.group(3)):
                return None
            sign, whole, decimals = found.group(1), found.group(2), found.group(3) or ""
            top, bottom = f"{whole}{decimals}", "1" + "0" * len(decimals)
    top, bottom = (part.replace(",", "") for part in (top, bottom))
    if max(len(top), len(bottom)) > 300 or int(bottom) == 0:
        return None
    value = Fraction(int(top), int(bottom))
    return -value if sign == "-" else value


def same_number(gold: str, answer: str) -> bool | None:
    """Whether two numbers are equal, to six decimals where one of them is a rounded decimal.

    Where one side alone has a percent sign, that side may also be meant in hundredths. None where
    either is no number.
    """
    left, right = number(gold), number(answer)
    if left is None or right is None:
        return None
    percent = gold.rstrip().endswith("%") != answer.rstrip().endswith("%")
    rounded = any(len(re.sub(r"^[^.]*", "", text)) > 6 for text in (gold, answer))
    slack = Fraction(5, 10**7) if rounded else 0
    scales: tuple = (1,)
    if percent:  # only the side with the sign may be read as hundredths
        scales = (1, Fraction(1, 100)) if answer.rstrip().endswith("%") else (1, 100)
    return any(abs(left - right * scale) <= slack for scale in scales)


_INFINITE = re.compile(r"([-+]?)\s*(?:\\infty|∞)")
_OPENED = re.compile(r"(\\\{|\\lbrace|\(|\[)(.*)(\\\}|\\rbrace|\)|\])", re.DOTALL)
_SET = {r"\lbrace": r"\{", r"\rbrace": r"\}"}


def list_of(text: str) -> tuple[str, list[str]] | None:
    r"""The brackets, such as "(]", and the elements of (1,2], \{1,2\}, or 1, 2 without any ("").

    None where it is no list of two or more, or one nested in another. Commas within a number
    (1,234) make no list.
    """
    text = re.sub(r"\\(?:left|right|displaystyle|[,!;: ])", "", text).strip()
    opened = _OPENED.fullmatch(text)
    brackets, inside = "", text
    if opened:
        left, inside, right = opened.groups()
        brackets = _SET.get(left, left) + _SET.get(right, right)
    elements = [element.strip() for element in inside.split(",")]
    if len(elements) < 2 or re.search(r"[()\[\]]|\\[{}]", inside) or number(inside) is not None:
        return None
    return brackets, elements


def same_list(gold: str, answer: str) -> bool | None:
    """Whether two lists in the same brackets hold equal numbers, infinities included.

    In order in round and square brackets, in any in braces or in none. None where these are no
    such lists, so that something else must decide.
    """
    left, right = list_of(gold), list_of(answer)
    if left is None or right is None or left[0] != right[0]:
        return None
    pairs = [[same_element(a, b) for b in right[1]] for a in left[1]]
    if any(verdict is None for row in pairs for verdict in row):
        return None
    if left[0] in ("", r"\{\}"):  # each of either is in the other
        return all(map(any, pairs)) and all(map(any, zip(*pairs, strict=True)))
    return len(left[1]) == len(right[1]) and all(row[i] for i, row in enumerate(pairs))


def same_element(gold: str, answer: str) -> bool | None:
    """`same_number`, for infinities too."""
    infinite = [_INFINITE.fullmatch(text) for text in (gold, answer)]
    if any(infinite):
        finite = [
            number(text) for text, found in zip((gold, answer), infinite, strict=True) if not found
        ]
        if any(value is None for value in finite):
            return None
        return all(infinite) and len({(found.group(1) or "+") for found in infinite}) == 1
    return same_number(gold, answer)
