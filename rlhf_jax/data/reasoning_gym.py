"""Tasks of reasoning-gym (2505.24760) as prompts; `rewards.reasoning_gym` scores the answers."""

from __future__ import annotations

from typing import Any

from rlhf_jax.errors import ConfigError, check_choice, check_number, require

Row = dict[str, Any]
MAX_TRIES = 20  # per row that is asked for


def reasoning_gym(
    *,
    task: str,
    train: int = 1000,
    held_out: int = 200,
    seed: int = 0,
    suffix: str = "",
    **options: Any,
) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows of one task, generated here; no question is in both.

    Args:
        task: its name, such as "chain_sum"; there are over a hundred.
        train: rows to train on. Their questions may repeat, as a small task's must.
        held_out: rows to measure on, all different.
        seed: the same seed gives the same rows.
        suffix: put after every question, such as how to write the answer.
        **options: of the task, such as min_terms=2.

    Returns:
        rows of {"prompt", "question", "answer", "metadata", "task", "options", "seed"}.

    Raises:
        ConfigError: reasoning-gym is not installed; no such task or option; the task has too few
            questions for `held_out` different ones that leave others to train on.
    """
    require("reasoning_gym", extra="rewards")
    import reasoning_gym as gym
    from reasoning_gym.factory import DATASETS

    check_choice("task", task, DATASETS)
    check_number("train", train, low=1)
    check_number("held_out", held_out, low=1)
    size = MAX_TRIES * (train + held_out)
    try:
        entries = gym.create_dataset(task, size=size, seed=seed, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"task {task} with {options}: {error}") from None
    made = {"task": task, "options": options, "seed": seed}
    rows: tuple[list[Row], list[Row]] = ([], [])
    held: set[str] = set()
    for number in range(size):
        entry = entries[number]
        if entry["question"] in held:
            continue
        part = rows[1] if len(rows[1]) < held_out else rows[0]
        part.append({"prompt": entry["question"] + suffix, **entry, **made})
        if part is rows[1]:
            held.add(entry["question"])
        if len(rows[0]) == train:
            return rows
    raise ConfigError(
        f"task {task} with {options} gives too few questions: {len(rows[1])} held-out ones of "
        f"{held_out}, and {len(rows[0])} others of {train} to train on; ask for fewer"
    )
