"""The shapes of records that runs learn from, as TRL names and lays them out, and their checks.

A prompt or completion is a text, or a conversation: a list of {"role", "content"} messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_jax.data.files import Records, why_not_field, why_not_text

Row = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
# what a verifiable prompt is checked against; a record needs one of them
EVIDENCE = ("answer", "solution", "ground_truth", "tests", "test")


@dataclass(frozen=True)
class Shape:
    """`fields` are required, with the check of each; `also` checks the record as a whole."""

    fields: dict[str, Callable[[Any], str | None]]
    also: Callable[[Row], str | None] = lambda row: None


def why_not(row: Row, shape: str) -> str | None:
    """What keeps a record from being of a shape; None: it is.

    Args:
        row: one record.
        shape: a key of `SHAPES`.
    """
    wanted = SHAPES[shape]
    for name, check in wanted.fields.items():
        why = why_not_field(row, name, check)
        if why:
            return why
    return wanted.also(row)


def guess_shape(rows: Sequence[Row]) -> str:
    """The shape that the first record's fields say: the most particular one that they make."""
    names = set(rows[0]) if rows else set()
    for shape, wanted in SHAPES.items():
        if set(wanted.fields) <= names and (shape != "verifiable" or names & set(EVIDENCE)):
            return shape
    return "prompt"


def from_cells(records: Records, shape: str) -> Records:
    """A CSV's records with JSON read from the cells that the shape wants as something else.

    Labels may be true and false in any case, or 1 and 0; a cell that is not JSON stays the text
    that it is, for the shape's check to refuse.
    """
    if not records.texts_only:
        return records
    texts = {name for name, check in SHAPES[shape].fields.items() if check in _TEXTS}
    rows = [
        {
            name: cell if name in texts and not _is_chat(cell) else _cell(name, cell)
            for name, cell in row.items()
            if name in SHAPES[shape].fields or name in _NUMBERS or cell
        }
        for row in records.rows
    ]
    return Records(records.path, rows, records.lines, records.bad)


_NUMBERS = ("scores", "ranks", "margin", "weight", "label", "labels", "messages", "completions")


def _is_chat(cell: str) -> bool:
    return cell.lstrip().startswith('[{"role"')


def _cell(name: str, cell: str) -> Any:
    if name not in _NUMBERS and not _is_chat(cell):
        return cell
    if name == "label" and cell.strip().lower() in ("true", "false", "0", "1"):
        return cell.strip().lower() in ("true", "1")
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _text(value: Any) -> str | None:
    return why_not_messages(value) if isinstance(value, list) else why_not_text(value)


def _completion(value: Any) -> str | None:
    if isinstance(value, list):
        return why_not_messages(value, last="assistant")
    return why_not_text(value)


def _prompt(value: Any) -> str | None:
    why = _text(value)
    if why is None and isinstance(value, list) and value[-1]["role"] == "assistant":
        return "ends with the assistant's turn: there is nothing left to answer"
    return why


def why_not_messages(value: Any, *, last: str | None = None) -> str | None:
    """What keeps a value from being a conversation; None: it is one.

    Args:
        value: should be a list of {"role": one of `ROLES`, "content": text}. A message may hold
            further fields (tool_calls, name, …), which reach the template; the content may then
            be empty.
        last: role of the last message.
    """
    if not isinstance(value, list) or not value:
        return f"is {value!r:.60}, not a list of messages"
    for number, message in enumerate(value):
        where = f"message {number}"
        if not isinstance(message, dict):
            return f"{where} is {message!r:.60}, not an object"
        if message.get("role") not in ROLES:
            return f"{where} has role {message.get('role')!r}; known are {', '.join(ROLES)}"
        why = why_not_text(message.get("content"), empty=len(message) > 2)
        if why:
            return f"{where}: 'content' {why}"
    if last and value[-1]["role"] != last:
        return f"ends with a message of the {value[-1]['role']}, not of the {last}"
    return None


def _dialogue(value: Any) -> str | None:
    why = why_not_messages(value)
    if why is None and not any(message["role"] == "assistant" for message in value):
        return "holds no message of the assistant: there is nothing to learn"
    return why


def _bool(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"is {value!r:.60}, not true or false"


def _texts(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return f"is {value!r:.60}, not a list of texts"
    for number, text in enumerate(value):
        why = why_not_text(text)
        if why:
            return f"number {number} {why}"
    return None


def _bools(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(x, bool) for x in value):
        return f"is {value!r:.60}, not a list of true and false"
    return None


def _stepwise(row: Row) -> str | None:
    steps, labels = len(row["completions"]), len(row["labels"])
    return None if steps == labels else f"has {steps} steps in 'completions' and {labels} 'labels'"


def _pair(row: Row) -> str | None:
    if "prompt" in row:
        why = _prompt(row["prompt"])
        return why and f"'prompt' {why}"
    if type(row["chosen"]) is not type(row["rejected"]):
        return "'chosen' and 'rejected' are not both texts or both conversations"
    same = shared_beginning(row["chosen"], row["rejected"])
    return None if same else "'chosen' and 'rejected' share no beginning that would be the prompt"


def shared_beginning(chosen: Any, rejected: Any) -> int:
    """How many characters, or messages, two sides share at the beginning."""
    pairs = zip(chosen, rejected, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(chosen), len(rejected)))


def _ranking(row: Row) -> str | None:
    numbers = row.get("ranks", row.get("scores"))
    if not isinstance(numbers, list) or len(numbers) != len(row["completions"]):
        return f"has 'ranks' or 'scores' {numbers!r:.60}: one number a completion is needed"
    return None


def _evidence(row: Row) -> str | None:
    if any(row.get(name) not in (None, "", []) for name in EVIDENCE):
        return None
    return f"has nothing to check an answer against: none of {', '.join(EVIDENCE)}"


_TEXTS = (_text, _completion, _prompt)

# From the most particular to the most general: `guess_shape` takes the first that fits.
SHAPES: dict[str, Shape] = {
    "messages": Shape({"messages": _dialogue}),
    "stepwise": Shape({"prompt": _prompt, "completions": _texts, "labels": _bools}, _stepwise),
    "ranking": Shape({"prompt": _prompt, "completions": _texts}, _ranking),
    "preference": Shape({"chosen": _completion, "rejected": _completion}, _pair),
    "unpaired": Shape({"prompt": _prompt, "completion": _completion, "label": _bool}),
    "demonstration": Shape({"prompt": _prompt, "completion": _completion}),
    "verifiable": Shape({"prompt": _prompt}, _evidence),
    "prompt": Shape({"prompt": _prompt}),
}
