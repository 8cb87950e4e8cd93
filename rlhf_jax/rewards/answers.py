"""Which part of a text is its final answer. Text in, text out; nothing here judges."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_MARKER = re.compile(r"####[ \t]*([^\n]*)")
_SAYS = re.compile(
    r"\b(?:final\s+answer|answer)\b(?:\s+is\b)?\s*\**\s*(?:[:=]|(?<=is))\s*\**\s*([^\n]+)",
    re.IGNORECASE,
)
_WRAPPERS = (
    re.compile(r"\$\$(.*)\$\$", re.DOTALL),
    re.compile(r"\$([^$]*)\$", re.DOTALL),
    re.compile(r"\\\[(.*)\\\]", re.DOTALL),
    re.compile(r"\\\((.*)\\\)", re.DOTALL),
    re.compile(r"\*\*(.*)\*\*", re.DOTALL),
    re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|boxed|fbox)\s*\{([^{}]*)\}"),
    re.compile(r"\(\s*([A-Za-z])\s*\)"),  # of a choice: (B)
)
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=[A-Za-z]{2})", re.IGNORECASE)


def balanced(text: str, start: int) -> int | None:
    """Where the brace closes that opens at `start`; None where it never does.

    Escaped braces (\\{ and \\}) are characters of a set, not of the nesting.
    """
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 1
        elif text[at] == "{":
            depth += 1
        elif text[at] == "}":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return None


def last_box(text: str) -> str | None:
    r"""What the last \boxed{...} or \fbox{...} holds, "" where that is nothing.

    None where there is no box, and where the last one is never closed: an answer that was cut off
    is no answer, also after an earlier box. A box without braces (\boxed 5) holds one word.
    """
    found = None
    for found in _BOX.finditer(text):  # noqa: B007  the last one
        pass
    if found is None:
        return None
    start = found.end()
    if text[start : start + 1] == "{":
        end = balanced(text, start)
        return None if end is None else text[start + 1 : end].strip()
    word = re.match(r"[^\s$]+", text[start:])
    return word.group() if word else ""


def after_thinking(text: str) -> str | None:
    """What follows the last </think>; the whole where there is none; None while it still thinks.

    A template may have opened the thought in the prompt, so a close alone is enough.
    """
    _, closed, rest = text.rpartition("</think>")
    if closed:
        return None if "<think>" in rest else rest
    return None if "<think>" in text else text


def final_answer(completion: str) -> str | None:
    r"""The final answer of a completion, wrappers off; None where it gives none.

    Looked for after the thought, in all of it (not in its last so many characters), first found:
    inside the last <answer>...</answer>, then there or in the whole: the last box; the last line
    with ####; what the tag holds; the last "answer is ..." or "answer: ..."; the text itself if
    it is a single line.
    """
    text = after_thinking(completion)
    if text is None:
        return None
    tags = _TAG.findall(text)
    if tags:
        text = tags[-1]
    if _BOX.search(text):
        box = last_box(text)
        return None if box is None else unwrapped(box)
    markers = _MARKER.findall(text)
    if markers:
        return unwrapped(markers[-1])
    if tags:
        return unwrapped(text)
    said = _SAYS.findall(text)
    if said:
        return unwrapped(_sentence(said[-1]))
    text = text.strip()
    return unwrapped(text) if text and "\n" not in text else None


def _sentence(text: str) -> str:
    """Up to the full stop that ends the sentence, not one inside a number."""
    return re.split(r"\.(?=\s|$)", text, maxsplit=1)[0]


def unwrapped(text: str) -> str:
    r"""Without what says nothing: dollar signs, \( \), **, \text{}, a trailing full stop or colon,
    the parentheses of a single letter, a leading article (and no article elsewhere).

    A currency sign goes too: `$1,234.00` is 1,234.00.
    """
    text = text.strip()
    while True:
        before = text
        if text.endswith((".", ",", ";", ":")) and not text.endswith("\\,"):
            text = text[:-1].rstrip()
        for wrapper in _WRAPPERS:
            whole = wrapper.fullmatch(text)
            if whole:
                text = whole.group(1).strip()
        text = re.sub(r"^(?:\\?\$|[€£¥])\s*(?=[-\d.])", "", text)
        text = _ARTICLE.sub("", text, count=1) if _ARTICLE.match(text) else text
        if text == before:
            return text


_CHOICE = re.compile(
    r"\banswer\b(?:\s+is)?\s*\**\s*[:=]?\s*\**\s*[(\[]?([A-Z])\b(?!\w)[)\]]?", re.IGNORECASE
)


def choice_letter(completion: str) -> str | None:
    """The letter, in capitals, that a completion chooses; None where it chooses none.

    The answer of `final_answer` where that is one letter, maybe in parentheses or followed by a
    stop and the choice's text ("(C) four"), else the last "Answer: C". A word is no letter:
    "Answer: Cat" chooses nothing.
    """
    text = after_thinking(completion)
    if text is None:
        return None
    answer = final_answer(completion)
    if answer is not None:
        whole = re.fullmatch(r"[(\[]?([A-Za-z])(?:[)\].:](?:\s.*)?)?", answer, re.DOTALL)
        if whole:
            return whole.group(1).upper()
        if _TAG.search(text) or _BOX.search(text):
            return None
    said = _CHOICE.findall(text)
    return said[-1].upper() if said else None
