"""Several reward functions, one table of scores: the only caller of a reward function.

The contract of a reward function: (prompts, completions, rows) -> one number or None for each,
where `rows` are the dataset's records. None says that the function does not apply to a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlhf_jax.errors import ConfigError, check_number


def reward_names(rewards: Sequence[Callable]) -> list[str]:
    """A short name for each, as tables and metrics show it; equal names are numbered."""
    names = [_name(reward) for reward in rewards]
    return [
        name if names.count(name) == 1 else f"{name}_{names[:i].count(name) + 1}"
        for i, name in enumerate(names)
    ]


def _name(reward: Callable) -> str:
    fn = getattr(reward, "fn", reward)  # a Bound shows the function it holds
    return getattr(fn, "__name__", type(fn).__name__)


def score_completions(
    rewards: Sequence[Callable],
    weights: Sequence[float] | None,
    prompts: Sequence[str],
    completions: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> tuple[np.ndarray, np.ndarray]:
    """Call every reward function on every row.

    Args:
        rewards: the functions, C of them.
        weights: a finite factor for each; None: all 1.
        prompts: B texts.
        completions: B texts.
        rows: B records of the dataset.

    Returns:
        score_BC float32, score times weight, and valid_BC bool, False where a function returned
        None (its score is then 0 and means nothing). A row without any valid score gets
        advantage 0 and stays out of its group's statistics.

    Raises:
        ConfigError: no function, a weight too few or not finite; a function that returns
            something other than a list or an array of one axis, or one of the wrong length, or
            NaN, an infinity, or not a number. It names the function and the row.
        ValueError: the three lists differ in length.
        Whatever a reward function raises, with a note of its name.
    """
    if not rewards:
        raise ConfigError("there are no reward functions")
    weights = [1.0] * len(rewards) if weights is None else weights
    if len(weights) != len(rewards):
        raise ConfigError(f"{len(weights)} reward weights for {len(rewards)} reward functions")
    if not len(prompts) == len(completions) == len(rows):
        raise ValueError(
            f"{len(prompts)} prompts, {len(completions)} completions, {len(rows)} rows"
        )
    score_BC = np.zeros((len(prompts), len(rewards)), np.float32)
    valid_BC = np.zeros((len(prompts), len(rewards)), bool)
    names = reward_names(rewards)
    for c, (reward, weight, name) in enumerate(zip(rewards, weights, names, strict=True)):
        check_number(f"weight of reward {name}", weight)
        try:
            scores = reward(list(prompts), list(completions), list(rows))
        except Exception as error:  # its author needs the traceback; here it gets the name
            error.add_note(f"raised by reward {name}, asked for {len(prompts)} scores")
            raise
        for b, score in enumerate(_listed(scores, name, len(prompts))):
            if score is not None:
                score_BC[b, c] = _weighted(score, weight, f"reward {name}, row {b}")
                valid_BC[b, c] = True
    return score_BC, valid_BC


def _listed(scores: Any, name: str, count: int) -> Sequence[Any]:
    """What reward `name` returned, `count` scores; an array of any library becomes NumPy's."""
    if not isinstance(scores, (list, tuple)):
        try:
            array = np.asarray(scores)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"reward {name} returned a {type(scores).__name__} that is no list: {error}"
            ) from None
        # a string, a dict, a set and a generator are single objects to NumPy, of no axis
        if array.ndim != 1:
            axes = f" with {array.ndim} axes" if array.ndim else ""
            raise ConfigError(
                f"reward {name} returned a {type(scores).__name__}{axes}, not a list of numbers"
            )
        scores = array
    if len(scores) != count:
        raise ConfigError(
            f"reward {name} returned {len(scores)} scores for {count} completions; "
            "return None for a row that it does not apply to"
        )
    return scores


def _weighted(score: Any, weight: float, where: str) -> float:
    try:
        number = float(score) if not isinstance(score, (str, bytes)) else None
    except (TypeError, ValueError):
        number = None
    except OverflowError:  # an integer beyond every float, maybe too long to print
        raise ConfigError(
            f"{where}: the score is too large a number; None means: does not apply"
        ) from None
    if number is None:
        raise ConfigError(f"{where}: {score!r} is not a number; None means: does not apply")
    # also a finite float64 that float32 cannot hold
    if not abs(weight * number) <= float(np.finfo(np.float32).max):
        raise ConfigError(f"{where}: the score is {number}; None means: does not apply")
    return weight * number
