"""Demonstrations to imitate: completions of prompts, or the assistant's turns of conversations.

Right-padded to one length; the mask is 1 on what is learnt, end tokens too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.data.encode import encode_dialogue, encode_row
from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.padding import cut_learnt, pad_right
from rlhf_jax.data.rows import TokenRows, fit_rows
from rlhf_jax.types import SFTBatch

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DemonstrationSet(TokenRows):
    """Tokenised demonstrations of at most `max_tokens`. Make one with `from_rows`.

    `learn[i]` says of each of `ids[i]` whether it is learnt; never of the first.
    """

    ids: list[list[int]]
    learn: list[list[bool]]
    max_tokens: int

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        tokenizer,
        *,
        max_tokens: int,
        over_long: str = "error",
        name: str = "demonstrations",
    ) -> DemonstrationSet:
        """Tokenise rows of {"prompt", "completion"} or {"messages"}.

        The prompt is tokenised by itself, as the sampler meets it, and the completion as it
        follows. The end token is added unless the completion has it already. Rows that a sampler
        drew bring ids, which are imitated as they are: `encode_row`. Of a conversation every turn
        of the assistant is learnt: `encode_dialogue`.

        Args:
            rows: records of a dataset.
            tokenizer: has encode(text, add_bos=), append_end(ids), pad_id.
            max_tokens: T, the columns of every batch.
            over_long: "error" names the row; "drop" leaves it out; "left" cuts its beginning,
                "right" its end (and the end token), by exactly the surplus. A row of which no
                whole prompt token, or nothing to learn, would be left is dropped.
            name: of the dataset, for messages.

        Raises:
            ConfigError: no rows, a text missing or of another type, an empty prompt, a row too
                long under "error", or no row left.
        """
        kept = fit_rows(
            rows,
            lambda row, where: _encode(row, tokenizer, where),
            lambda item: len(item[0]),
            lambda item, side: cut_learnt(*item, max_tokens, side),
            limit=max_tokens,
            over_long=over_long,
            name=name,
        )
        return cls(
            ids=[ids for ids, _ in kept.items],
            learn=[learn for _, learn in kept.items],
            max_tokens=max_tokens,
            **kept.options(tokenizer.pad_id),
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def fingerprint(self) -> str:
        """Changes with any demonstration, with what of it is learnt, or their order."""
        return fingerprint(zip(self.learn, self.ids, strict=True))

    def take(self, index_B: np.ndarray) -> SFTBatch:
        """The demonstrations at these positions, as NumPy arrays [B, T].

        The mask comes from lengths, never from ids: where pad and end are one token, the end
        that closes a demonstration is still learnt.
        """
        index = [int(i) for i in index_B]
        tokens_BT, attend_BT = pad_right([self.ids[i] for i in index], self.max_tokens, self.pad_id)
        mask_BT, _ = pad_right([self.learn[i] for i in index], self.max_tokens, 0)
        return SFTBatch(tokens_BT=tokens_BT, attend_BT=attend_BT, mask_BT=mask_BT.astype(bool))


def _encode(row: Row, tokenizer, where: str) -> tuple[list[int], list[bool]]:
    if "messages" in row:
        return encode_dialogue(row, tokenizer, where)
    prompt, (completion,) = encode_row(row, tokenizer, where)
    return prompt + completion, [False] * len(prompt) + [True] * len(completion)
