"""Answers that are right as text or not at all."""

from __future__ import annotations

from typing import Any


def exact_answer(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]]
) -> list[float | None]:
    """1.0 where the completion is the row's "answer", spaces around either aside, else 0.0.

    A row whose "answer" is missing, empty or not a string cannot be judged: None.
    """
    return [
        _score(completion, row.get("answer"))
        for completion, row in zip(completions, rows, strict=True)
    ]


def _score(completion: str, answer: Any) -> float | None:
    if not isinstance(answer, str) or not answer.strip():
        return None
    return float(completion.strip() == answer.strip())
