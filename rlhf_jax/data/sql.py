"""Questions about databases, asked with the database's tables; `rewards.sql` runs the answers."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_jax.data.sources import file_rows, pick_part
from rlhf_jax.errors import ConfigError, check_choice

Row = dict[str, Any]
PARTS = ("train", "held_out")


def sql_prompts(
    *,
    path: str,
    folder: str,
    held_out: int,
    databases: tuple[str, ...],
    suffix: str = ".sqlite.sql",
) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows {"prompt", "database", "query"}: tables, then the question.

    Args:
        path: a file of records {"db_name", "question", "query"}, perhaps with "instructions";
            broken records are left out, and the log names them.
        folder: of the databases, a SQLite file or a script NAME + `suffix` each.
        held_out: how many questions are held out; which ones depends on their content alone.
        databases: names of those to ask about, of which each has its tables in every prompt.
        suffix: of their files.

    Raises:
        ConfigError: the file or a database, no question about one, or too few to hold out so many.
    """
    options = dict(path=path, folder=folder, databases=databases, suffix=suffix)
    rows = _questions(**options)
    train, held = (pick_part(rows, part, held_out, path) for part in PARTS)
    return train, held


def sql_demonstrations(
    *,
    path: str,
    folder: str,
    held_out: int,
    databases: tuple[str, ...],
    suffix: str = ".sqlite.sql",
    part: str = "train",
) -> list[Row]:
    """The same rows with a "completion": the first gold query, in a ```sql block.

    Args:
        path, folder, held_out, databases, suffix: as of `sql_prompts`.
        part: train or held_out.

    Raises:
        ConfigError: as `sql_prompts`.
    """
    check_choice("part", part, PARTS)
    rows = _questions(path=path, folder=folder, databases=databases, suffix=suffix)
    return [
        {**row, "completion": f"```sql\n{first_statement(row['query'])}\n```"}
        for row in pick_part(rows, part, held_out, path)
    ]


def _questions(*, path: str, folder: str, databases: tuple[str, ...], suffix: str) -> list[Row]:
    tables = {name: tables_of(str(Path(folder, name + suffix))) for name in databases}
    records = file_rows(path=path, shape="prompt", rename=("prompt=question",), bad="skip")
    rows = []
    for record in records:
        name = record.get("db_name")
        if name in tables:
            if not (record.get("query") or "").strip():
                raise ConfigError(f"{path}: no gold query for {record['prompt']!r:.60}")
            asked = (tables[name], record.get("instructions"), record["prompt"])
            prompt = "\n".join(filter(None, asked))
            rows.append({"prompt": prompt, "database": name + suffix, "query": record["query"]})
    missing = set(databases) - {row["database"].removesuffix(suffix) for row in rows}
    if missing or not rows:
        raise ConfigError(f"{path} asks nothing about {', '.join(sorted(missing)) or 'anything'}")
    return rows


def first_statement(script: str) -> str:
    """Up to the first semicolon outside quotes and comments, without it."""
    ends = (at for at, c in enumerate(script) if c == ";")
    whole = (at for at in ends if sqlite3.complete_statement(script[: at + 1]))
    return script[: next(whole, len(script))].strip()


@lru_cache(maxsize=64)
def tables_of(path: str) -> str:
    """The tables of a SQLite file, or of a script that makes one: a line `name(column, …)` each.

    Raises:
        ConfigError: no such file, one that SQLite cannot read, or no table in it.
    """
    if not Path(path).is_file():
        raise ConfigError(f"{path} is not a file; a database is expected")
    try:
        with open(path, "rb") as file:
            is_database = file.read(16) == b"SQLite format 3\0"
        where = f"{Path(path).absolute().as_uri()}?mode=ro" if is_database else ":memory:"
        with closing(sqlite3.connect(where, uri=is_database)) as base:
            if not is_database:
                base.executescript(Path(path).read_text(encoding="utf-8"))
            names = base.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            columns = "SELECT name FROM pragma_table_info(?)"
            lines = [
                f"{name}({', '.join(column for (column,) in base.execute(columns, [name]))})"
                for (name,) in names
            ]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no database that SQLite reads: {error}") from None
    if not lines:
        raise ConfigError(f"{path} holds no table")
    return "\n".join(lines)
