"""What an environment gave in the turns of a dialogue, as a reward function."""

from __future__ import annotations

from typing import Any

from rlhf_jax.errors import ConfigError


def dialogue_reward(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]]
) -> list[float | None]:
    """Σ over the turns of the environment's rewards; None where it gave none at all.

    Each row's "dialogue" is a list of {"text", "observation", "reward"}, one a turn. Like every
    score, the sum stands at the last sampled token of the row.

    Raises:
        ConfigError: the run has no dialogues.
    """
    if any("dialogue" not in row for row in rows):
        raise ConfigError("dialogue_reward needs dialogues: set dialogue=DialogueConfig(...)")
    return [_total(row["dialogue"]) for row in rows]


def _total(dialogue: list[dict[str, Any]]) -> float | None:
    given = [turn["reward"] for turn in dialogue if turn["reward"] is not None]
    return sum(given) if given else None
