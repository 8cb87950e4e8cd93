"""Prompts as token rows of one length: read, tokenise, refuse or cut, draw by step."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grain
import numpy as np

from rlhf_jax.data.lengths import OVER_LONG, tell_lengths, too_long
from rlhf_jax.data.order import batches_in_order, fingerprint, shuffled_batches
from rlhf_jax.data.padding import pad_left
from rlhf_jax.data.texts import check_encodable, read_text
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.types import Prompts

Row = dict[str, Any]


def read_jsonl(path: str | Path, *, required: Sequence[str] = ("prompt",)) -> list[Row]:
    """Rows of a JSON-lines file, each an object with non-empty strings under `required`.

    Blank lines are skipped.

    Raises:
        ConfigError: no such file, no rows, or (with the line's number) text that is not UTF-8 or
            a line that is not such an object.
    """
    path = Path(path)
    rows = []
    # not splitlines(), which also cuts at characters that JSON strings may hold (U+2028, …)
    lines = read_text(path, expected="one JSON object a line").split("\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also too many digits, too deep a nesting
            raise ConfigError(f"{path}:{number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ConfigError(f"{path}:{number} is a {type(row).__name__}, not an object")
        _check_texts(f"{path}:{number}", row, required)
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path} holds no rows")
    return rows


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


def _check_texts(where: str, row: Row, required: Sequence[str]) -> None:
    for name in required:
        if name not in row:
            raise ConfigError(f"{where} has no {name!r}; it has {', '.join(row) or 'nothing'}")
        if not isinstance(row[name], str) or not row[name]:
            raise ConfigError(f"{where}: {name!r} is {row[name]!r}, not a non-empty string")
        check_encodable(where, name, row[name])


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """Tokenised prompts of at most `max_prompt_tokens`. Make one with `from_rows`.

    `id_of` is a prompt's row number in what was read, so dropping rows renames no other.
    """

    rows: list[Row]
    ids: list[list[int]]
    id_of: list[int]
    max_prompt_tokens: int
    pad_id: int
    num_dropped: int
    num_cut: int

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
        """Tokenise rows of {"prompt": text, ...} as the checkpoint's own template begins a text.

        Args:
            rows: records of a dataset; they reach the reward functions as they are.
            tokenizer: has encode(text), pad_id.
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
        check_choice("over_long", over_long, OVER_LONG)
        check_number("max_prompt_tokens", max_prompt_tokens, low=1)
        if not rows:
            raise ConfigError(f"{name}: there are no rows")
        kept: list[tuple[int, list[int]]] = []
        num_cut = 0
        for number, row in enumerate(rows):
            _check_texts(f"{name}: row {number}", row, ("prompt",))
            ids = list(tokenizer.encode(row["prompt"]))
            if not ids:
                raise ConfigError(f"{name}: row {number} has no tokens: {row['prompt']!r}")
            if len(ids) > max_prompt_tokens:
                if over_long == "error":
                    raise too_long(name, number, len(ids), "max_prompt_tokens", max_prompt_tokens)
                if over_long == "drop":
                    continue
                num_cut += 1
                ids = ids[-max_prompt_tokens:] if over_long == "left" else ids[:max_prompt_tokens]
            kept.append((number, ids))
        num_dropped = len(rows) - len(kept)
        tell_lengths(name, len(rows), num_dropped, num_cut, max_prompt_tokens)
        return cls(
            rows=[rows[number] for number, _ in kept],
            ids=[ids for _, ids in kept],
            id_of=[number for number, _ in kept],
            max_prompt_tokens=max_prompt_tokens,
            pad_id=tokenizer.pad_id,
            num_dropped=num_dropped,
            num_cut=num_cut,
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
            texts=[row["prompt"] for row in rows],
            rows=rows,
        )

    def batches(self, num_prompts: int, seed: int) -> grain.MapDataset:
        """`batches(P, seed)[step]` is the step's `Prompts`; rules: `shuffled_batches`."""
        return shuffled_batches(len(self), num_prompts, seed, self.take)

    def in_order(self, num_prompts: int) -> Iterator[tuple[Prompts, np.ndarray]]:
        """Every prompt once, in batches of one size: (prompts, weight_P); `batches_in_order`."""
        return batches_in_order(len(self), num_prompts, self.take)
