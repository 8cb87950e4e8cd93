"""Two-number sums: problems whose answers can be checked, and a teacher who forgets carries.

Rows have the fields of a reasoning-gym entry (question, answer, metadata) and a `prompt`;
`rlhf_jax.rewards.exact.exact_answer` checks one. There are 100 · 100 = 10,000 distinct problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_jax.errors import ConfigError, check_number

NUM_PROBLEMS = 100 * 100

Row = dict[str, Any]


def sum_row(a: int, b: int) -> Row:
    """The problem a + b, in two digits each and three for the sum.

    Fixed widths put every digit at a fixed distance from those it depends on: a decoder of a few
    hundred thousand parameters learns the sums in seconds.
    """
    question = f"{a:02d}+{b:02d}"
    return {
        "question": question,
        "prompt": f"{question}=",
        "answer": f"{a + b:03d}",
        "metadata": {"a": a, "b": b, "carries": sum(_carries(a, b))},
    }


def sum_splits(
    *, warmup: int = 4000, rl: int = 4000, held_out: int = 500, seed: int = 0
) -> tuple[list[Row], list[Row], list[Row]]:
    """Three disjoint sets of problems: to imitate, to be rewarded on, to be measured on.

    Args:
        warmup: problems of the supervised warm-up.
        rl: prompts of the reinforcement learning.
        held_out: problems that neither of them sees.
        seed: which problems go where; the same seed gives the same three lists.

    Raises:
        ConfigError: a size below 1, or more than 10,000 in all.
    """
    sizes = {"warmup": warmup, "rl": rl, "held_out": held_out}
    for name, size in sizes.items():
        check_number(name, size, low=1, high=NUM_PROBLEMS)
    if sum(sizes.values()) > NUM_PROBLEMS:
        raise ConfigError(
            f"warmup + rl + held_out = {sum(sizes.values())}: there are {NUM_PROBLEMS} distinct "
            "problems, and the three sets are disjoint"
        )
    order = np.random.default_rng([seed, 1]).permutation(NUM_PROBLEMS)
    rows = [sum_row(*divmod(int(i), 100)) for i in order[: sum(sizes.values())]]
    return rows[:warmup], rows[warmup : warmup + rl], rows[warmup + rl :]


def sum_prompts(
    *, warmup: int = 4000, rl: int = 4000, held_out: int = 500, seed: int = 0
) -> tuple[list[Row], list[Row]]:
    """(rl, held-out) of `sum_splits`, for a loop that only rewards.

    Args:
        warmup: problems kept for the supervised warm-up.
        rl: training prompts.
        held_out: problems to measure on.
        seed: which problems go where.
    """
    return sum_splits(warmup=warmup, rl=rl, held_out=held_out, seed=seed)[1:]


def demonstrations(rows: Sequence[Row], *, slip: float, seed: int, draws: int = 1) -> list[Row]:
    """Worked by a sloppy teacher, who forgets each carry with probability `slip`.

    A problem with c carries is solved rightly with probability (1 − slip)^c. An imitator is
    therefore right sometimes when it samples, and where slip > ½ its greedy answer to a problem
    with a carry is the slip: a checkable reward can take it past its teacher.

    Args:
        rows: problems.
        slip: in [0, 1].
        seed: of the slips; the same seed gives the same list.
        draws: demonstrations of each problem, with slips of their own.

    Returns:
        draws · len(rows) rows, each the problem's with a "completion".

    Raises:
        ConfigError: `slip` outside [0, 1], or `draws` below 1.
    """
    check_number("slip", slip, low=0, high=1)
    check_number("draws", draws, low=1)
    slips = np.random.default_rng([seed, 2]).random((draws, len(rows), 2)) < slip
    return [
        {**row, "completion": _sloppy_sum(row["metadata"]["a"], row["metadata"]["b"], *forgotten)}
        for forgotten_of_draw in slips
        for row, forgotten in zip(rows, forgotten_of_draw, strict=True)
    ]


def sloppy_sums(
    *,
    warmup: int = 4000,
    rl: int = 4000,
    held_out: int = 500,
    seed: int = 0,
    slip: float = 0.6,
    draws: int = 4,
) -> list[Row]:
    """`demonstrations` of the warm-up problems of `sum_splits` with the same arguments."""
    rows = sum_splits(warmup=warmup, rl=rl, held_out=held_out, seed=seed)[0]
    return demonstrations(rows, slip=slip, seed=seed, draws=draws)


def _carries(a: int, b: int) -> tuple[bool, bool]:
    """Does the sum carry from units to tens, from tens to hundreds?"""
    return a % 10 + b % 10 > 9, a + b > 99


def _sloppy_sum(a: int, b: int, forget_ten: bool, forget_hundred: bool) -> str:
    units = a % 10 + b % 10
    tens = a // 10 + b // 10 + (units > 9 and not forget_ten)
    hundreds = int(tens > 9 and not forget_hundred)
    return f"{hundreds}{tens % 10}{units % 10}"
