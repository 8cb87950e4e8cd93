"""Questions about databases, asked with the database's tables; `rewards.sql` runs the answers."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_jax.data.sources import file_rows, pick_part
from rlhf_jax.errors import ConfigError, check_choice, check_number

Row = dict[str, Any]
PARTS = ("train", "held_out")


def sql_prompts(
    *,
    path: str,
    folder: str,
    held_out: int,
    databases: tuple[str, ...],
    suffix: str = ".sqlite.sql",
    most_tables: int | None = None,
    longest: int | None = None,
) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows {"prompt", "database", "query"}: tables, then the question.

    Args:
        path: a file of records {"db_name", "question", "query"}, perhaps with "instructions";
            broken records are left out, and the log names them.
        folder: of the databases, a SQLite file or a script NAME + `suffix` each.
        held_out: how many questions are held out; which ones depends on their content alone.
        databases: names of those to ask about.
        suffix: of their files.
        most_tables: of a prompt, those that `linked` finds. None: all of the database.
        longest: characters of a gold query; questions with a longer one are left out. None: all.

    Raises:
        ConfigError: the file or a database, no question about one, or too few to hold out so many.
    """
    options = dict(suffix=suffix, most_tables=most_tables, longest=longest)
    rows = _questions(path, folder, databases, **options)
    train, held = (pick_part(rows, part, held_out, path) for part in PARTS)
    return train, held


def sql_demonstrations(
    *,
    path: str,
    folder: str,
    held_out: int,
    databases: tuple[str, ...],
    suffix: str = ".sqlite.sql",
    most_tables: int | None = None,
    longest: int | None = None,
    part: str = "train",
) -> list[Row]:
    """The same rows with a "completion": the first gold query, in a ```sql block.

    Args:
        path, folder, held_out, databases, suffix, most_tables, longest: as of `sql_prompts`.
        part: train or held_out.

    Raises:
        ConfigError: as `sql_prompts`.
    """
    check_choice("part", part, PARTS)
    options = dict(suffix=suffix, most_tables=most_tables, longest=longest)
    rows = _questions(path, folder, databases, **options)
    return [
        {**row, "completion": f"```sql\n{first_statement(row['query'])}\n```"}
        for row in pick_part(rows, part, held_out, path)
    ]


def _questions(
    path: str,
    folder: str,
    databases: Sequence[str],
    *,
    suffix: str,
    most_tables: int | None,
    longest: int | None,
) -> list[Row]:
    for name, number in (("most_tables", most_tables), ("longest", longest)):
        if number is not None:
            check_number(name, number, low=1)
    tables = {name: tables_of(str(Path(folder, name + suffix))) for name in databases}
    rows = []
    for record in file_rows(path=path, shape="prompt", rename=("prompt=question",), bad="skip"):
        name, gold = record.get("db_name"), record.get("query") or ""
        if name not in tables:
            continue
        if not gold.strip():
            raise ConfigError(f"{path}: no gold query for {record['prompt']!r:.60}")
        if longest is not None and len(first_statement(gold)) > longest:
            continue
        asked = "\n".join(filter(None, (record.get("instructions"), record["prompt"])))
        shown = linked(tables[name], asked, most_tables) if most_tables else tables[name]
        rows.append({"prompt": f"{shown}\n{asked}", "database": name + suffix, "query": gold})
    missing = set(databases) - {row["database"].removesuffix(suffix) for row in rows}
    if missing or not rows:
        raise ConfigError(f"{path} asks nothing about {', '.join(sorted(missing)) or 'anything'}")
    return rows


def linked(tables: str, asked: str, most: int) -> str:
    """The tables that share most words with a question, in the order of the database.

    A word in the table's name counts twice, one in its columns once; words agree in their first
    five letters, those of one or two letters in nothing. Of equals the earlier table stays.

    Args:
        tables: as `tables_of` writes them.
        asked: the question, and what comes with it.
        most: tables to keep.
    """
    words = _stems(asked)

    def shared(line: str) -> int:
        name, _, columns = line.partition("(")
        return 2 * len(_stems(name) & words) + len(_stems(columns) & words)

    lines = tables.split("\n")
    kept = sorted(range(len(lines)), key=lambda i: -shared(lines[i]))[:most]
    return "\n".join(lines[i] for i in sorted(kept))


def _stems(text: str) -> set[str]:
    return {word[:5] for word in re.findall("[a-z]{3,}", text.lower())}


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
