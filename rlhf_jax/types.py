"""The dimension key, and the records that flow between the stages of a step.

Arrays end in their shape, one letter a dimension:

    B rows (= P·G)    P prompts         G samples of one prompt
    T positions       L prompt length   R response length (T = L + R)
    V vocabulary      D model width     F feed-forward width
    H query heads     J key/value heads K head width
    N layers          C reward functions ("columns" of a score)
    U rank of a low-rank adapter
    S sides: completions of one prompt, compared with each other

Scalars and pytrees bear no suffix. Prompts are left-padded to L, responses right-padded to R, so
every response begins at column L.

Alignment, once for all: column t speaks of token t. `logp_BT[b, t]` scores `tokens_BT[b, t]`,
`value_BT[b, t]` is the value of the prefix before that token (the head read at t − 1),
`reward_BT` and `advantage_BT` likewise. Column 0 is always masked.

`attend_BT` is 1 on every real token (prompt and response); `mask_BT` is 1 on the response tokens
that count, up to and including the end token, 0 on prompt, padding and observation tokens.
Both are bool. Groups are told by `group_B`, never by adjacency.

Words: *score* is what the reward function says; *reward* is what the advantage sees (score minus
KL if it is placed there); *sampler* log-probs are those of the distribution drawn from; *old* is
the policy that sampled, as the trainer computes it; *ref* is the frozen reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax import Array


def pytree(cls):
    """A frozen keyword-only dataclass whose fields are pytree children."""
    cls = dataclass(frozen=True, kw_only=True)(cls)
    return jax.tree_util.register_dataclass(cls)


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """A batch of prompts on the host. `rows` are the dataset's own records, one a prompt.

    `id_P` is the prompt's index in its dataset: sampling keys fold it, so a prompt draws the
    same samples in any batch, slot, process or device.
    """

    tokens_PL: np.ndarray
    attend_PL: np.ndarray
    id_P: np.ndarray
    texts: list[str]
    rows: list[dict[str, Any]]


@pytree
class Turns:
    """What an environment said of each row of a dialogue.

    `end_BT` is True on the last sampled token of each turn; `score_BT` is the turn's reward there,
    where `given_BT` says that one was given.
    """

    end_BT: Array
    given_BT: Array
    score_BT: Array


@pytree
class Rollout:
    """What the sampler drew, G rows a prompt, rows of one prompt sharing `group_B`.

    `logp_sampler_BT` is under the distribution actually drawn from (temperature, top-k, top-p,
    min-p); `logp_full_BT` under the full softmax at the same temperature, as the trainer scores.
    Both are 0 outside `mask_BT`. `truncated_B`: the row reached R tokens without an end token, or
    is a dialogue that was cut short. `turns` is None where each row is one answer.
    """

    tokens_BT: Array
    attend_BT: Array
    mask_BT: Array
    logp_sampler_BT: Array
    logp_full_BT: Array
    entropy_BT: Array
    group_B: Array
    truncated_B: Array
    turns: Turns | None = None


@pytree
class Scored:
    """Everything an advantage estimator may look at. What an algorithm does not use is None.

    `score_BC[b, c]` is reward function c's score times its weight; where `valid_BC` is False the
    function does not apply to the row and its score is ignored. `step_score_BT` holds process
    rewards at the columns where `step_end_BT` is True; they are no part of `score_BC`.
    `baseline_B` is ReMax's greedy score, repeated to rows. `entropy_BT` is the sampler's, of the
    full softmax.
    """

    score_BC: Array
    valid_BC: Array
    group_B: Array
    mask_BT: Array
    truncated_B: Array
    logp_sampler_BT: Array | None = None
    logp_full_BT: Array | None = None
    logp_old_BT: Array | None = None
    logp_ref_BT: Array | None = None
    value_BT: Array | None = None
    last_value_B: Array | None = None
    step_end_BT: Array | None = None
    step_score_BT: Array | None = None
    baseline_B: Array | None = None
    entropy_BT: Array | None = None


@pytree
class PolicyBatch:
    """Frozen labels of one rollout: what the update sees, cut by rows only."""

    tokens_BT: Array
    attend_BT: Array
    mask_BT: Array
    group_B: Array
    advantage_BT: Array
    # None: one update on fresh weights, so old is the policy itself and the ratio is exactly 1
    logp_old_BT: Array | None = None
    logp_ref_BT: Array | None = None
    logp_full_BT: Array | None = None  # the sampler's own arithmetic, for the gap that is logged
    correction_BT: Array | None = None  # sampler–trainer importance weight, no gradient
    value_old_BT: Array | None = None
    return_BT: Array | None = None  # critic target, V_old + Â, frozen before any update


@pytree
class SFTBatch:
    """Right-padded demonstrations; `mask_BT` is 1 on the tokens to imitate, the end token too.

    Where rows hold several, `segment_BT` numbers them from 1, with 0 on padding. The first token
    of each is masked: what stands before it is another's.
    """

    tokens_BT: Array
    attend_BT: Array
    mask_BT: Array
    segment_BT: Array | None = None


@pytree
class PreferenceBatch:
    """Pairs, S = 2: side 0 is the preferred completion, side 1 the other; right-padded.

    Both sides of a pair stand in one row, so a cut by rows never parts them.
    """

    tokens_BST: Array
    attend_BST: Array
    mask_BST: Array
    logp_ref_BS: Array | None = None  # Σ of the counted tokens' log π_ref
    weight_B: Array | None = None  # None: every pair weighs the same


@pytree
class UnpairedBatch:
    """Single completions, each desirable or not (KTO); right-padded.

    `*_other_*` is the row's prompt with the completion of another row: the mismatched pairs from
    which KTO reads its KL. None where the loss reads no KL.
    """

    tokens_BT: Array
    attend_BT: Array
    mask_BT: Array
    desirable_B: Array
    tokens_other_BT: Array | None = None
    attend_other_BT: Array | None = None
    mask_other_BT: Array | None = None
    logp_ref_B: Array | None = None
    logp_ref_other_B: Array | None = None


@pytree
class RankedBatch:
    """Completions of one prompt for a reward model, S of them, ranked; padded on either side.

    `rank_BS`: lower is better, equal is a tie. `valid_BS` False: there is no such completion (a
    prompt with fewer than S).
    """

    tokens_BST: Array
    attend_BST: Array
    rank_BS: Array
    valid_BS: Array
    margin_BSS: Array | None = None  # by how much side i should lead side j, ≥ 0


def take_rows(batch, rows):
    """The same record with only these rows of every array (all fields lead with B)."""
    return jax.tree.map(lambda x: x[rows], batch)


__all__ = [
    "PolicyBatch",
    "PreferenceBatch",
    "Prompts",
    "RankedBatch",
    "Rollout",
    "SFTBatch",
    "Scored",
    "Turns",
    "UnpairedBatch",
    "pytree",
    "replace",
    "take_rows",
]
