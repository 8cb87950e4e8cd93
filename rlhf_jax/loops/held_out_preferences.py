"""What held-out preferences, and answers to held-out prompts, say of a policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.sharding import Mesh

from rlhf_jax.algorithms.preference import PreferenceObjective, pair_labels, preference_loss
from rlhf_jax.algorithms.preference_unpaired import (
    UnpairedObjective,
    unpaired_labels,
    unpaired_loss,
)
from rlhf_jax.data.preferences import PreferenceSet
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.data.unpaired import UnpairedSet
from rlhf_jax.loops.answers import make_answering
from rlhf_jax.loops.start import start_policy
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.ops.totals import metric_values
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.state import policy_of, reference_of


def score_rows(
    cfg,
    score: Callable,
    params: Any,
    rows: PreferenceSet | UnpairedSet,
    *,
    mesh: Mesh,
    progress: Progress | None = None,
) -> list[np.ndarray]:
    """Σ log π of every completion: [N, 2] of pairs, or [N] and the [N] of mismatched pairs."""
    found = []
    for batch, weight_B in rows.in_order(cfg.batch_rows):
        if cfg.paired:
            parts = [(batch.tokens_BST, batch.attend_BST, batch.mask_BST)]
        else:
            parts = [
                (batch.tokens_BT, batch.attend_BT, batch.mask_BT),
                (batch.tokens_other_BT, batch.attend_other_BT, batch.mask_other_BT),
            ]
        logps = to_host([score(params, *shard_rows(mesh, part)) for part in parts])
        found.append([x[weight_B > 0] for x in logps])
        if progress:
            progress.update(len(found), {})
    return [np.concatenate(columns) for columns in zip(*found, strict=True)]


def make_measure(
    cfg,
    tokenizer: Tokenizer,
    model: Model,
    score: Callable,
    held_out: PreferenceSet | UnpairedSet | None,
    prompts: PromptSet | None,
    mesh: Mesh,
) -> Callable | None:
    """state -> what held-out rows and answers say of its policy; None where neither is asked for.

    The answers' KL is to the policy of the start, read anew for each measurement where the state
    holds no reference, and let go after it.
    """
    if held_out is None and prompts is None:
        return None
    answer = None
    if prompts is not None:
        answer = make_answering(
            cfg.answers,
            model,
            tokenizer,
            prompts,
            seed=cfg.seed,
            micro_rows=cfg.micro_rows,
            mesh=mesh,
        )
    held_out_numbers = pair_numbers if cfg.paired else unpaired_numbers

    def measure(state) -> dict[str, float]:
        numbers = {}
        if held_out is not None:
            logps = score_rows(cfg, score, policy_of(state), held_out, mesh=mesh)
            numbers |= held_out_numbers(cfg.objective, held_out, *logps)
        if answer is not None:
            reference = reference_of(state)
            if reference is None:
                reference = start_policy(cfg, mesh).params
            numbers |= answer(policy_of(state), reference)[0]
        return numbers

    return measure


def pair_numbers(
    objective: PreferenceObjective, held_out: PreferenceSet, logp_BS: np.ndarray
) -> dict[str, float]:
    """Loss and its parts over all held-out pairs as one batch, and how far each side has drifted.

    drift_chosen and drift_rejected: mean of log π − log π_ref, nats a completion. A margin can
    grow while both fall.
    """
    whole = held_out.take(np.arange(len(held_out)))
    logp_ref_BS, length_BS = whole.logp_ref_BS, whole.mask_BST.sum(axis=2)
    known = dict(logp_ref_BS=logp_ref_BS if objective.needs_reference else None)
    labels = pair_labels(objective, length_BS, weight_B=whole.weight_B, logp_BS=logp_BS, **known)
    _, metrics = preference_loss(objective, logp_BS, length_BS, labels, **known)
    drift_S = (logp_BS - logp_ref_BS).mean(axis=0)
    names = ("loss", "accuracy", "margin")
    numbers = {name: float(metric_values(metrics)[name]) for name in names}
    return numbers | {"drift_chosen": float(drift_S[0]), "drift_rejected": float(drift_S[1])}


def unpaired_numbers(
    objective: UnpairedObjective,
    held_out: UnpairedSet,
    logp_B: np.ndarray,
    logp_other_B: np.ndarray,
) -> dict[str, float]:
    """The same for single completions: the margin is between the means of the two classes."""
    whole = held_out.take(np.arange(len(held_out)))
    labels = unpaired_labels(
        objective,
        whole.desirable_B,
        logp_B=logp_B,
        logp_ref_B=whole.logp_ref_B,
        logp_other_B=logp_other_B,
        logp_ref_other_B=whole.logp_ref_other_B,
    )
    _, metrics = unpaired_loss(objective, logp_B, whole.logp_ref_B, whole.desirable_B, labels)
    values = metric_values(metrics)
    numbers = {"loss": values["loss"]}
    if whole.desirable_B.any() and not whole.desirable_B.all():
        numbers["margin"] = values["reward_desirable"] - values["reward_undesirable"]
    drift_B = logp_B - whole.logp_ref_B
    for name, class_B in (("chosen", whole.desirable_B), ("rejected", ~whole.desirable_B)):
        if class_B.any():
            numbers[f"drift_{name}"] = drift_B[class_B].mean()
    return {name: float(value) for name, value in numbers.items()}
