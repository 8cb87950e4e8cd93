"""Completions judged one by one, desirable or not, as token rows with their mismatched pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.preferences import Row, check_reference, padded, read_rows
from rlhf_jax.data.rows import TokenRows
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import UnpairedBatch, replace


@dataclass(frozen=True, kw_only=True)
class UnpairedSet(TokenRows):
    """Tokenised completions of at most `max_tokens`, each desirable or not (KTO).

    `other[i]` is the row whose completion stands after row i's prompt as its mismatched pair: the
    nearest one before it (cyclically) that has another prompt. It is fixed for the whole dataset,
    so that no batch, not even a last one of one row, meets a completion that is the row's own,
    and the reference can be asked once. A completion too long for its borrowed prompt is cut.
    """

    prompts: list[list[int]]
    completions: list[list[int]]
    desirable: list[bool]
    other: list[int]
    max_tokens: int
    logp_ref_B: np.ndarray | None = None
    logp_ref_other_B: np.ndarray | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        tokenizer,
        *,
        max_tokens: int,
        over_long: str = "error",
        name: str = "preferences",
    ) -> UnpairedSet:
        """Tokenise rows of {"prompt": text, "completion": text, "label": bool (desirable)}.

        Args and ids as sampled: see `PreferenceSet.from_rows`.

        Raises:
            ConfigError: no rows, a text or label missing or of another type, an empty prompt, a
                row too long under "error", no row left, or none with another prompt.
        """
        for number, row in enumerate(rows):
            if not isinstance(row.get("label"), bool):
                raise ConfigError(
                    f"{name}: row {number}: 'label' is {row.get('label')!r}, not true or false"
                )
        kept = read_rows(rows, ("completion",), tokenizer, max_tokens, over_long, name)
        prompts = [prompt for prompt, _ in kept.items]
        return cls(
            prompts=prompts,
            completions=[completion for _, (completion,) in kept.items],
            desirable=[rows[number]["label"] for number in kept.numbers],
            other=mismatched(prompts, name),
            max_tokens=max_tokens,
            **kept.options(tokenizer.pad_id),
        )

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def fingerprint(self) -> str:
        """Changes with any row, its label, where its completion begins, or their order."""
        return fingerprint(zip(self.prompts, self.completions, self.desirable, strict=True))

    def with_reference(self, logp_ref_B: np.ndarray, logp_ref_other_B: np.ndarray) -> UnpairedSet:
        """The same rows with Σ log π_ref of each completion and of each mismatched pair."""
        check_reference(self, logp_ref_B)
        check_reference(self, logp_ref_other_B)
        return replace(self, logp_ref_B=logp_ref_B, logp_ref_other_B=logp_ref_other_B)

    def take(self, index_B: np.ndarray) -> UnpairedBatch:
        """The rows at these positions, as NumPy arrays [B, T]."""
        index = [int(i) for i in index_B]
        own = padded([(self.prompts[i], self.completions[i]) for i in index], self)
        borrowed = []
        for i in index:
            room = self.max_tokens - len(self.prompts[i])
            borrowed.append((self.prompts[i], self.completions[self.other[i]][:room]))
        other = padded(borrowed, self)
        known = self.logp_ref_B is not None
        return UnpairedBatch(
            tokens_BT=own[0],
            attend_BT=own[1],
            mask_BT=own[2],
            desirable_B=np.asarray([self.desirable[i] for i in index]),
            tokens_other_BT=other[0],
            attend_other_BT=other[1],
            mask_other_BT=other[2],
            logp_ref_B=self.logp_ref_B[index] if known else None,
            logp_ref_other_B=self.logp_ref_other_B[index] if known else None,
        )


def mismatched(prompts: Sequence[Sequence[int]], name: str) -> list[int]:
    """For each row the nearest one before it, cyclically, with another prompt.

    Raises:
        ConfigError: all rows have one prompt (or there is one row): no completion is another's.
    """
    if all(prompt == prompts[0] for prompt in prompts):
        raise ConfigError(
            f"{name}: a mismatched pair takes the completion of another prompt, and every row has "
            "the same"
        )
    other, last = [], len(prompts) - 1
    while prompts[last] == prompts[0]:
        last -= 1
    for i, prompt in enumerate(prompts):
        if i and prompts[i - 1] != prompt:
            last = i - 1
        other.append(last)
    return other
