"""Answers to reasoning-gym tasks, by each task's own scorer (2505.24760)."""

from __future__ import annotations

import base64
import pickle
import re
from typing import Any

from rlhf_jax.errors import ConfigError, check_choice, require
from rlhf_jax.rewards.answers import after_thinking, final_answer
from rlhf_jax.rewards.notes import note, overlaps
from rlhf_jax.rewards.pool import pool

WORK = "rlhf_jax.rewards.reasoning_gym_work"
MEMORY = 4 << 30
FIELDS = ("task", "options", "seed", "question", "answer", "metadata")

_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@overlaps
def reasoning_gym(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    find: str = "tag",
    seconds: float = 10.0,
) -> list[float | None]:
    """What the task's scorer says of the completion's answer, in [0, 1].

    Many scorers give part of the score to an answer that contains the right one.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`; rows as
            `data.reasoning_gym` makes them.
        find: where the answer is: "tag", in the last <answer>...</answer>, else all that follows
            the thought; "final", as `answers.final_answer` finds it; "last_number", the last
            number of the text, without separators of thousands.
        seconds: wall-clock limit of one answer.

    Returns:
        None where a row is not one of reasoning-gym's (counted as unreadable_gold).

    Raises:
        ConfigError: reasoning-gym is not installed; the task's scorer evaluates text, and this
            kernel cannot wall it in.
    """
    require("reasoning_gym", extra="rewards")
    check_choice("find", find, ("tag", "final", "last_number"))
    items = []
    for completion, row in zip(completions, rows, strict=True):
        known = all(name in row for name in FIELDS)
        kept = pickle.dumps({name: row[name] for name in FIELDS}) if known else None
        items.append(kept and [base64.b64encode(kept).decode(), _found(completion, find)])
    asked = [item for item in items if item is not None]
    results = iter(pool(WORK, seconds=seconds, memory=MEMORY).map(asked))
    return [_unreadable() if item is None else _score(next(results)) for item in items]


def _found(completion: str, find: str) -> str | None:
    if find == "final":
        return final_answer(completion)
    text = after_thinking(completion)
    if text is None:
        return None
    if find == "last_number":
        numbers = _NUMBER.findall(text)
        return numbers[-1].replace(",", "") if numbers else None
    tags = _TAG.findall(text)
    return (tags[-1] if tags else text).strip()


def _unreadable() -> None:
    note("unreadable_gold")


def _score(result: dict[str, Any]) -> float:
    if "failed" in result:
        note("timeouts" if result["failed"] == "timeout" else "crashes")
        return 0.0
    if "refused" in result["value"]:
        raise ConfigError(result["value"]["refused"])
    return result["value"]["score"]
