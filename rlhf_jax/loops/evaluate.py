"""Answer the held-out prompts and measure: score, length, distance from the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import check_number
from rlhf_jax.loops.collect import Judged
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.types import Prompts, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How held-out prompts are answered, and how often."""

    every: int | None = None
    """Steps between two evaluations; None: before the first step and after the last alone."""
    temperature: float = 0.0
    """Of the answers that are measured; 0 takes the most likely token."""
    samples_shown: int = 6
    """Rows of the sample tables."""

    def __post_init__(self):
        if self.every is not None:
            check_number("evaluation.every", self.every, low=1)
        check_number("evaluation.temperature", self.temperature, low=0)
        check_number("evaluation.samples_shown", self.samples_shown, low=1)

    def decoding(self) -> dict[str, Any]:
        """What differs from the training draws: the temperature; greedy answers have no filters."""
        filters = ("top_k", "top_p", "min_p")
        off = dict.fromkeys(filters) if self.temperature == 0 else {}
        return {"temperature": self.temperature, **off}


def distinct_n(ids: Sequence[int], n: int) -> float:
    """Distinct n-grams ÷ n-grams of one completion (Li et al. 2016, 1510.03055); 1 if it has none.

    Within a completion, then averaged over completions: a completion that repeats itself scores
    low, and the number does not fall with the number of completions.
    """
    grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def evaluate(
    held_out: PromptSet,
    num_prompts: int,
    *,
    answer: Callable[[Prompts], Rollout],
    judge: Callable[[Prompts, Rollout], Judged],
    log_probs: Callable[[Rollout], dict],
) -> tuple[dict[str, float], Judged]:
    """Every held-out prompt once.

    Args:
        held_out: the prompts.
        num_prompts: of a batch; the last one is filled up with copies that count nothing.
        answer: draws one answer a prompt.
        judge: decodes and scores.
        log_probs: a rollout's `logp_old_BT`, and `logp_ref_BT` (None: there is no reference).

    Returns:
        numbers: score (mean total over rows that a function applies to), length in tokens,
        truncated (fraction), distinct_2; with a reference also
        kl (nats a completion: Σ log π − log π_ref over the sampled tokens, an estimate of
        KL(π ‖ π_ref) where answers are drawn at the training temperature) and ref_perplexity of
        the answers. And what was judged.
    """
    rows: dict[str, list[float]] = {}
    judged = []

    def note(name, value):
        rows.setdefault(name, []).append(float(value))

    for prompts, weight_P in held_out.in_order(num_prompts):
        rollout = answer(prompts)
        found = judge(prompts, rollout)
        logp = log_probs(rollout)
        host = to_host((rollout.tokens_BT, rollout.mask_BT, rollout.truncated_B))
        logp_BT, ref_BT = to_host((logp["logp_old_BT"], logp["logp_ref_BT"]))
        counted = np.flatnonzero(weight_P)
        judged.append(found.take(counted))
        for b in counted:
            tokens_T, mask_T, truncated = (x[b] for x in host)
            if found.valid_BC[b].any():
                note("score", found.score_BC[b].sum())
            note("length", mask_T.sum())
            note("truncated", truncated)
            note("distinct_2", distinct_n(tokens_T[mask_T].tolist(), 2))
            if ref_BT is not None:
                note("kl", (logp_BT[b] - ref_BT[b])[mask_T].sum())
                note("ref_nats", -ref_BT[b][mask_T].sum())
    nats = sum(rows.pop("ref_nats", []))
    numbers = {name: float(np.mean(values)) for name, values in rows.items()}
    if "kl" in rows:
        numbers["ref_perplexity"] = float(np.exp(nats / max(sum(rows["length"]), 1)))
    return numbers, Judged.join(judged)
