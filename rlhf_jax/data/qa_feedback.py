"""Human preferences between answers to questions: qa_feedback of Fine-Grained RLHF (2306.01693).

A JSON list of {"question", "prediction 1" … "prediction 4", "preference": six numbers, …}: pairs
(1,2), (1,3), (1,4), (2,3), (2,4), (3,4), each 0 (tie), 1 (the first is better) or 2. In this order,
which the file does not state, the 3,000 judgements of the published 500 questions hold no cycle; in
all but it and its reverse they hold dozens.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from rlhf_jax.data.comparisons import PARTS, split_by_prompt
from rlhf_jax.data.texts import read_text
from rlhf_jax.errors import ConfigError, check_choice

Row = dict[str, Any]
ANSWERS = tuple(f"prediction {n}" for n in (1, 2, 3, 4))
PAIRS = tuple(combinations(range(len(ANSWERS)), 2))


def read_feedback(path: str | Path) -> list[Row]:
    """Records of the file, checked.

    Raises:
        ConfigError: no such file, not a JSON list, or a record without question, answers or six
            preferences of 0, 1 or 2.
    """
    path = Path(path)
    try:
        records = json.loads(read_text(path, expected="dev_feedback.json of Fine-Grained RLHF"))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno} is not JSON: {error.msg}") from None
    if not isinstance(records, list) or not records:
        raise ConfigError(f"{path} is not a JSON list of records")
    for number, record in enumerate(records):
        where = f"{path}: record {number}"
        if not isinstance(record, dict):
            raise ConfigError(f"{where} is not an object")
        for field in ("question", *ANSWERS):
            if not isinstance(record.get(field), str):
                raise ConfigError(f"{where}: {field!r} is {record.get(field)!r}, not a string")
        given = record.get("preference")
        if not (isinstance(given, list) and len(given) == len(PAIRS) and set(given) <= {0, 1, 2}):
            raise ConfigError(f"{where}: 'preference' is {given!r}, not six of 0, 1 and 2")
    return records


def preferred_answers(records: list[Row]) -> list[Row]:
    """Strict preferences, {"prompt", "chosen", "rejected"}; ties are left out."""
    rows = []
    for record in records:
        for (i, j), better in zip(PAIRS, record["preference"], strict=True):
            if better:
                sides = (i, j) if better == 1 else (j, i)
                chosen, rejected = (record[ANSWERS[side]] for side in sides)
                rows.append({"prompt": _prompt(record), "chosen": chosen, "rejected": rejected})
    return rows


def ranked_answers(records: list[Row]) -> list[Row]:
    """All answers of a question, {"prompt", "completions", "ranks"}.

    An answer's rank is how many others were found better. Judgements need not come from an order
    (a may tie with b and b with c, and yet a be better than c): of the published 3,000, 27 then
    differ from what the ranks say.
    """
    rows = []
    for record in records:
        beaten = [0] * len(ANSWERS)
        for (i, j), better in zip(PAIRS, record["preference"], strict=True):
            if better:
                beaten[j if better == 1 else i] += 1
        answers = [record[name] for name in ANSWERS]
        rows.append({"prompt": _prompt(record), "completions": answers, "ranks": beaten})
    return rows


def qa_feedback(
    *, path: str, part: str = "train", held_out: int = 100, ranked: bool = False
) -> list[Row]:
    """Preferences for an experiment; a question is on one side of the split with all its answers.

    Args:
        path: dev_feedback.json.
        part: "train" or "held_out".
        held_out: questions held out, by content.
        ranked: all answers of a question in a row (`ranked_answers`), else a row for each pair.
    """
    check_choice("part", part, PARTS)
    records = [{**record, "prompt": _prompt(record)} for record in read_feedback(path)]
    records = split_by_prompt(records, held_out)[PARTS.index(part)]
    return ranked_answers(records) if ranked else preferred_answers(records)


def _prompt(record: Row) -> str:
    """The question alone: the passages that it was answered from are thousands of tokens long."""
    return f"{record['question']}\n"
