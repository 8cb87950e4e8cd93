"""What is in a file of rows: counts, lengths in tokens, what is there twice, what is learnt."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.encode import encode_prompt, encode_row
from rlhf_jax.data.files import BadRow
from rlhf_jax.data.preferences import SIDES
from rlhf_jax.data.sources import read_shaped
from rlhf_jax.errors import ConfigError

Row = dict[str, Any]
PERCENTILES = (0, 50, 90, 95, 99, 100)
# a shape's completions; a shape that is not here has a prompt alone
COMPLETIONS = {"preference": SIDES, "unpaired": ("completion",), "demonstration": ("completion",)}


@dataclass(frozen=True)
class Example:
    """One row as a run sees it: runs of text, and whether each is learnt.

    `name`: of the completion, where a row holds several.
    """

    line: int
    name: str
    pieces: list[tuple[str, bool]]


@dataclass(frozen=True)
class Findings:
    """What `inspect_file` found.

    tokens: of each part of the rows ("prompt", "completion", "whole", …), the length of every row
    same_rows, same_prompts: how many rows, or prompts, repeat an earlier one
    """

    path: Path
    shape: str
    rows: int
    bad: list[BadRow]
    tokens: dict[str, list[int]]
    same_rows: int
    same_prompts: int
    examples: list[Example]

    def percentiles(self) -> Iterator[tuple[str, list[int]]]:
        """(part, its length at each of `PERCENTILES`): lengths that rows have, not means of two."""
        for name, lengths in self.tokens.items():
            found = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
            yield name, [int(x) for x in found]


def inspect_file(
    path: str | Path,
    tokenizer,
    *,
    shape: str | None = None,
    rename: Sequence[str] = (),
    num_examples: int = 3,
    ask: Callable[[Row], Row] | None = None,
) -> Findings:
    """Read every row of a file as a run would.

    Args:
        path, rename: as of `sources.file_rows`.
        tokenizer: of the model to be trained.
        shape: None: as the first record's fields say.
        num_examples: rows that are shown, spread over the file.
        ask: what a run makes of a row before it is encoded (`chats.as_chat`, say).

    Raises:
        ConfigError: the file cannot be read. Bad rows, those that cannot be encoded included, are
            among the findings.
    """
    shape, records = read_shaped(Path(path), shape, rename)
    tokens: dict[str, list[int]] = {}
    encoded, bad = [], list(records.bad)
    for row, line in zip(records.rows, records.lines, strict=True):
        try:
            parts = _parts(ask(row) if ask else row, shape, tokenizer)
        except ConfigError as error:
            bad.append(BadRow(line, str(error).removeprefix("row").lstrip(": ")))
            continue
        encoded.append((row, line, parts))
        for name, length in _lengths(parts):
            tokens.setdefault(name, []).append(length)
    shown = np.linspace(0, len(encoded) - 1, min(num_examples, len(encoded))).astype(int)
    rows = [row for row, _, _ in encoded]
    return Findings(
        path=Path(path),
        shape=shape,
        rows=len(encoded),
        bad=sorted(bad, key=lambda noted: noted.line),
        tokens=tokens,
        same_rows=_repeats(rows),
        same_prompts=_repeats([row.get("prompt", row.get("messages")) for row in rows]),
        examples=[e for i in shown for e in _examples(*encoded[i][1:], tokenizer)],
    )


def _parts(row: Row, shape: str, tokenizer) -> dict[str, tuple[list[int], list[bool]]]:
    """Ids and what of them is learnt, of each completion by name; "" where there is one."""
    if shape in ("messages", "demonstration"):
        data = DemonstrationSet.from_rows([row], tokenizer, max_tokens=2**31 - 1, name="row")
        return {"": (data.ids[0], data.learn[0])}
    if shape in COMPLETIONS:
        prompt, completions = encode_row(row, tokenizer, "row", COMPLETIONS[shape])
        names = COMPLETIONS[shape] if len(completions) > 1 else ("",)
        learn = [[False] * len(prompt) + [True] * len(ids) for ids in completions]
        wholes = [(prompt + ids, mask) for ids, mask in zip(completions, learn, strict=True)]
        return dict(zip(names, wholes, strict=True))
    ids = encode_prompt(row, tokenizer, "row")[1]
    return {"": (ids, [False] * len(ids))}


def _lengths(parts) -> Iterator[tuple[str, int]]:
    for name, (ids, learn) in parts.items():
        if not any(learn):
            yield "prompt", len(ids)
            continue
        suffix = f" of {name}" if name else ""
        yield f"learnt{suffix}", sum(learn)
        yield f"whole{suffix}", len(ids)


def _repeats(values: Sequence[Any]) -> int:
    counts = Counter(json.dumps(value, sort_keys=True, default=str) for value in values)
    return len(values) - len(counts)


def _examples(line: int, parts, tokenizer) -> Iterator[Example]:
    for name, (ids, learn) in parts.items():
        pieces, start = [], 0
        for learnt, run in groupby(learn):
            stop = start + len(list(run))
            pieces.append((tokenizer.show(ids[:start], ids[start:stop]), learnt))
            start = stop
        yield Example(line, name, pieces)
