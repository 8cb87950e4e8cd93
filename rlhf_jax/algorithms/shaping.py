"""What happens to a row's score before it becomes a reward: the parts of `shape_score`.

Each takes (scored, score_B) and numbers by keyword and gives score_B. An objective applies its
tuple of them in order, after groups were judged on the score as it was; the order is a choice:
a clip before the baseline bounds the score, and no advantage is clipped.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rlhf_jax.advantages import scored_rows
from rlhf_jax.ops.masked import masked_mean, masked_var
from rlhf_jax.ops.shaping import soft_overlong
from rlhf_jax.types import Scored


def missing_end_penalty(scored: Scored, score_B: Array, *, penalty: float) -> Array:
    """score − c where the row was cut short without an end token (TRL's missing_eos_penalty).

    Args:
        scored, score_B: the row's score so far.
        penalty: c ≥ 0, in units of the score.
    """
    return jnp.where(scored.truncated_B, score_B - penalty, score_B)


def missing_end_score(scored: Scored, score_B: Array, *, score: float) -> Array:
    """A fixed score in place of the row's own where it was cut short without an end token.

    −1 in the papers that learn from comparisons (1909.08593; the "EOS trick" of 2403.17031): a
    learned reward means little on a text that does not end. 0 where correctness is scored
    (2503.20783). A third policy, no loss on such rows at all, is `select.drop_truncated`.

    Args:
        scored, score_B: the row's score so far.
        score: the fixed score.
    """
    return jnp.where(scored.truncated_B, score, score_B)


def clip_score(scored: Scored, score_B: Array, *, limit: float) -> Array:
    """clip(score, −c, c): one wild score of a learned reward cannot rule a batch.

    Before any baseline, as TRL's RLOO; clipped after it, [20, 0, 0] at c = 10 would give
    [10, −10, −10] and no longer sum to 0, here [10, −5, −5].

    Args:
        scored, score_B: the row's score so far.
        limit: c > 0.
    """
    return jnp.clip(score_B, -limit, limit)


def scale_score(scored: Scored, score_B: Array, *, gain: float, bias: float = 0.0) -> Array:
    """gain·score + bias: a learned reward brought to mean 0 and deviation 1 (1909.08593, 2.1).

    From the mean μ and deviation σ of its scores on the reference policy's samples: gain = 1/σ,
    bias = −μ/σ (mean 2, deviation 4: .25, −.5).

    Args:
        scored, score_B: the row's score so far.
        gain: > 0.
        bias: added after.
    """
    return gain * score_B + bias


def standardise_score(scored: Scored, score_B: Array, *, eps: float = 1e-8) -> Array:
    """(score − mean)/√(variance + eps) over the scored rows of this rollout.

    Unlike `scale_score` it follows the scores: as the policy improves the mean stays 0.

    Args:
        scored, score_B: the row's score so far.
        eps: > 0.
    """
    rows_B = scored_rows(scored)
    deviation_B = score_B - masked_mean(score_B, rows_B)
    return deviation_B / jnp.sqrt(masked_var(score_B, rows_B) + eps)


def overlong_penalty(
    scored: Scored, score_B: Array, *, max_length: int, cache: int, floor: float = -1.0
) -> Array:
    """score + `soft_overlong`(number of counted tokens)   (2503.14476, eq. 13)

    Args:
        scored, score_B: the row's score so far.
        max_length, cache, floor: as in `ops.shaping.soft_overlong`.
    """
    length_B = jnp.sum(scored.mask_BT, axis=1)
    return score_B + soft_overlong(length_B, max_length=max_length, cache=cache, floor=floor)
