"""Records of local files: JSON lines, JSON, CSV, parquet, plain text, Arrow folders; gzip or not.

A record that cannot be used is noted with its line and the reason, and the next one is read; what
becomes of the noted ones is for `bad` to say. Nothing is left out without a word.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_jax.errors import ConfigError, check_choice

Row = dict[str, Any]
BAD = ("error", "skip")
MAX_BYTES = 1_000_000  # of one text; beyond it a tokenizer takes minutes, and no model reads it
_SHOWN = 5  # reasons that a message or a log line quotes
# fields under the names that datasets often give them
_ALSO_CALLED = {
    "prompt": ("question", "problem", "instruction", "query", "input", "text"),
    "completion": ("answer", "response", "output", "solution", "query"),
    "messages": ("conversations", "conversation", "dialogue", "dialog"),
    "chosen": ("preferred", "response_chosen"),
    "rejected": ("dispreferred", "response_rejected"),
}


@dataclass(frozen=True)
class BadRow:
    """A record that cannot be used: `line` of the file (of parquet: row, from 1) and why."""

    line: int
    why: str


@dataclass(frozen=True)
class Records:
    """What a file holds. `lines[i]` is where `rows[i]` begins; `bad` is in the order of the file.

    `texts_only`: a CSV, whose cells are texts whatever they mean.
    """

    path: Path
    rows: list[Row]
    lines: list[int]
    bad: list[BadRow]
    texts_only: bool = False


def read_records(path: str | Path) -> Records:
    """Every record of a file, whose kind its name tells: x.jsonl, x.json, x.csv.gz, ….

    .jsonl and .ndjson: one object a line, blank lines skipped. .json: a list of objects. .csv and
    .tsv: the first line names the columns. .parquet: a record a row. .txt: {"prompt": line} for
    every line that is not blank. A folder: what `datasets.Dataset.save_to_disk` writes, read
    without that library. Gzip is recognised by its content, whatever the name.

    Raises:
        ConfigError: no such file, a kind not in this list, or a file that cannot be read at all
            (a JSON list broken in the middle, say: what follows has no known beginning).
    """
    path = Path(path)
    if path.is_dir():
        return _split(path, _arrow_folder(path))
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in KINDS:
        known = ", ".join(f".{name}" for name in KINDS)
        raise ConfigError(f"{path}: the kind of file is told by its name; known are {known}")
    return _split(path, KINDS[kind](path), texts_only=kind in ("csv", "tsv"))


def read_json_lines(path: str | Path) -> Records:
    """`read_records` of a file of one JSON object a line, whatever its name."""
    return _split(Path(path), _json_lines(Path(path)))


def settle(path: Path, bad: list[BadRow], rows: int, policy: str) -> None:
    """Raise for bad records under "error", tell them under "skip".

    Raises:
        ConfigError: "error" and a bad record, or no good one (`rows` counts those).
    """
    check_choice("bad", policy, BAD)
    if bad:
        quoted = [told(path, row) for row in bad[:_SHOWN]]
        more = f"\n… and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        if policy == "error":
            raise ConfigError("\n".join(quoted) + more)
        logging.getLogger(__name__).warning(
            "%s: %d bad of %d records skipped:\n%s",
            *(path, len(bad), len(bad) + rows, "\n".join(quoted) + more),
        )
    if not rows:
        raise ConfigError(f"{path} holds no rows{' that can be used' if bad else ''}")


def told(path: Path, row: BadRow) -> str:
    """One line: file, line, reason."""
    return f"{path}:{row.line}{':' if row.why.startswith(chr(39)) else ''} {row.why}"


def why_not_text(value: Any, *, empty: bool = False) -> str | None:
    """What keeps a value from being a text; None: it is one.

    A text is a string of Unicode characters, at most `MAX_BYTES` bytes of UTF-8, without NUL,
    and not blank unless `empty`.
    """
    if not isinstance(value, str):
        return f"is {_short(value)}, not a string"
    if not empty and not value.strip():
        return f"is {_short(value)}, not a non-empty string"
    if "\0" in value:
        return f"holds a NUL character at {value.index(chr(0))}"
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        character = value[error.start]
        return f"holds half of a surrogate pair, {character!r}, as character {error.start}"
    return f"has {size} bytes, more than {MAX_BYTES}" if size > MAX_BYTES else None


def why_not_field(
    row: Row, name: str, check: Callable[[Any], str | None] = why_not_text
) -> str | None:
    """What keeps a record's field from being there and passing a check; None: it does."""
    if name not in row:
        old = next((old for old in _ALSO_CALLED.get(name, ()) if old in row), None)
        hint = f"; if {old!r} is it, rename: {name}={old}" if old else ""
        return f"has no {name!r}; it has {', '.join(map(str, row)) or 'nothing'}{hint}"
    why = check(row[name])
    return why and f"{name!r} {why}"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _split(path: Path, found: Iterator[tuple[int, Any]], **options) -> Records:
    rows, lines, bad = [], [], []
    for line, record in found:
        if isinstance(record, dict):
            rows.append(record)
            lines.append(line)
        else:
            why = record if isinstance(record, _Broken) else f"is {_kind(record)}, not an object"
            bad.append(BadRow(line, str(why)))
    return Records(path, rows, lines, bad, **options)


class _Broken(str):
    """Why a record could not even be parsed."""


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(f"{path} is not a file")
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {why}") from None


def _lines(path: Path) -> Iterator[tuple[int, str | _Broken]]:
    """(number, line) of a text file; lines that are not UTF-8 are told as such.

    Lines end at a newline, not where `str.splitlines` ends them, which also cuts at characters
    that JSON strings may hold (U+2028, …).
    """
    data = _bytes(path).removeprefix(b"\xef\xbb\xbf")
    data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError as error:
            yield (
                number,
                _Broken(f"is not UTF-8 text: {error.reason} at byte {error.start} of the line"),
            )


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(path):
        if isinstance(line, _Broken):
            yield number, line
        elif line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, _Broken(f"is not JSON: {_why(error)}")


def _why(error: Exception) -> str:
    """Of JSON: the column too; also too many digits for a number, or too deep a nesting."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at column {error.colno}"
    return str(error)


def _whole(path: Path) -> str:
    parts = []
    for number, line in _lines(path):
        if isinstance(line, _Broken):
            raise ConfigError(f"{path}:{number} {line}")
        parts.append(line)
    return "\n".join(parts)


def _json_list(path: Path) -> Iterator[tuple[int, Any]]:
    text, decoder = _whole(path), json.JSONDecoder()
    blank = re.compile(r"\s*")
    place = blank.match(text).end()
    if text[place : place + 1] != "[":
        raise ConfigError(f"{path}:1 is not a JSON list of objects; one object a line is .jsonl")
    place, line, counted = blank.match(text, place + 1).end(), 1, 0
    while text[place : place + 1] != "]":
        line, counted = line + text.count("\n", counted, place), place
        try:
            record, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{line} is not JSON: {_why(error)}") from None
        yield line, record
        place = blank.match(text, place).end()
        if text[place : place + 1] == ",":
            place = blank.match(text, place + 1).end()
        elif text[place : place + 1] != "]":
            raise ConfigError(f"{path}:{line} is not JSON: no comma after the record")
    if text[place + 1 :].strip():
        raise ConfigError(f"{path} goes on after the end of its list")


def _table(delimiter: str) -> Callable[[Path], Iterator[tuple[int, Any]]]:
    def read(path: Path) -> Iterator[tuple[int, Any]]:
        # broken bytes become lone surrogates, so that a cell of several lines stays together
        data = _bytes(path).removeprefix(b"\xef\xbb\xbf")
        text = data.decode("utf-8", errors="surrogateescape")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            names = next(reader, [])
        except csv.Error as error:
            raise ConfigError(f"{path}:1 is no line of column names: {error}") from None
        if len(set(names)) < len(names) or not all(names):
            raise ConfigError(f"{path}:1 names its columns {names}: each needs a name of its own")
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, _Broken(f"is not CSV: {error}")
                continue
            if any("\udc80" <= c <= "\udcff" for cell in cells for c in cell):
                yield line, _Broken("is not UTF-8 text")
            elif len(cells) not in (0, len(names)):
                yield line, _Broken(f"has {len(cells)} cells for {len(names)} columns")
            elif cells:
                yield line, dict(zip(names, cells, strict=True))

    return read


def _text_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(path):
        if isinstance(line, _Broken):
            yield number, line
        elif line.strip():
            yield number, {"prompt": line}


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        yield from _table_rows(pyarrow.parquet.read_table(io.BytesIO(_bytes(path))))
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no parquet file that can be read: {error}") from None


def _arrow_folder(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow

    if (path / "dataset_dict.json").is_file():
        splits = json.loads((path / "dataset_dict.json").read_text())["splits"]
        names = ", ".join(str(path / name) for name in splits)
        raise ConfigError(f"{path} holds several splits; name the folder of one: {names}")
    if not (path / "state.json").is_file():
        raise ConfigError(f"{path} is a folder, but not one that save_to_disk wrote")
    state = json.loads((path / "state.json").read_text())
    if state.get("_indices_files"):
        raise ConfigError(f"{path} is a selection; flatten_indices() before save_to_disk")
    first = 0
    for file in state["_data_files"]:
        try:
            with pyarrow.memory_map(str(path / file["filename"])) as source:
                table = pyarrow.ipc.open_stream(source).read_all()
        except (pyarrow.ArrowException, OSError) as error:
            raise ConfigError(f"{path / file['filename']} cannot be read: {error}") from None
        for number, record in _table_rows(table):
            yield first + number, record
        first += len(table)


def _table_rows(table) -> Iterator[tuple[int, Row]]:
    for number, record in enumerate(table.to_pylist(), start=1):
        # a column that a row leaves empty is one that it does not have, as in JSON lines
        row = {name: value for name, value in record.items() if value is not None}
        yield number, json.loads(json.dumps(row, default=str))  # dates, decimals: as texts


KINDS: dict[str, Callable[[Path], Iterator[tuple[int, Any]]]] = {
    "jsonl": _json_lines,
    "ndjson": _json_lines,
    "json": _json_list,
    "csv": _table(","),
    "tsv": _table("\t"),
    "parquet": _parquet,
    "txt": _text_lines,
}
