"""Several attempts at each held-out prompt: pass@k, maj@k, best@k."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlhf_jax.errors import ConfigError
from rlhf_jax.ops.samples import best_of_k, majority_at_k, pass_at_k


def whole_text(completion: str) -> str | None:
    """The answer that a vote counts: the completion without spaces around it; None if empty."""
    return completion.strip() or None


def of_k(
    groups: Sequence[tuple[Sequence[str], Sequence[float]]],
    ks: Sequence[int],
    *,
    extract: Callable[[str], str | None],
    right_from: float,
) -> dict[str, float]:
    """pass@k, maj@k and best@k, each unbiased from all judged answers of a prompt, then averaged.

    pass@k: one of k answers is right; maj@k: the most frequent of k is (equals share the win);
    best@k: the highest score of k, in expectation (for scores of 0 and 1 the same as pass@k).

    Args:
        groups: of each prompt its completions and their scores. A prompt with fewer than k of
            them is left out of the means of that k.
        ks: sizes.
        extract: completion -> the answer that votes for it, None: there is none.
        right_from: the least score of a right answer.

    Raises:
        ConfigError: `extract` returns something else.
    """
    numbers: dict[str, list[float]] = {}
    for completions, scores in groups:
        right = [float(score >= right_from) for score in scores]
        answers = [_extracted(extract, completion) for completion in completions]
        for k in (k for k in ks if k <= len(scores)):
            found = {
                f"pass@{k}": pass_at_k(len(right), int(sum(right)), k),
                f"maj@{k}": majority_at_k(answers, right, k),
                f"best@{k}": best_of_k(scores, scores, k),
            }
            for name, value in found.items():
                numbers.setdefault(name, []).append(value)
    return {name: float(np.mean(values)) for name, values in numbers.items()}


def _extracted(extract: Callable, completion: str) -> str | None:
    answer = extract(completion)
    if answer is not None and not isinstance(answer, str):
        raise ConfigError(
            f"evaluation.extract={extract} returned {answer!r}, neither a text nor None"
        )
    return answer
