"""Demonstrations of dialogues: a scripted teacher plays, its turns are imitated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlhf_jax.bind import Bound
from rlhf_jax.environments.contract import Row, answered, begin
from rlhf_jax.models.turns import observation_ids

# (row, what it was told so far, generator) -> its next text
Teacher = Callable[[Row, Sequence[tuple[str, str]], np.random.Generator], str]


def scripted_turns(
    environment: Bound,
    rows: Sequence[Row],
    teacher: Teacher,
    tokenizer,
    *,
    max_turns: int,
    seed: int,
    draws: int = 1,
) -> list[Row]:
    """One demonstration a turn: what the policy would have read until then, and what was said.

    "prompt_ids" are the ids that a sampled dialogue would have there, end tokens and observations
    as they are, so that imitation and reinforcement see the same rows.

    Args:
        environment: answers the teacher.
        rows: records whose "prompt" is a text.
        teacher: (row, [(text, observation), …] so far, generator) -> the next text.
        tokenizer: of the model that will imitate.
        max_turns: the teacher falls silent after so many.
        seed: of its generator; the same seed gives the same list.
        draws: dialogues of each row.

    Returns:
        rows {"prompt", "prompt_ids", "completion"}.
    """
    rng, found = np.random.default_rng(seed), []
    for number, row in enumerate([*rows] * draws):
        where = f"environment {environment.fn.__name__}, dialogue {number}"
        dialogue, ids, told = begin(environment, row, where), tokenizer.encode(row["prompt"]), []
        for turn in range(max_turns):
            text = teacher(row, told, rng)
            found.append({"prompt": row["prompt"], "prompt_ids": list(ids), "completion": text})
            step = answered(dialogue, text, f"{where}, turn {turn + 1}")
            if step.done:
                break
            ids += tokenizer.append_end(observation_ids(tokenizer, "", text, role="user"))
            ids += observation_ids(tokenizer, "", step.observation, role="user")
            told.append((text, step.observation))
    return found
