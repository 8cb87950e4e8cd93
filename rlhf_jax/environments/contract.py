"""The contract of an environment, and the only caller of one.

An environment is a class, given by `bind(Class, option=…)`. Each dialogue has an object of its own:

    reset(row)            the dialogue about a record of the data set begins. The row's prompt is
                          what the policy reads first, so nothing is returned.
    step(text)            -> (observation, reward, done): what it says to an answer of the policy,
                          what the answer is worth, and whether the dialogue is over.

`observation` is a text that the policy reads before its next answer; at the end it may be None and
is not read. `reward` is a number, 0 for nothing yet, or None: it says nothing about the answer.
What an object does must follow from its row and the texts alone (draws from a generator that the
row seeds), so that a resumed run, and every process of one, meets the same world.
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple, Protocol

from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError

Row = dict[str, Any]

LARGEST = 1e15  # of a reward, as of a score


class Step(NamedTuple):
    """What an environment says to one answer. A plain tuple of the three will do."""

    observation: str | None
    reward: float | None
    done: bool


class Environment(Protocol):
    """One dialogue."""

    def reset(self, row: Row) -> None: ...

    def step(self, text: str) -> Step: ...


def check_environment(environment: Any) -> None:
    """Refuse what is no bound class with the two methods."""
    made = environment.fn if isinstance(environment, Bound) else None
    missing = [name for name in ("reset", "step") if not callable(getattr(made, name, None))]
    if not isinstance(made, type) or missing:
        raise ConfigError(
            f"environment={environment!r}: give bind(Class, ...) of a class with reset(row) and "
            "step(text)"
        )


def begin(environment: Bound, row: Row, where: str) -> Environment:
    """An object for one dialogue, reset to the row (a copy: it may do with it as it likes).

    Args:
        environment: a bound class.
        row: the data set's record.
        where: names the dialogue in messages.

    Raises:
        ConfigError: `reset` returned something.
        Whatever the environment raises, with a note of `where`.
    """
    try:
        dialogue = environment()
        found = dialogue.reset(dict(row))
    except ConfigError as error:
        raise ConfigError(f"reset of {where}: {error}") from error
    except Exception as error:
        error.add_note(f"raised by reset of {where}")
        raise
    if found is not None:
        raise ConfigError(
            f"reset of {where} returned {found!r}: what a policy reads first is the row's prompt"
        )
    return dialogue


def answered(dialogue: Environment, text: str, where: str) -> Step:
    """What the environment says to an answer.

    Raises:
        ConfigError: it is not (observation, reward, done) of the right kinds.
        Whatever the environment raises, with a note of `where`.
    """
    try:
        found = dialogue.step(text)
    except ConfigError as error:
        raise ConfigError(f"step of {where}: {error}") from error
    except Exception as error:
        error.add_note(f"raised by step of {where}")
        raise
    if not isinstance(found, tuple) or len(found) != 3:
        raise ConfigError(f"step of {where} returned {found!r}, not (observation, reward, done)")
    observation, reward, done = found
    if done not in (True, False):
        raise ConfigError(f"step of {where}: done is {done!r}, neither True nor False")
    if not isinstance(observation, str) and not (observation is None and done):
        raise ConfigError(
            f"step of {where}: the observation is {observation!r}, not a text; None is for the end"
        )
    if reward is not None and not (isinstance(reward, Real) and abs(reward) <= LARGEST):
        raise ConfigError(
            f"step of {where}: the reward is {reward!r}, neither a number within ±{LARGEST:g} nor "
            "None"
        )
    return Step(observation, None if reward is None else float(reward), bool(done))
