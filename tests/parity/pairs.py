"""Pairs and single completions as tables of logits, and our side of the comparison.

The table is the model: what TRL's trainers read as `model(...).logits`, and our `token_logprobs`
as hidden states under an identity head. So the next-token shift and the sums over tokens are
compared too, and gradients are those of the logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rlhf_jax.algorithms.preference import pair_labels, preference_loss
from rlhf_jax.algorithms.preference_unpaired import unpaired_labels, unpaired_loss
from rlhf_jax.ops.logprobs import token_logprobs
from rlhf_jax.ops.masked import masked_mean, masked_sum
from rlhf_jax.types import replace

VOCAB = 5
PROMPT = 2
# Counted tokens of (preferred, other) after the prompt: longer, equal, shorter, one token.
LENGTH_BS = np.array([[5, 2], [3, 3], [1, 4], [4, 1]])
DESIRABLE_R = np.array([1, 0, 1, 1, 0, 1, 0, 1], bool)


@dataclass(frozen=True)
class Pairs:
    """B pairs; rows of `flat` are side 0 of every pair, then side 1, as TRL stacks them."""

    logits_BSTV: np.ndarray
    tokens_BST: np.ndarray
    attend_BST: np.ndarray
    mask_BST: np.ndarray
    logp_ref_BS: np.ndarray

    def flat(self, name: str) -> np.ndarray:
        x = getattr(self, name)
        return np.concatenate([x[:, 0], x[:, 1]])


def pairs(seed: int = 0, spread: float = 1.5) -> Pairs:
    """`spread`: standard deviation of a side's log-ratio to the reference, nats."""
    draw = np.random.default_rng(seed)
    columns = PROMPT + LENGTH_BS.max() + 1  # one column is padding everywhere
    shape = (*LENGTH_BS.shape, columns)
    end_BS1 = PROMPT + LENGTH_BS[:, :, None]
    attend_BST = np.broadcast_to(np.arange(columns) < end_BS1, shape)
    mask_BST = attend_BST & (np.arange(columns) >= PROMPT)
    tokens_BST = draw.integers(0, VOCAB, shape)
    logits_BSTV = draw.normal(size=(*shape, VOCAB))
    logp_BSTV = logits_BSTV - np.log(np.exp(logits_BSTV).sum(-1, keepdims=True))
    picked_BSt = np.take_along_axis(logp_BSTV[:, :, :-1], tokens_BST[:, :, 1:, None], -1)[..., 0]
    logp_BS = (picked_BSt * mask_BST[:, :, 1:]).sum(-1)
    return Pairs(
        logits_BSTV=logits_BSTV,
        tokens_BST=tokens_BST,
        attend_BST=attend_BST,
        mask_BST=mask_BST,
        logp_ref_BS=logp_BS + draw.normal(scale=spread, size=logp_BS.shape),
    )


def our_pairs(objective, at: Pairs, *, weight_B=None, nll_over: str | None = None):
    """(loss, gradient of the logits) of one whole batch of pairs.

    `nll_over`: mask of the preferred side whose token mean of −log π is added, beside any NLL of
    the objective.
    """
    length_BS = jnp.asarray(at.mask_BST.sum(-1))
    ref_BS = jnp.asarray(at.logp_ref_BS, jnp.float32) if objective.needs_reference else None
    rows = len(length_BS)

    def loss(logits_RTV):
        logp_R, logp_RT = _sums(logits_RTV, at)
        logp_BS = jnp.stack([logp_R[:rows], logp_R[rows:]], axis=1)
        labels = pair_labels(
            objective, length_BS, weight_B=weight_B, logp_BS=logp_BS, logp_ref_BS=ref_BS
        )
        total = preference_loss(objective, logp_BS, length_BS, labels, logp_ref_BS=ref_BS)[0]
        if nll_over is not None:
            # Column 0 is predicted by nothing.
            over_BT = getattr(at, nll_over)[:, 0] & (np.arange(logp_RT.shape[1]) > 0)
            total = total - masked_mean(logp_RT[:rows], jnp.asarray(over_BT))
        return total

    return _graded(loss, at)


def our_rows(objective, at: Pairs, *, other_R=None, shift: float | None = None):
    """The same of single completions: the sides, taken as rows of their own.

    `other_R`: log-ratios of the mismatched pairs. `shift`: a statistic to use in place of ours.
    """
    ref_R = jnp.asarray(at.flat("logp_ref_BS"), jnp.float32)
    desirable_R = jnp.asarray(DESIRABLE_R)
    others = {}
    if other_R is not None:
        others = dict(logp_other_B=jnp.asarray(other_R), logp_ref_other_B=jnp.zeros(len(other_R)))

    def loss(logits_RTV):
        logp_R, _ = _sums(logits_RTV, at)
        labels = unpaired_labels(objective, desirable_R, logp_B=logp_R, logp_ref_B=ref_R, **others)
        if shift is not None:
            labels = replace(labels, statistic_B=jnp.full(len(ref_R), shift))
        return unpaired_loss(objective, logp_R, ref_R, desirable_R, labels)[0]

    return _graded(loss, at)


def _sums(logits_RTV, at):
    """Σ log π over the counted tokens of every row, and the log-probs themselves."""
    tokens_RT, mask_RT = jnp.asarray(at.flat("tokens_BST")), jnp.asarray(at.flat("mask_BST"))
    logp_RT, _ = token_logprobs(logits_RTV, jnp.eye(VOCAB), tokens_RT, with_entropy=False)
    return masked_sum(logp_RT, mask_RT, axis=1), logp_RT


def _graded(loss, at):
    value, gradient = jax.value_and_grad(loss)(jnp.asarray(at.flat("logits_BSTV"), jnp.float32))
    return float(value), np.asarray(gradient)
