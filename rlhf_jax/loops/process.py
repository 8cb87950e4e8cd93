"""From steps of a text to columns of tokens, on the ids that were sampled."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.types import Prompts, Rollout


def step_columns(
    tokenizer: Tokenizer,
    prompts: Prompts,
    rollout: Rollout,
    completions: Sequence[str],
    steps: Sequence[Sequence[tuple[int, float]]],
) -> tuple[np.ndarray, np.ndarray]:
    """step_end_BT and step_score_BT of scored steps.

    The rule: a step ends at the first sampled token with which the decoded completion begins with
    the step's text and all before it. No text is tokenised again, so a token that reaches across
    the border of two steps belongs to the earlier one, and a character of several tokens is ended
    by its last. The end token is never a step's end: it has no text. Steps that end in one and the
    same token become one step with the mean of their scores.

    Args:
        tokenizer: decodes.
        prompts: P of them.
        rollout: G rows a prompt.
        completions: B decoded texts.
        steps: for each row (end, score) pairs; `end` counts characters of the completion and
            grows from step to step.
    """
    tokens_BT, mask_BT = to_host((rollout.tokens_BT, rollout.mask_BT))
    num_samples = len(tokens_BT) // len(prompts.rows)
    end_BT, score_BT = np.zeros(mask_BT.shape, bool), np.zeros(mask_BT.shape, np.float32)
    for b, row in enumerate(steps):
        columns = np.flatnonzero(mask_BT[b])
        p = b // num_samples
        prompt_ids = prompts.tokens_PL[p][prompts.attend_PL[p]].tolist()
        ends = last_tokens(
            tokenizer, prompt_ids, tokens_BT[b][columns].tolist(), completions[b], row
        )
        for number in sorted(set(ends)):
            scores = [score for n, (_, score) in zip(ends, row, strict=True) if n == number]
            end_BT[b, columns[number]] = True
            score_BT[b, columns[number]] = np.mean(scores)
    return end_BT, score_BT


def last_tokens(
    tokenizer: Tokenizer,
    prompt_ids: list[int],
    ids: list[int],
    completion: str,
    steps: Sequence[tuple[int, float]],
) -> list[int]:
    """For each step the place in `ids` of the token that ends it."""
    texts: dict[int, str] = {}

    def begins_with(text: str, count: int) -> bool:
        if count not in texts:
            texts[count] = tokenizer.decode_completion(prompt_ids, ids[:count])
        return texts[count].startswith(text)

    found, low = [], 1
    for end, _ in steps:
        text = completion[:end]
        # a prefix, once complete, stays one as tokens are added: a dozen decodings find its end
        counts = range(low, len(ids))
        low += bisect_left(counts, True, key=lambda n, text=text: begins_with(text, n))
        found.append(low - 1)
    return found
