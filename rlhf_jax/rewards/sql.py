"""Queries that are right when they give the gold query's table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlhf_jax.errors import check_choice, check_number
from rlhf_jax.rewards.answers import after_thinking
from rlhf_jax.rewards.notes import note, overlaps
from rlhf_jax.rewards.pool import pool

WORK = "rlhf_jax.rewards.sql_work"
MEMORY = 1 << 30

_FENCE = re.compile(r"```[ \t]*(sql|sqlite)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"<(answer|sql)>(.*?)</\1>", re.DOTALL | re.IGNORECASE)
_START = re.compile(r"(?:^|:)[ \t]*(?=(?:select|with)\b)", re.IGNORECASE | re.MULTILINE)


def query_of(completion: str) -> str | None:
    """The query: the last ```sql block, else the last <answer> or <sql> tag, else from the first
    SELECT or WITH on that begins a line or follows a colon; after the thought. None where there
    is none."""
    text = after_thinking(completion)
    if text is None:
        return None
    found = _FENCE.findall(text) or _TAG.findall(text)
    if found:
        return found[-1][1].strip() or None
    start = _START.search(text)
    return text[start.end() :].strip() if start else None


def is_formatted(completion: str) -> bool:
    """Whether the completion holds exactly one ```sql block, with a query in it."""
    blocks = [body for language, body in _FENCE.findall(completion) if language]
    return completion.count("```") == 2 and len(blocks) == 1 and bool(blocks[0].strip())


@overlaps
def sql(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    folder: str = "",
    database: str = "database",
    query: str = "query",
    columns: str = "any",
    tolerance: float = 1e-6,
    format_bonus: float | None = None,
    steps: int = 2_000_000,
    max_rows: int = 10_000,
    seconds: float = 10.0,
) -> list[float | None]:
    """1.0 where the completion's query gives the same table as a gold query, else 0.0.

    Both are run on a database that SQLite's authorizer makes readable only. The rules: rows are a
    multiset, or a list where the gold query has ORDER BY outside parentheses (then ties must fall
    as in the gold result); repeated rows count; column names do not matter, and under "any"
    neither does the columns' order (as in the test suites of 2010.02840); numbers are equal within
    `tolerance` · max(1, |a|, |b|), so 3 equals 3.0; text is equal to the letter, NULL to NULL
    alone; an empty gold result equals any other of as many columns.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        folder: where the databases are.
        database: the row's field with a file: a SQLite database, or a script that makes one.
        query: the row's field with gold queries, cut at semicolons, each of which is right.
        columns: "any" or "given" order.
        tolerance: of numbers, in [0, 0.1].
        format_bonus: added where the completion has one ```sql block and no other. None: nothing.
        steps: of SQLite's virtual machine for one query.
        max_rows: of one result; more is wrong.
        seconds: wall-clock limit of a completion.

    Returns:
        None where the row has no database or gold query, or the gold query fails; the metrics
        count these as unreadable_gold, and as timeouts what was killed.
    """
    check_choice("columns", columns, ("any", "given"))
    check_number("tolerance", tolerance, low=0, high=0.1)
    if format_bonus is not None:
        check_number("format_bonus", format_bonus)
    workers = pool(
        WORK,
        seconds=seconds,
        memory=MEMORY,
        any_columns=columns == "any",
        tolerance=tolerance,
        steps=steps,
        max_rows=max_rows,
    )
    items = [
        _item(row.get(query), row.get(database), folder, completion)
        for completion, row in zip(completions, rows, strict=True)
    ]
    results = iter(workers.map([item for item in items if item]))
    return [
        _score(next(results) if item else None, format_bonus, completion)
        for item, completion in zip(items, completions, strict=True)
    ]


def _item(gold: Any, database: Any, folder: str, completion: str) -> dict[str, Any] | None:
    """What a worker runs; None for a row that has not what it takes."""
    if not all(isinstance(text, str) and text.strip() for text in (gold, database)):
        return None
    return {
        "database": str(Path(folder, database)),
        "gold": gold,
        "query": query_of(completion),
    }


def _score(
    result: dict[str, Any] | None, format_bonus: float | None, completion: str
) -> float | None:
    if result is None or "broken" in result.get("value", {}):
        note("unreadable_gold")
        return None
    if "failed" in result:
        note("timeouts" if result["failed"] == "timeout" else "crashes")
    right = "value" in result and result["value"]["right"]
    bonus = format_bonus if format_bonus is not None and is_formatted(completion) else 0.0
    return float(right) + bonus
