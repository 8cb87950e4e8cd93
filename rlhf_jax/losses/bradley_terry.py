"""Reward-model losses: scores of the completions of one prompt against how they were ranked.

    score_BS    the reward model's, unbounded; only differences within a row matter
    rank_BS     lower is better, equal is a tie; only its order is read
    valid_BS    False: there is no such completion; its score, NaN even, changes nothing

One row is one prompt with all its completions, so all its comparisons come from one forward pass
and count together: trained as separate pairs, each completion would be seen S − 1 times an epoch
and the model overfits (2203.02155, section 3.5). Each loss gives loss_B, one value a prompt.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array
from jax.nn import log_sigmoid, log_softmax

from rlhf_jax.ops.masked import masked_count, masked_mean
from rlhf_jax.ops.totals import Total, total

_NOWHERE = -1e30  # the score of a completion that does not exist


def pairwise(score_BS: Array, margin_B: Array | None = None) -> Array:
    """ℓ = −log σ(r_w − r_l − m)   (2203.02155, eq. 1 for a pair; margin: 2307.09288, eq. 2)

    Gradient −(1 − σ(r_w − r_l − m)) on r_w and its negative on r_l; finite at any difference.

    Args:
        score_BS: [B, 2], side 0 preferred.
        margin_B: [B] ≥ 0, by how much the preferred one should lead (Llama 2: 1, 2/3, 1/3, 0 by how
            clear the preference was); None: 0.
    """
    chex.assert_shape(score_BS, (None, 2))
    lead_B = score_BS[:, 0] - score_BS[:, 1]
    return -log_sigmoid(lead_B if margin_B is None else lead_B - margin_B)


def ordered_pairs(rank_BS: Array, valid_BS: Array) -> Array:
    """[B, S, S] bool: completion i exists, j exists, and i is ranked before j. Ties are no pair."""
    chex.assert_equal_shape([rank_BS, valid_BS])
    both_BSS = valid_BS[:, :, None] & valid_BS[:, None, :]
    return both_BSS & (rank_BS[:, :, None] < rank_BS[:, None, :])


def ranked(
    score_BS: Array, rank_BS: Array, valid_BS: Array, margin_BSS: Array | None = None
) -> Array:
    """ℓ = −(1/|pairs|)·Σ_{i before j} log σ(r_i − r_j − m_ij): C(S, 2) pairs, fewer with ties.

    (2203.02155, eq. 1: the mean over a prompt's comparisons, not the sum, so that a prompt with
    nine completions weighs as one with four.) 0 for a prompt with nothing to compare. S = 2 is
    `pairwise`.

    Args:
        score_BS, rank_BS, valid_BS: [B, S], as in the head of this file.
        margin_BSS: [B, S, S] ≥ 0, by how much i should lead j; None: 0.
    """
    pairs_BSS = ordered_pairs(rank_BS, valid_BS)
    lead_BSS = _leads(score_BS, valid_BS)
    if margin_BSS is not None:
        lead_BSS = lead_BSS - jnp.where(pairs_BSS, margin_BSS, 0)
    return masked_mean(-log_sigmoid(lead_BSS), pairs_BSS, axis=(1, 2))


def best_of(score_BS: Array, rank_BS: Array, valid_BS: Array) -> Array:
    """ℓ = −log softmax(r)[best]   (1909.08593, eq. 1: one of four was picked)

    Only the first place is read; where it is shared, the mean over those who share it. 0 for a
    prompt without an ordered pair.

    Args: as in `ranked`.
    """
    compared_B = jnp.any(ordered_pairs(rank_BS, valid_BS), axis=(1, 2))
    best_BS = valid_BS & (rank_BS == _first(rank_BS, valid_BS)[:, None]) & compared_B[:, None]
    # finite, so that a row in which nothing exists has a softmax too
    score_BS = jnp.where(valid_BS, score_BS, _NOWHERE)
    return masked_mean(-log_softmax(score_BS, axis=1), best_BS, axis=1)


def centring(score_BS: Array, rank_BS: Array, valid_BS: Array) -> Array:
    """The mean over ordered pairs of (r_i + r_j)²: times a coefficient (.01), added to the loss.

    (2312.09244.) Differences leave the level of the scores free; this pins it near 0. The
    *sum* of the two is squared, as in the paper and in TRL, not each: two scores that are opposite
    cost nothing, however far apart.

    Args: as in `ranked`.
    """
    clean_BS = jnp.where(valid_BS, score_BS, 0)
    sum_BSS = clean_BS[:, :, None] + clean_BS[:, None, :]
    return masked_mean(sum_BSS**2, ordered_pairs(rank_BS, valid_BS), axis=(1, 2))


def prompt_weight(rank_BS: Array, valid_BS: Array) -> Array:
    """w = 1/(prompts with an ordered pair), 0 for the others: from the whole batch, before cuts."""
    compared_B = jnp.any(ordered_pairs(rank_BS, valid_BS), axis=(1, 2))
    return compared_B / masked_count(compared_B)


def pair_accuracy(score_BS: Array, rank_BS: Array, valid_BS: Array) -> Total:
    """The share of ordered pairs whose scores are in that order, strictly, as a sum and a count.

    Equal scores for a pair that was ranked are wrong; a pair that was ranked equal is not counted.
    """
    right_BSS = _leads(score_BS, valid_BS) > 0
    return total(right_BSS.astype(jnp.float32), ordered_pairs(rank_BS, valid_BS))


def _leads(score_BS, valid_BS):
    """r_i − r_j, select before subtracting."""
    clean_BS = jnp.where(valid_BS, score_BS, 0)
    return clean_BS[:, :, None] - clean_BS[:, None, :]


def _first(rank_BS, valid_BS):
    """The best rank among the completions that exist."""
    behind_B1 = jnp.max(rank_BS, axis=1, keepdims=True)
    return jnp.min(jnp.where(valid_BS, rank_BS, behind_B1), axis=1)
