"""Prompts as token rows of one length: read, tokenise, refuse or cut, draw by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_jax.data.encode import encode_prompt
from rlhf_jax.data.files import BadRow, read_json_lines, settle, why_not_field
from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.padding import pad_left
from rlhf_jax.data.rows import TokenRows, fit_rows
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import Prompts

Row = dict[str, Any]


def read_jsonl(path: str | Path, *, required: Sequence[str] = ("prompt",)) -> list[Row]:
    """Rows of a JSON-lines file, each an object with non-empty strings under `required`.

    Blank lines are skipped; the file may be gzip-compressed.

    Raises:
        ConfigError: no such file, no rows, or (with the line's number) text that is not UTF-8 or
            a line that is not such an object.
    """
    records = read_json_lines(path)
    bad = list(records.bad)
    for line, row in zip(records.lines, records.rows, strict=True):
        why = next(filter(None, (why_not_field(row, name) for name in required)), None)
        if why:
            bad.append(BadRow(line, why))
    bad.sort(key=lambda row: row.line)
    settle(records.path, bad, len(records.rows), "error")
    return records.rows


def jsonl_prompts(*, train: str, held_out: str) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows from two JSON-lines files of {"prompt": ..., ...}.

    Args:
        train: file of the rows to train on.
        held_out: file of the rows to evaluate on; no prompt of it may be in `train`.

    Raises:
        ConfigError: as `read_jsonl`, or a prompt is in both files.
    """
    rows, held_out_rows = read_jsonl(train), read_jsonl(held_out)
    seen = {row["prompt"] for row in rows}
    for number, row in enumerate(held_out_rows):
        if row["prompt"] in seen:
            raise ConfigError(f"{held_out}: row {number} is a prompt of {train} too")
    return rows, held_out_rows


def both_parts(found: Any) -> tuple[Sequence[Row], Sequence[Row]]:
    """(training rows, held-out rows): what a config's `prompts` has returned, if it is that.

    Raises:
        ConfigError: it is something else, one list of rows for example.
    """
    pair = isinstance(found, (tuple, list)) and len(found) == 2
    if not pair or any(isinstance(part, (Mapping, str)) for part in found):
        raise ConfigError(
            "prompts must return two lists, (training rows, held-out rows); it returned "
            f"{found!r:.60}, a {type(found).__name__}"
        )
    return found[0], found[1]


@dataclass(frozen=True, kw_only=True)
class PromptSet(TokenRows):
    """Tokenised prompts of at most `max_prompt_tokens`. Make one with `from_rows`.

    `id_of` is a prompt's row number in what was read, so dropping rows renames no other.
    """

    rows: list[Row]
    texts: list[str]
    ids: list[list[int]]
    id_of: list[int]
    max_prompt_tokens: int

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        tokenizer,
        *,
        max_prompt_tokens: int,
        over_long: str = "error",
        name: str = "prompts",
    ) -> PromptSet:
        """Tokenise rows of {"prompt": text or messages, ...}.

        A text begins as the checkpoint's own template begins one, and is continued. Messages go
        through the chat template, up to where the assistant's answer begins.

        Args:
            rows: records of a dataset; they reach the reward functions as they are.
            tokenizer: has encode(text), pad_id, and render(messages, answer=) for messages.
            max_prompt_tokens: L, the columns of every batch.
            over_long: what becomes of a longer prompt. "error" names the row; "drop" leaves it
                out; "left" cuts tokens off its beginning (the begin token goes first), "right"
                off its end. Rows left out or cut are counted and logged. Rewards still see the
                text that the dataset has.
            name: of the dataset, for messages.

        Raises:
            ConfigError: no rows, a prompt that is missing, empty or not encodable, one that is
                too long under "error", or no prompt left under "drop".
        """
        limit = max_prompt_tokens
        kept = fit_rows(
            rows,
            lambda row, where: encode_prompt(row, tokenizer, where),
            lambda item: len(item[1]),
            lambda item, side: (item[0], item[1][-limit:] if side == "left" else item[1][:limit]),
            limit=limit,
            over_long=over_long,
            name=name,
            option="max_prompt_tokens",
        )
        return cls(
            rows=[rows[number] for number in kept.numbers],
            texts=[text for text, _ in kept.items],
            ids=[ids for _, ids in kept.items],
            id_of=kept.numbers,
            max_prompt_tokens=max_prompt_tokens,
            **kept.options(tokenizer.pad_id),
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """Changes with any record, its tokens, its id, or the order of them."""
        return fingerprint(zip(self.id_of, self.ids, self.rows, strict=True))

    def take(self, index_P: np.ndarray) -> Prompts:
        """The prompts at these positions, left-padded to L."""
        index = [int(i) for i in index_P]
        tokens_PL, attend_PL = pad_left(
            [self.ids[i] for i in index], self.max_prompt_tokens, self.pad_id
        )
        rows = [self.rows[i] for i in index]
        return Prompts(
            tokens_PL=tokens_PL,
            attend_PL=attend_PL,
            id_P=np.asarray([self.id_of[i] for i in index], np.int32),
            texts=[self.texts[i] for i in index],
            rows=rows,
        )
