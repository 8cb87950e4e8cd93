"""Rows for a run's config out of files and datasets: `bind` one of these functions.

prompts=bind(file_prompts, path="problems.jsonl", held_out=200)
demonstrations=bind(file_rows, path="chats.parquet", shape="messages")
preferences=bind(file_rows, path="pairs.csv.gz", shape="preference", part="train", held_out=50)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_jax.data.files import BadRow, Records, read_records, settle
from rlhf_jax.data.prepared import digest_of, prepare, read_prepared, registered_rows
from rlhf_jax.data.shapes import SHAPES, from_cells, guess_shape, shared_beginning, why_not
from rlhf_jax.data.texts import split_rendered
from rlhf_jax.errors import ConfigError, check_choice, check_number

Row = dict[str, Any]
PARTS = ("all", "train", "held_out")


def file_rows(
    *,
    path: str,
    shape: str,
    rename: Sequence[str] = (),
    bad: str = "error",
    part: str = "all",
    held_out: int = 0,
    cache: str | None = None,
) -> list[Row]:
    """Rows of a local file, or of a folder that `datasets.Dataset.save_to_disk` wrote.

    Args:
        path: .jsonl, .json, .csv, .tsv, .parquet or .txt, gzip-compressed or not.
        shape: what a row must hold: messages, demonstration (prompt, completion), preference
            (chosen, rejected, and the prompt or not), unpaired (prompt, completion, label),
            ranking, stepwise, verifiable (prompt and an answer or tests) or prompt.
        rename: "new=old" for every field that has another name in the file.
        bad: what becomes of rows that are broken or of another shape: "error" names the first of
            them with their lines; "skip" leaves them out, and the log names and counts them.
        part: "train" or "held_out": of the rows, those whose prompts are not, or are, held out.
        held_out: how many prompts are; which ones depends on their content alone.
        cache: folder in which the rows are prepared once as array_record, under a name made of
            the file's content. None: the file is read every time.

    Raises:
        ConfigError: the file, a row under "error", or no row left.
    """
    check_choice("part", part, PARTS)
    records = _records(Path(path), shape, tuple(rename), cache)
    settle(records.path, records.bad, len(records.rows), bad)
    return pick_part(records.rows, part, held_out, path)


def file_prompts(
    *,
    path: str,
    held_out: int,
    held_out_path: str | None = None,
    shape: str = "prompt",
    rename: Sequence[str] = (),
    bad: str = "error",
    cache: str | None = None,
) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows of files, for a loop that samples; arguments of `file_rows`.

    held_out_path: the file whose prompts are held out, a test split; none of them may be in
        `path`. None: `path` itself, and what is held out is not trained on.

    Raises:
        ConfigError: as `file_rows`, too few prompts to hold out so many, or a prompt of
            `held_out_path` that is in `path` too.
    """
    options = dict(shape=shape, rename=rename, bad=bad, cache=cache)
    rows = file_rows(path=path, **options)
    if held_out_path is None:
        parts = [pick_part(rows, part, held_out, path) for part in ("train", "held_out")]
        return parts[0], parts[1]
    held = file_rows(
        path=held_out_path, part="held_out" if held_out else "all", held_out=held_out, **options
    )
    known = {_digest(row["prompt"]) for row in rows}
    for row in held:
        if _digest(row["prompt"]) in known:
            raise ConfigError(f"{held_out_path}: {row['prompt']!r:.60} is a prompt of {path} too")
    return rows, held


def tfds_rows(
    *,
    name: str,
    shape: str,
    split: str = "train",
    rename: Sequence[str] = (),
    bad: str = "error",
    data_dir: str | None = None,
) -> list[Row]:
    """Rows of a registered tensorflow-datasets name, or of the folder of a prepared dataset.

    Args:
        name: "gsm8k", say; where it is not prepared yet, it is fetched: that takes a network.
        shape, rename, bad: as of `file_rows`; a row's number stands for its line.
        split: "train", "train[:90%]", ….
        data_dir: where tensorflow-datasets keeps what it has prepared.

    Raises:
        ConfigError: no such dataset, a row under "error", or no row left.
    """
    found = registered_rows(name, split, data_dir)
    records = Records(Path(name), found, list(range(1, len(found) + 1)), [])
    records = check_shape(_renamed(records, tuple(rename)), shape)
    settle(records.path, records.bad, len(records.rows), bad)
    return records.rows


def check_shape(records: Records, shape: str) -> Records:
    """The records of a shape; the others are noted as bad, in the order of the file."""
    check_choice("shape", shape, SHAPES)
    records = from_cells(records, shape)
    rows, lines, bad = [], [], list(records.bad)
    for row, line in zip(records.rows, records.lines, strict=True):
        why = why_not(row, shape)
        if why is None:
            rows.append(with_prompt(row) if shape == "preference" else row)
            lines.append(line)
        else:
            bad.append(BadRow(line, why))
    return Records(records.path, rows, lines, sorted(bad, key=lambda row: row.line))


def with_prompt(row: Row) -> Row:
    """A pair with its prompt: what both sides begin with, where the row names none."""
    if "prompt" in row:
        return row
    sides = row["chosen"], row["rejected"]
    if isinstance(sides[0], str):
        prompt, sides = split_rendered(*sides)
    else:  # both sides keep a message of their own, also if all they hold is the same
        shared = min(shared_beginning(*sides), *(len(side) - 1 for side in sides))
        prompt, sides = sides[0][:shared], tuple(side[shared:] for side in sides)
    return {**row, "prompt": prompt, "chosen": sides[0], "rejected": sides[1]}


def pick_part(rows: list[Row], part: str, held_out: int, name: str) -> list[Row]:
    """The rows of a part. The `held_out` prompts of smallest SHA-256 are held out.

    A row without a prompt (of the shape messages) goes by its whole conversation.

    Raises:
        ConfigError: a part is asked of too few prompts, or prompts are held out of no part.
    """
    check_number("held_out", held_out, low=0 if part == "all" else 1)
    if part == "all":
        if held_out:
            raise ConfigError(f'held_out={held_out} says nothing of part="all"')
        return rows
    digests = [_digest(row.get("prompt", row.get("messages"))) for row in rows]
    distinct = sorted(set(digests))
    if len(distinct) <= held_out:
        raise ConfigError(
            f"{name}: {len(distinct)} distinct prompts are too few to hold out {held_out}"
        )
    last = distinct[held_out - 1]
    keep = (lambda digest: digest > last) if part == "train" else (lambda digest: digest <= last)
    return [row for row, digest in zip(rows, digests, strict=True) if keep(digest)]


def read_shaped(path: Path, shape: str | None, rename: Sequence[str]) -> tuple[str, Records]:
    """A file's records, checked; a shape of None is guessed from the first record."""
    records = _renamed(read_records(path), tuple(rename))
    shape = shape or guess_shape(records.rows)
    return shape, check_shape(records, shape)


def _records(path: Path, shape: str, rename: tuple[str, ...], cache: str | None) -> Records:
    check_choice("shape", shape, SHAPES)
    if cache is None or not path.exists():
        return read_shaped(path, shape, rename)[1]
    digest = digest_of(path, rename)
    found = read_prepared(cache, shape, digest, path)
    if found is None:
        found = read_shaped(path, shape, rename)[1]
        if found.rows:
            prepare(cache, shape, digest, found)
    return found


def _renamed(records: Records, rename: tuple[str, ...]) -> Records:
    pairs = [pair.split("=") for pair in rename]
    if any(len(pair) != 2 or not all(pair) for pair in pairs):
        raise ConfigError(f"rename is {rename!r}: each must be 'new=old'")
    new_of = {old: new for new, old in pairs}
    if len(set(new_of.values())) < len(pairs):
        raise ConfigError(f"rename is {rename!r}: a name is given twice")
    # a field that had the new name makes room for the one that takes it
    rows = [
        {new_of.get(k, k): v for k, v in row.items() if k in new_of or k not in new_of.values()}
        for row in records.rows
    ]
    return Records(records.path, rows, records.lines, records.bad, records.texts_only)


def _digest(prompt: Any) -> bytes:
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    return hashlib.sha256(text.encode()).digest()
