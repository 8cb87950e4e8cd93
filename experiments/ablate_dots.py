"""Sums whose answers vary in length: for ablations that are about length.

The teacher thinks aloud in dots before the answer, "27+45=...072", from none to six. Dots change
nothing about an answer being right.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from experiments.ablate import BASE
from experiments.quickstart import SIZES, WARMUP
from rlhf_jax.bind import bind
from rlhf_jax.data.synthetic import sloppy_sums
from rlhf_jax.rollout.sampler import SamplingConfig

MOST_DOTS = 6


def dotted_sums(*, warmup: int, rl: int, held_out: int, seed: int = 0) -> list[dict[str, Any]]:
    """`sloppy_sums` with a slip of .6, each after 0 to `MOST_DOTS` dots, as many as it happens.

    Args:
        warmup, rl, held_out, seed: as there; the dots are of the same seed.
    """
    rows = sloppy_sums(warmup=warmup, rl=rl, held_out=held_out, seed=seed)
    dots = np.random.default_rng([seed, 3]).integers(0, MOST_DOTS + 1, len(rows))
    return [
        {**row, "completion": "." * count + row["completion"]}
        for row, count in zip(rows, dots, strict=True)
    ]


def right_after_dots(prompts, completions, rows) -> list[float]:
    """1 for the right sum, whatever number of dots stands before it, else 0."""
    pairs = zip(completions, rows, strict=True)
    return [float(text.strip().lstrip(".") == row["answer"]) for text, row in pairs]


def likes_dots(prompts, completions, rows) -> list[float]:
    """A judge who takes length for thought: .1 a dot."""
    return [0.1 * text.count(".") for text in completions]


DOTTED_WARMUP = replace(
    WARMUP,
    demonstrations=bind(dotted_sums, seed=0, **SIZES),
    max_tokens=12 + MOST_DOTS,
)
DOTTED = replace(
    BASE,
    rewards=(bind(right_after_dots),),
    sampling=SamplingConfig(num_samples=8, max_new_tokens=14, max_prompt_tokens=7),
)
