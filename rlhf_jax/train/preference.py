"""Optimizer updates of preference losses: pairs, and single completions with a label.

What a loss sees of a completion is the sum of its counted tokens' log-probs, at temperature 1: a
language model's own probability of the answer. A pair's two sides stand in one row, so that no
cut into micro-batches parts them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.algorithms.preference import PreferenceObjective, pair_labels, preference_loss
from rlhf_jax.algorithms.preference_unpaired import (
    UnpairedObjective,
    unpaired_labels,
    unpaired_loss,
)
from rlhf_jax.errors import ConfigError
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.train.microbatch import map_rows
from rlhf_jax.train.scoring import forward_logprobs
from rlhf_jax.train.state import TrainState, jit_update, policy_of, reference_of
from rlhf_jax.train.steps import guarded_step
from rlhf_jax.types import PreferenceBatch, UnpairedBatch


def completion_logprobs(
    model, params: Any, tokens: Array, attend: Array, mask: Array, *, mesh: Mesh | None = None
) -> Array:
    """Σ over the counted tokens of log π, of every completion: one forward pass over all.

    Args:
        model: the decoder.
        params: its parameters.
        tokens, attend, mask: [B, T], or [B, S, T] with the sides of a row beside each other.
        mesh: keeps rows split over it.

    Returns:
        [B] or [B, S], nats, float32. No array of all logits is made (`ops.logprobs`).
    """
    flat = [x.reshape(-1, x.shape[-1]) for x in (tokens, attend, mask)]
    logp_BT, _ = forward_logprobs(
        model, params, *flat[:2], temperature=1.0, with_entropy=False, mesh=mesh
    )
    return masked_sum(logp_BT, flat[2], axis=1).reshape(mask.shape[:-1])


def make_completion_score(
    model, *, micro_rows: int | None = None, mesh: Mesh | None = None
) -> Callable[[Any, Array, Array, Array], Array]:
    """score(params, tokens, attend, mask) -> `completion_logprobs`, jitted, without gradient.

    Args:
        model: the decoder.
        micro_rows: rows of one forward pass, however many sides a row has; None: all.
        mesh: keeps rows split over it.
    """

    @jax.jit
    def score(params, tokens, attend, mask):
        def rows(part):
            return completion_logprobs(model, params, *part, mesh=mesh)

        return map_rows(rows, (tokens, attend, mask), micro_rows=micro_rows, mesh=mesh)

    return score


def make_preference_update(
    model,
    tx: optax.GradientTransformation,
    *,
    micro_rows: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, PreferenceObjective, PreferenceBatch], tuple[TrainState, dict]]:
    """update(state, objective, batch) -> (state, metrics) for every paired preference loss.

    θ ← θ − tx(Σ_parts ∇ preference_loss(part)); weights, and the statistic of a loss that has one,
    are of the whole batch, taken before it is cut, so the cut changes nothing. The reference's
    log-probs are the batch's, if it brings any, else those of `state.reference`, scored first.

    Args:
        model: the decoder of policy and reference.
        tx: any optax transformation.
        micro_rows: pairs of one forward and backward pass (two sequences each); None: all.
        mesh: keeps rows, gradients and the new state on it.

    Returns:
        A jitted function that donates the state; skipped where not finite, metrics beside those of
        `preference_loss`: see `train.steps.guarded_step`. `rows_bad_B` are pairs.

    Raises (when first called):
        ConfigError: `micro_rows` does not divide, or the objective reads a reference that neither
            the batch nor the state has.
    """
    score = _scorer(model, micro_rows, mesh)

    def loss_fn(params, part, objective):
        (sides, length_BS, logp_ref_BS, labels), weight_B = part
        logp_BS = completion_logprobs(model, params["policy"], *sides, mesh=mesh)
        loss, metrics = preference_loss(
            objective, logp_BS, length_BS, labels, logp_ref_BS=logp_ref_BS
        )
        bad_B = _bad(logp_BS, logp_ref_BS).any(axis=1) & (weight_B != 0)
        return loss, (metrics, bad_B)

    @jit_update
    def update(state, objective, batch):
        sides = (batch.tokens_BST, batch.attend_BST, batch.mask_BST)
        length_BS = jnp.sum(batch.mask_BST, axis=2)
        logp_ref_BS = logp_BS = None
        if objective.needs_reference:
            logp_ref_BS = _of_reference(score, state, batch.logp_ref_BS, sides)
        if objective.needs_statistic:
            logp_BS = score(policy_of(state), sides)
        labels = pair_labels(
            objective,
            length_BS,
            weight_B=batch.weight_B,
            logp_BS=logp_BS,
            logp_ref_BS=logp_ref_BS,
        )
        return guarded_step(
            state,
            partial(loss_fn, objective=objective),
            ((sides, length_BS, logp_ref_BS, labels), labels.weight_B),
            {"policy": tx},
            with_critic=False,
            micro_rows=micro_rows,
            mesh=mesh,
        )

    return update


def make_unpaired_update(
    model,
    tx: optax.GradientTransformation,
    *,
    micro_rows: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, UnpairedObjective, UnpairedBatch], tuple[TrainState, dict]]:
    """update(state, objective, batch) -> (state, metrics) for every loss of single completions.

    As `make_preference_update`. What a loss knows of the whole batch (KTO's z₀ from the mismatched
    pairs, BCO's δ) comes from one forward pass without gradient before the batch is cut.

    Raises (when first called):
        ConfigError: as there; also mismatched pairs or a batch of two rows that KTO lacks.
    """
    score = _scorer(model, micro_rows, mesh)

    def loss_fn(params, part, objective):
        (rows, desirable_B, logp_ref_B, labels), _ = part
        logp_B = completion_logprobs(model, params["policy"], *rows, mesh=mesh)
        loss, metrics = unpaired_loss(objective, logp_B, logp_ref_B, desirable_B, labels)
        return loss, (metrics, _bad(logp_B, logp_ref_B))

    @jit_update
    def update(state, objective, batch):
        rows = (batch.tokens_BT, batch.attend_BT, batch.mask_BT)
        logp_ref_B = _of_reference(score, state, batch.logp_ref_B, rows)
        known = {"logp_ref_B": logp_ref_B}
        if objective.needs_other:
            if batch.tokens_other_BT is None:
                raise ConfigError("the objective reads mismatched pairs; the batch has none")
            other = (batch.tokens_other_BT, batch.attend_other_BT, batch.mask_other_BT)
            known["logp_other_B"] = score(policy_of(state), other)
            known["logp_ref_other_B"] = _of_reference(score, state, batch.logp_ref_other_B, other)
        elif objective.needs_statistic:
            known["logp_B"] = score(policy_of(state), rows)
        labels = unpaired_labels(objective, batch.desirable_B, **known)
        return guarded_step(
            state,
            partial(loss_fn, objective=objective),
            ((rows, batch.desirable_B, logp_ref_B, labels), labels.weight_B),
            {"policy": tx},
            with_critic=False,
            micro_rows=micro_rows,
            mesh=mesh,
        )

    return update


def _scorer(model, micro_rows, mesh):
    """(params, (tokens, attend, mask)) -> log-probs of the completions, inside a jitted update."""
    score = make_completion_score(model, micro_rows=micro_rows, mesh=mesh)
    return lambda params, rows: score(params, *rows)


def _of_reference(score, state, given, rows):
    """Log-probs under the reference: those that the batch brings, else those of the state's."""
    if given is not None:
        return given
    if state.reference is None:
        raise ConfigError(
            "the objective reads log-probs of a reference: give them with the batch, or init_state "
            "a reference"
        )
    return score(reference_of(state), rows)


def _bad(*logps):
    return ~jnp.all(jnp.stack([jnp.isfinite(x) for x in logps if x is not None]), axis=0)
