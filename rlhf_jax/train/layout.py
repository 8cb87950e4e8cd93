"""Which prompt is run once for which responses, and where each response stands. Host, numpy.

A rollout repeats its prompt in every row and pads every response to the longest. A `Layout` says
how the same tokens are run without that: prompts in sets of P, each prompt once; the responses of a
prompt whole and one after the other in blocks of R columns, X blocks of each prompt at a time. All
shapes depend on the run's sizes alone; how much of them is run is a number (`steps_E`), so that
one program serves every draw.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from jax import Array

from rlhf_jax.errors import ConfigError
from rlhf_jax.types import pytree

# Enough rows to keep a matmul bound by its arithmetic; a set takes as long as its neediest prompt,
# so more would only run more padding.
PASS_TOKENS = 2048


@dataclass(frozen=True)
class Sizes:
    """What is static of every layout of a run.

    sets: E, sets of prompts, run one after the other
    prompts: P, of one set, run together; the row shards divide it
    blocks: blocks that a prompt may fill, a multiple of `at_once`
    at_once: X, blocks of each prompt in one forward and backward pass
    """

    sets: int
    prompts: int
    blocks: int
    at_once: int

    @classmethod
    def of(
        cls,
        rows: int,
        num_prompts: int,
        num_samples: int,
        room: int,
        *,
        micro_rows: int | None,
        shards: int,
    ) -> Sizes:
        """Sizes for batches of `rows` rows out of P·G.

        Args:
            rows: of a batch; any rows of the rollout.
            num_prompts, num_samples, room: P, G and R of the rollout.
            micro_rows: blocks that a pass holds at once, at least one a row shard; None: so many
                that a shard runs about `PASS_TOKENS` at once.
            shards: parts that rows are split into on the mesh.
        """
        slots = -(-min(rows, num_prompts) // shards) * shards
        most = min(rows, num_samples)
        if micro_rows is None:
            micro_rows = shards * max(1, PASS_TOKENS // room)
        at_a_time = max(micro_rows, shards)
        prompts = min(slots, at_a_time // shards * shards)
        at_once = min(at_a_time // prompts, most)
        return cls(
            sets=-(-slots // prompts),
            prompts=prompts,
            blocks=-(-most // at_once) * at_once,
            at_once=at_once,
        )


@pytree
class Layout:
    """Where each row of a batch is run; made by `lay_out`.

    `prompt_EP`: the row that lends each prompt slot its prompt columns; `steps_E`: passes over X
    blocks that a set needs, sets with none last. A row's response begins in column `start_B` of
    block `block_B` of the prompt slot `slot_B` and takes `length_B` columns; rows that are not run
    have length 0.
    """

    prompt_EP: Array
    steps_E: Array
    slot_B: Array
    block_B: Array
    start_B: Array
    length_B: Array
    prompt_columns: int = field(metadata={"static": True})
    blocks: int = field(metadata={"static": True})
    at_once: int = field(metadata={"static": True})


def lay_out(
    mask_BT: np.ndarray, group_B: np.ndarray, sizes: Sizes, *, prompt_columns: int
) -> Layout:
    """Fill blocks with whole responses, longest first, each into the first that has room.

    Args:
        mask_BT: [B, T] bool, the tokens that something is asked of: a response is run up to its
            last one, and not at all without one.
        group_B: [B] int; rows of one number have the same prompt columns.
        sizes: of the run.
        prompt_columns: L; responses begin there.

    Raises:
        ConfigError: more prompts, or more rows of one prompt, than there is room for.
    """
    mask_BR = np.asarray(mask_BT)[:, prompt_columns:]
    rows, room = mask_BR.shape
    length_B = np.where(mask_BR.any(axis=1), room - np.argmax(mask_BR[:, ::-1], axis=1), 0)
    block_B, start_B = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    found = []  # (blocks filled, a row of the prompt, all its rows)
    for group in np.unique(np.asarray(group_B)[length_B > 0]):
        members = np.flatnonzero((group_B == group) & (length_B > 0))
        filled: list[int] = []
        for b in members[np.argsort(-length_B[members], kind="stable")]:
            fits = (n for n, used in enumerate(filled) if used + length_B[b] <= room)
            block = next(fits, len(filled))
            if block == len(filled):
                filled.append(0)
            block_B[b], start_B[b] = block, filled[block]
            filled[block] += length_B[b]
        found.append((len(filled), members))
    slots = sizes.sets * sizes.prompts
    most = max((need for need, _ in found), default=0)
    if len(found) > slots or most > sizes.blocks:
        raise ConfigError(
            f"{len(found)} prompts with up to {most} blocks of responses do not fit into {slots} "
            f"slots of {sizes.blocks}: are rows of one prompt numbered alike?"
        )
    # prompts of like need share a set: a set takes as long as its neediest
    found.sort(key=lambda group: -group[0])
    need_S, prompt_S, slot_B = np.zeros(slots, int), np.zeros(slots, np.int32), np.zeros(rows, int)
    for slot, (need, members) in enumerate(found):
        need_S[slot], prompt_S[slot], slot_B[members] = need, members[0], slot
    steps_E = -(-need_S.reshape(sizes.sets, -1).max(axis=1) // sizes.at_once)
    return Layout(
        prompt_EP=prompt_S.reshape(sizes.sets, -1),
        steps_E=steps_E.astype(np.int32),
        slot_B=slot_B.astype(np.int32),
        block_B=block_B,
        start_B=start_B,
        length_B=length_B.astype(np.int32),
        prompt_columns=prompt_columns,
        blocks=sizes.blocks,
        at_once=sizes.at_once,
    )


def columns_run(layout: Layout, room: int) -> int:
    """Token columns that a pass over this layout computes, padding included."""
    used = int(np.count_nonzero(layout.steps_E))
    prompts = layout.prompt_EP.shape[1]
    blocks = int(np.sum(layout.steps_E)) * layout.at_once * prompts
    return used * prompts * layout.prompt_columns + blocks * room
