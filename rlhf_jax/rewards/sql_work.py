"""A query and its gold query, run and compared: what a worker of `sql` does.

Everything that could change a database, reach another file or load code is refused by SQLite's
own authorizer, so one open connection serves all queries.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

_state: dict[str, Any] = {}

_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
CHECK_EVERY = 10_000  # steps of SQLite's virtual machine between two looks at the limit
MAX_BYTES = 1_000_000  # of one text or query
MAX_PERMUTATIONS = 720

Table = tuple[int, list[tuple]]


class BadGold(ValueError):
    """The gold query or its database cannot be used."""


def load() -> None:
    """Nothing to import."""


def enter(options: dict[str, Any]) -> None:
    """Keep the limits."""
    _state.update(options)


def work(item: dict[str, Any]) -> dict[str, Any]:
    """{"right": bool, "error": ... or None}, or {"broken": why} where the gold is at fault.

    Args:
        item: "database", a path; "gold", queries, each of them right; "query", or None where the
            completion holds none.
    """
    try:
        base = opened(item["database"])
        golds = [(query, run_query(base, query)) for query in statements(item["gold"])]
        if not golds:
            raise BadGold("there is no gold query")
    except (BadGold, sqlite3.Error, OSError, ValueError) as error:
        return {"broken": f"{item['database']}: {error}"}
    if item["query"] is None:
        return {"right": False, "error": "no query"}
    try:
        answer = run_query(base, item["query"])
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        return {"right": False, "error": str(error)}
    right = any(
        same_table(
            gold,
            answer,
            ordered=is_ordered(query),
            any_columns=_state["any_columns"],
            tolerance=_state["tolerance"],
        )
        for query, gold in golds
    )
    return {"right": right, "error": None}


@lru_cache(maxsize=16)
def opened(path: str) -> sqlite3.Connection:
    """A database that can only be read: a SQLite file as it is, a SQL script run in memory."""
    if not Path(path).is_file():
        raise BadGold("no such file")
    with open(path, "rb") as file:
        is_database = file.read(16) == b"SQLite format 3\0"
    if is_database:
        base = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
    else:
        base = sqlite3.connect(":memory:")
        base.executescript(Path(path).read_text(encoding="utf-8"))
    base.text_factory = lambda raw: raw.decode("utf-8", "replace")
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_BYTES)
    base.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MAX_BYTES)
    base.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    base.set_authorizer(_authorize)
    return base


def _authorize(action: int, first: str | None, second: str | None, *_: Any) -> int:
    if action not in _READING or second == "load_extension":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def run_query(base: sqlite3.Connection, query: str) -> Table:
    """Number of columns, and rows.

    Raises:
        sqlite3.Error: it is wrong, changes something, or takes more than the limit of steps.
        ValueError: it gives more rows than the limit, or none at all, as a comment does.
    """
    taken = itertools.count(CHECK_EVERY, CHECK_EVERY)
    base.set_progress_handler(lambda: next(taken) > _state["steps"], CHECK_EVERY)
    cursor = base.execute(query)
    try:
        if cursor.description is None:
            raise ValueError("the query gives no table")
        rows = cursor.fetchmany(_state["max_rows"] + 1)
        if len(rows) > _state["max_rows"]:
            raise ValueError(f"the query gives more than {_state['max_rows']} rows")
        return len(cursor.description), rows
    finally:
        cursor.close()


def statements(text: str) -> Iterator[str]:
    """The statements of a script, cut at semicolons outside quotes and comments."""
    start = 0
    for at, character in enumerate(text):
        if character == ";" and sqlite3.complete_statement(text[start : at + 1]):
            if text[start:at].strip():
                yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        yield text[start:].strip()


def is_ordered(query: str) -> bool:
    """Whether ORDER BY stands outside all parentheses, quotes and comments."""
    depth, at, outside = 0, 0, []
    closing = {"'": "'", '"': '"', "`": "`", "[": "]"}
    while at < len(query):
        character = query[at]
        if query.startswith("--", at):
            at = query.find("\n", at) if "\n" in query[at:] else len(query)
        elif query.startswith("/*", at):
            at = query.find("*/", at) + 1 if "*/" in query[at:] else len(query)
        elif character in closing:
            end = query.find(closing[character], at + 1)
            at = len(query) if end < 0 else end
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif depth == 0:
            outside.append(character)
            at += 1
            continue
        outside.append(" ")
        at += 1
    return " order by " in f" {' '.join(''.join(outside).lower().split())} "


def same_table(
    gold: Table, answer: Table, *, ordered: bool, any_columns: bool, tolerance: float
) -> bool:
    """Whether two results are one: see `sql` for the rules."""
    width, gold_rows = gold
    if answer[0] != width or len(answer[1]) != len(gold_rows):
        return False
    left = [tuple(_cell(value, tolerance) for value in row) for row in gold_rows]
    right = [tuple(_cell(value, tolerance) for value in row) for row in answer[1]]
    if _same_rows(left, right, ordered, tolerance):
        return True
    if not any_columns or width < 2:
        return False
    orders = itertools.islice(_column_orders(left, right, width, tolerance), MAX_PERMUTATIONS)
    return any(
        _same_rows(left, [tuple(row[i] for i in order) for row in right], ordered, tolerance)
        for order in orders
    )


def _cell(value: Any, tolerance: float) -> Any:
    """A whole number as an int however it is stored, so that 3 equals 3.0; bytes as they are."""
    if isinstance(value, float) and abs(value) < 1e15:
        whole = round(value)
        if abs(value - whole) <= tolerance * max(1.0, abs(value)):
            return whole
    return value


def _key(cell: Any) -> tuple:
    """Sorts cells of all kinds; fractions last, by value, so that near ones stay together."""
    if isinstance(cell, float):
        return (1, "", cell)
    return (0, type(cell).__name__, 0 if cell is None else cell)


def _row_key(row: tuple) -> tuple:
    exact = tuple(_key(0 if isinstance(c, float) else c) for c in row)
    return exact, tuple(cell for cell in row if isinstance(cell, float))


def _same_rows(left: list[tuple], right: list[tuple], ordered: bool, tolerance: float) -> bool:
    if not ordered:
        left, right = sorted(left, key=_row_key), sorted(right, key=_row_key)
    return all(
        _same_cell(a, b, tolerance)
        for one, other in zip(left, right, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def _same_cell(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return False
        return a == b or abs(a - b) <= tolerance * max(1.0, abs(a), abs(b))
    return type(a) is type(b) and a == b


def _column_orders(left, right, width: int, tolerance: float) -> Iterator[tuple[int, ...]]:
    """Orders of the answer's columns in which each holds the same cells as the gold one."""

    def column(rows, i):
        return sorted(((row[i],) for row in rows), key=_row_key)

    mine = [column(left, i) for i in range(width)]
    theirs = [column(right, i) for i in range(width)]
    fits = [
        [j for j in range(width) if _same_rows(mine[i], theirs[j], True, tolerance)]
        for i in range(width)
    ]

    def extend(order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(order) == width:
            yield order
            return
        for j in fits[len(order)]:
            if j not in order:
                yield from extend((*order, j))

    yield from extend(())
