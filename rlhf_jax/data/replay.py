"""New data with a share of the old, for a model that is trained again and again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_jax.data.judges import sampled_noisy_rankings
from rlhf_jax.errors import ConfigError, check_number

Row = dict[str, Any]


def with_replay(new: Sequence[Row], old: Sequence[Row], *, share: float, seed: int) -> list[Row]:
    """All new rows, and so many of the old that they are `share` of the whole.

    The replay of GRPO's reward-model update (2402.03300, section 4.1.4: 10 % historical data).

    Args:
        new, old: rows of a dataset.
        share: in [0, 1); at most all the old rows are taken, none of them twice.
        seed: which.
    """
    check_number("share", share, low=0, high=1, open_high=True)
    count = min(math.ceil(len(new) * share / (1 - share)), len(old))
    taken = np.random.default_rng(seed).choice(len(old), size=count, replace=False)
    return [*new, *(old[i] for i in sorted(taken))]


def replayed_noisy_rankings(
    *,
    samples: tuple[str, ...],
    temperature: float,
    share: float = 0.1,
    seed: int = 0,
    part: str = "train",
    held_out: int = 100,
    sides: int | None = None,
) -> list[Row]:
    """Rankings of the newest samples by a noisy judge, with a share of all earlier ones.

    Args:
        samples: folders of drawn samples, oldest first.
        temperature: of the noisy judge.
        share: of earlier rankings in the whole.
        seed: of the judge, and of which are replayed.
        part: "train" or "held_out"; nothing is replayed in the latter.
        held_out: prompts held out.
        sides: completions of a ranking; None: all of a prompt's.
    """
    if not samples:
        raise ConfigError("samples is empty: name at least one folder")
    options = dict(temperature=temperature, seed=seed, part=part, held_out=held_out, sides=sides)
    *before, new = [sampled_noisy_rankings(samples=folder, **options) for folder in samples]
    if part == "held_out":
        return new
    old = [row for rows in before for row in rows]
    return with_replay(new, old, share=share, seed=seed)
