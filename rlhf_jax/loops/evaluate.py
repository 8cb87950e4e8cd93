"""Answer the held-out prompts and measure: score, length, distance from the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rlhf_jax.bind import Bound, bind
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.loops.attempts import of_k, whole_text
from rlhf_jax.loops.collect import Judged
from rlhf_jax.ops.samples import MOST_SAMPLES
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parts import check_kinds
from rlhf_jax.types import Prompts, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """How held-out prompts are answered, and how often."""

    every: int | None = None
    """Steps between two evaluations; None: before the first step and after the last alone."""
    temperature: float = 0.0
    """Of the answers that are measured; 0 takes the most likely token."""
    num_samples: int = 1
    """Answers to each held-out prompt; every number is a mean over all of them."""
    ks: tuple[int, ...] = ()
    """Sizes k of pass@k, maj@k and best@k, each at most num_samples."""
    right_from: float = 1.0
    """The least total score of a right answer, for pass@k and maj@k."""
    extract: Bound = field(default_factory=partial(bind, whole_text))
    """completion -> the answer that maj@k counts votes for, None: it has none."""
    greedy_too: bool = False
    """Also answer each prompt with the most likely tokens: greedy_score."""
    samples_shown: int = 6
    """Rows of the sample tables."""

    def __post_init__(self):
        check_kinds(self, "evaluation.")
        if self.every is not None:
            check_number("evaluation.every", self.every, low=1)
        check_number("evaluation.temperature", self.temperature, low=0)
        check_number("evaluation.num_samples", self.num_samples, low=1, high=MOST_SAMPLES)
        check_number("evaluation.right_from", self.right_from)
        check_number("evaluation.samples_shown", self.samples_shown, low=1)
        for k in self.ks:
            check_number("evaluation.ks", k, low=1, high=self.num_samples)
        if self.temperature == 0 and (self.num_samples > 1 or self.greedy_too):
            raise ConfigError(
                "evaluation.temperature=0 answers greedily, once: num_samples and greedy_too need "
                "a temperature"
            )

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
    config: EvalConfig | None = None,
    greedy: Callable[[Prompts], Rollout] | None = None,
) -> tuple[dict[str, float], Judged]:
    """Every held-out prompt once.

    Args:
        held_out: the prompts.
        num_prompts: of a batch; the last one is filled up with copies that count nothing.
        answer: draws `config.num_samples` answers a prompt.
        judge: decodes and scores.
        log_probs: a rollout's `logp_old_BT`, and `logp_ref_BT` (None: there is no reference).
        config: what is measured; None: the defaults, one answer each.
        greedy: answers each prompt once, with the most likely tokens; asked if
            `config.greedy_too`.

    Returns:
        numbers: score (mean total over rows that a function applies to), length in tokens,
        truncated (fraction), distinct_2; with a reference also
        kl (nats a completion: Σ log π − log π_ref over the sampled tokens, an estimate of
        KL(π ‖ π_ref) where answers are drawn at the training temperature) and ref_perplexity of
        the answers; for each k of `config.ks` pass@k, maj@k and best@k; if asked, greedy_score.
        And what was judged, the answers of one prompt side by side.
    """
    config = config or EvalConfig()
    rows: dict[str, list[float]] = {}
    judged, groups = [], []

    def note(name, value):
        rows.setdefault(name, []).append(float(value))

    for prompts, weight_P in held_out.in_order(num_prompts):
        rollout = answer(prompts)
        found = judge(prompts, rollout)
        logp = log_probs(rollout)
        host = to_host((rollout.tokens_BT, rollout.mask_BT, rollout.truncated_B))
        logp_BT, ref_BT = to_host((logp["logp_old_BT"], logp["logp_ref_BT"]))
        weight_B = np.repeat(weight_P, len(found.prompts) // len(weight_P))
        counted = np.flatnonzero(weight_B)
        found = found.take(counted)
        judged.append(found)
        groups += _by_prompt(found, int(weight_P.sum()))
        for total in _totals(found):
            note("score", total)
        for b in counted:
            tokens_T, mask_T, truncated = (x[b] for x in host)
            note("length", mask_T.sum())
            note("truncated", truncated)
            note("distinct_2", distinct_n(tokens_T[mask_T].tolist(), 2))
            if ref_BT is not None:
                note("kl", (logp_BT[b] - ref_BT[b])[mask_T].sum())
                note("ref_nats", -ref_BT[b][mask_T].sum())
        if config.greedy_too:
            most_likely = judge(prompts, greedy(prompts)).take(np.flatnonzero(weight_P))
            for total in _totals(most_likely):
                note("greedy_score", total)
    nats = sum(rows.pop("ref_nats", []))
    numbers = {name: float(np.mean(values)) for name, values in rows.items()}
    if "kl" in rows:
        numbers["ref_perplexity"] = float(np.exp(nats / max(sum(rows["length"]), 1)))
    numbers |= of_k(groups, config.ks, extract=config.extract, right_from=config.right_from)
    return numbers, Judged.join(judged)


def _totals(judged: Judged) -> list[float]:
    """Total score of each row that a function applies to."""
    applies_B = judged.valid_BC.any(axis=1)
    return judged.score_BC[applies_B].sum(axis=1, where=judged.valid_BC[applies_B]).tolist()


def _by_prompt(judged: Judged, num_prompts: int) -> list[tuple[list[str], list[float]]]:
    """Of each prompt the completions that a function applies to, and their total scores."""
    return [
        ([part.completions[b] for b in np.flatnonzero(part.valid_BC.any(axis=1))], _totals(part))
        for part in map(judged.take, np.split(np.arange(len(judged.prompts)), num_prompts))
    ]
