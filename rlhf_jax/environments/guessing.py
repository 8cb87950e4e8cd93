"""Find a number: each guess is told to be too low or too high."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_jax.environments.contract import Row, Step
from rlhf_jax.errors import ConfigError, check_number


@dataclass(kw_only=True)
class Guessing:
    """The row's "number" is to be found in few guesses.

    A guess is a whole number, alone in the text. The answer to it is ">" where the number is
    higher, "<" where it is lower, "?" where the text is no guess (which counts as one all the
    same). The number itself ends the dialogue, and so does the last guess.

    reward = 1 − slope·(n − 1)/(tries − 1) for finding it with guess n; 0 without.

    Args:
        tries: guesses at most, ≥ 1.
        slope: in [0, 1], what is lost from the first guess to the last: 0 pays the last guess like
            the first, 1 pays nothing for the last.
        lower, higher, junk: the three answers.
    """

    tries: int = 7
    slope: float = 0.5
    lower: str = "<"
    higher: str = ">"
    junk: str = "?"
    _number: int = field(default=0, init=False, repr=False)
    _guesses: int = field(default=0, init=False, repr=False)

    def __post_init__(self):
        check_number("tries", self.tries, low=1)
        check_number("slope", self.slope, low=0, high=1)

    def reset(self, row: Row) -> None:
        number = row.get("number")
        if not isinstance(number, int):
            raise ConfigError(f"the row's 'number' is {number!r}, not a whole number")
        self._number, self._guesses = number, 0

    def step(self, text: str) -> Step:
        self._guesses += 1
        guess = text.strip()
        known = guess.isascii() and guess.removeprefix("-").isdigit() and len(guess) < 20
        if known and int(guess) == self._number:
            lost = self.slope * (self._guesses - 1) / max(self.tries - 1, 1)
            return Step(None, 1.0 - lost, True)
        if self._guesses >= self.tries:
            return Step(None, 0.0, True)
        if not known:
            return Step(self.junk, 0.0, False)
        return Step(self.higher if int(guess) < self._number else self.lower, 0.0, False)
