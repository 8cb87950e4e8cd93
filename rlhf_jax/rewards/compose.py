"""Several reward functions, one table of scores: the only caller of a reward function.

The contract of a reward function: (prompts, completions, rows) -> one number or None for each,
where `rows` are the dataset's records. None says that the function does not apply to a row. It
may be `async`, and then runs beside the others, as does one that `notes.overlaps` marks.

A process reward scores steps within a completion: (prompts, completions, rows) -> for each row a
list of (end, score), or None where it does not apply. `end` counts the characters of the
completion up to and with the step's last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.rewards.calls import Called, call_all, called

_LARGEST = 1e15  # of a score times its weight


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


ERRORS = ("raise", "skip")


class Scores(NamedTuple):
    """score_BC float32, score times weight; valid_BC bool, False where a function returned None
    (its score is then 0 and means nothing); and numbers for the metrics: reward_seconds/NAME and,
    where there were any, reward_failures/NAME and what the functions counted (`notes`)."""

    score_BC: np.ndarray
    valid_BC: np.ndarray
    numbers: dict[str, float]


def check_rewards(rewards: Sequence[Callable], weights: Sequence[float], errors: str) -> None:
    """Refuse options of a run that do not fit: no rewards, weights that are not as many, an unknown
    policy for failures.

    Args:
        rewards: the option.
        weights: one a function; empty: all 1.
        errors: one of `ERRORS`.
    """
    check_choice("reward_errors", errors, ERRORS)
    if not rewards:
        raise ConfigError("rewards is empty: a run that scores needs a reward function")
    if weights and len(weights) != len(rewards):
        raise ConfigError(f"reward_weights has {len(weights)} numbers for {len(rewards)} rewards")
    for weight in weights:
        check_number("reward_weights", weight)


def score_completions(
    rewards: Sequence[Callable],
    weights: Sequence[float] | None,
    prompts: Sequence[str],
    completions: Sequence[str],
    rows: Sequence[dict[str, Any]],
    *,
    errors: str = "raise",
) -> Scores:
    """Call every reward function on every row.

    Args:
        rewards: the functions, C of them.
        weights: a finite factor for each; None: all 1.
        prompts, completions: B texts each.
        rows: B records of the dataset.
        errors: what a failure is. "raise": the end. "skip": None for the row, and counted; a
            function that raises is called again row by row, so that others keep their scores.

    Returns:
        the `Scores`. A row without any valid one gets advantage 0 and stays out of its group's
        statistics.

    Raises:
        ConfigError: no function, a weight too few or not finite; a function that returns no list
            or array of one axis, or one of the wrong length; and unless skipped NaN, an infinity,
            or not a number. It names the function and the row.
        ValueError: the three lists differ in length.
        Whatever a reward function raises unless skipped, with a note of its name.
    """
    check_choice("errors", errors, ERRORS)
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
    valid_BC = np.zeros_like(score_BC, bool)
    names = reward_names(rewards)
    for weight, name in zip(weights, names, strict=True):
        check_number(f"weight of reward {name}", weight)
    asked = (list(prompts), list(completions), list(rows))
    numbers: dict[str, float] = {}
    calls = zip(rewards, names, weights, call_all(rewards, asked), strict=True)
    for c, (reward, name, weight, found) in enumerate(calls):
        scores, failures = _settled(reward, name, found, asked, errors)
        for b, score in enumerate(scores):
            try:
                if score is not None:
                    score_BC[b, c] = _weighted(score, weight, f"reward {name}, row {b}")
                    valid_BC[b, c] = True
            except ConfigError:
                if errors == "raise":
                    raise
                failures += 1
        counts = {"seconds": found.seconds, **found.counts}
        counts |= {"failures": failures} if failures else {}
        numbers |= {f"reward_{what}/{name}": float(count) for what, count in counts.items()}
    return Scores(score_BC, valid_BC, numbers)


def _settled(
    reward: Callable, name: str, found: Called, asked: tuple[list, list, list], errors: str
) -> tuple[Sequence[Any], int]:
    """The scores, and how many rows failed on their own, where the whole call did."""
    if found.error is None:
        return _listed(found.value, name, len(asked[0])), 0
    if errors == "raise" or isinstance(found.error, ConfigError):  # no row's fault
        found.error.add_note(f"raised by reward {name}, asked for {len(asked[0])} scores")
        raise found.error
    scores, failures = [], 0
    for row in zip(*asked, strict=True):
        one = called(reward, tuple([part] for part in row))
        found.counts.update(one.counts)
        failures += one.error is not None
        scores.append(None if one.error is not None else _listed(one.value, name, 1)[0])
    return scores, failures


def score_steps(
    process_reward: Callable,
    prompts: Sequence[str],
    completions: Sequence[str],
    rows: Sequence[dict[str, Any]],
) -> list[list[tuple[int, float]]]:
    """Call a process reward on every row: (end, score) of each step; no steps for None.

    Raises:
        ConfigError: it returned something other than a list a row, ends that do not grow or lie
            outside the completion, or a score that is no finite number. It names the row.
        Whatever the function raises, with a note of its name.
    """
    name = reward_names([process_reward])[0]
    call = called(process_reward, (list(prompts), list(completions), list(rows)))
    if call.error is not None:
        call.error.add_note(f"raised by process reward {name}, asked for {len(prompts)} rows")
        raise call.error
    found = call.value
    if not isinstance(found, (list, tuple)) or len(found) != len(prompts):
        raise ConfigError(
            f"process reward {name} must return a list of {len(prompts)} rows, each a list of "
            "(end, score), or None"
        )
    steps: list[list[tuple[int, float]]] = []
    for b, (row, completion) in enumerate(zip(found, completions, strict=True)):
        where = f"process reward {name}, row {b}"
        row = [] if row is None else row
        if not isinstance(row, (list, tuple)):
            raise ConfigError(f"{where} is {row!r}, not a list of (end, score), or None")
        steps.append(_checked_steps(row, len(completion), where))
    return steps


def _checked_steps(row: Any, length: int, where: str) -> list[tuple[int, float]]:
    steps: list[tuple[int, float]] = []
    last = 0
    for step in row:
        try:
            end, score = step
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: {step!r} is not an (end, score) pair") from None
        if not isinstance(end, (int, np.integer)) or not last < end <= length:
            raise ConfigError(
                f"{where}: a step ends at character {end!r}; ends must grow from step to step "
                f"and lie in 1..{length}"
            )
        last = int(end)
        steps.append((last, _weighted(score, 1.0, where)))
    return steps


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
    # beyond it the squares of a group's deviations overflow in float32, and advantages become 0
    if not abs(weight * number) <= _LARGEST:
        raise ConfigError(
            f"{where}: the score is {number}, not a number within ±{_LARGEST:g}; None means: does "
            "not apply"
        )
    return weight * number
