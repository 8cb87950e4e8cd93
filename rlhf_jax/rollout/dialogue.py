"""Rows of dialogues while they grow, on the host: sampled turns and observations, left-packed.

A row is the prompt, left-padded to L columns, and up to R columns after it: turn, observation,
turn, … without a gap, then padding. Shapes never change, whatever was said.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_jax.types import Prompts, Rollout, Turns


class DialogueRows:
    """B = P·G rows, sample g of prompt p in row p·G + g. `open_B`: the next turn is to be sampled.

    Args:
        prompts: P of them, L wide.
        num_samples: G.
        columns: R, of everything after the prompt.
        pad_id: fills what is not attended to.
    """

    def __init__(self, prompts: Prompts, *, num_samples: int, columns: int, pad_id: int):
        def rows(x_PL: np.ndarray, fill) -> np.ndarray:
            after_BR = np.full((len(x_PL) * num_samples, columns), fill, x_PL.dtype)
            return np.concatenate([np.repeat(x_PL, num_samples, axis=0), after_BR], axis=1)

        self.num_samples, self.pad_id = num_samples, pad_id
        self.prompt_columns = prompts.tokens_PL.shape[1]
        self.tokens_BT = rows(prompts.tokens_PL.astype(np.int32), pad_id)
        self.attend_BT = rows(prompts.attend_PL, False)
        shape = self.tokens_BT.shape
        self.mask_BT = np.zeros(shape, bool)
        self.logp_sampler_BT = np.zeros(shape, np.float32)
        self.logp_full_BT = np.zeros(shape, np.float32)
        self.entropy_BT = np.zeros(shape, np.float32)
        self.end_BT, self.given_BT = np.zeros(shape, bool), np.zeros(shape, bool)
        self.score_BT = np.zeros(shape, np.float32)
        self.filled_B = np.full(shape[0], self.prompt_columns)
        self.begun_B = self.filled_B.copy()  # where the last turn begins
        self.id_B = np.repeat(prompts.id_P, num_samples)
        self.sample_B = np.tile(np.arange(num_samples, dtype=np.int32), len(prompts.id_P))
        self.open_B = np.ones(shape[0], bool)
        self.truncated_B = np.zeros(shape[0], bool)

    def contexts(self, width: int) -> tuple[np.ndarray, np.ndarray]:
        """tokens and attention [B, width] of all so far, ending in the last column.

        A closed row shows its prompt alone: nothing is drawn from it.
        """
        until_B = np.where(self.open_B, self.filled_B, self.prompt_columns)
        source_BW = until_B[:, None] + np.arange(-width, 0)[None]
        inside_BW = source_BW >= 0
        source_BW = np.where(inside_BW, source_BW, 0)
        tokens_BW = np.take_along_axis(self.tokens_BT, source_BW, axis=1)
        attend_BW = np.take_along_axis(self.attend_BT, source_BW, axis=1) & inside_BW
        return np.where(attend_BW, tokens_BW, self.pad_id).astype(np.int32), attend_BW

    def write_turn(self, drawn: Rollout) -> None:
        """Append what was sampled to every open row.

        Args:
            drawn: host copies; its counted columns are the turn, beginning where its prompts end.
        """
        for b in np.flatnonzero(self.open_B):
            mask_T = drawn.mask_BT[b]
            here = slice(self.filled_B[b], self.filled_B[b] + int(mask_T.sum()))
            self.begun_B[b] = here.start
            for name in ("tokens_BT", "logp_sampler_BT", "logp_full_BT", "entropy_BT"):
                getattr(self, name)[b, here] = getattr(drawn, name)[b][mask_T]
            self.attend_BT[b, here] = self.mask_BT[b, here] = True
            self.end_BT[b, here.stop - 1] = True
            self.filled_B[b] = here.stop
            self.truncated_B[b] = drawn.truncated_B[b]

    def last_turn(self, b: int) -> tuple[list[int], list[int]]:
        """Row b's ids before its last turn, and those of the turn."""
        begun, filled = self.begun_B[b], self.filled_B[b]
        before_T = self.tokens_BT[b, :begun][self.attend_BT[b, :begun]]
        return before_T.tolist(), self.tokens_BT[b, begun:filled].tolist()

    def write_observation(self, b: int, ids: Sequence[int]) -> None:
        """Append what row b is given to read."""
        here = slice(self.filled_B[b], self.filled_B[b] + len(ids))
        self.tokens_BT[b, here], self.attend_BT[b, here] = ids, True
        self.filled_B[b] = here.stop

    def reward(self, b: int, reward: float | None) -> None:
        """What the turn just written is worth; None: nothing is said of it."""
        last = self.filled_B[b] - 1
        self.given_BT[b, last] = reward is not None
        self.score_BT[b, last] = reward or 0.0

    def fail(self, b: int) -> None:
        """Close row b without a score: none of its rewards stands."""
        self.given_BT[b] = False
        self.score_BT[b] = 0.0
        self.open_B[b] = False

    def room(self, b: int) -> int:
        """Columns that are left in row b."""
        return self.tokens_BT.shape[1] - int(self.filled_B[b])

    def rollout(self) -> Rollout:
        """All rows as one record."""
        return Rollout(
            tokens_BT=self.tokens_BT,
            attend_BT=self.attend_BT,
            mask_BT=self.mask_BT,
            logp_sampler_BT=self.logp_sampler_BT,
            logp_full_BT=self.logp_full_BT,
            entropy_BT=self.entropy_BT,
            group_B=np.repeat(
                np.arange(len(self.id_B) // self.num_samples, dtype=np.int32), self.num_samples
            ),
            truncated_B=self.truncated_B,
            turns=Turns(end_BT=self.end_BT, given_BT=self.given_BT, score_BT=self.score_BT),
        )
