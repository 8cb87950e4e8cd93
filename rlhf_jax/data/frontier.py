"""Which prompts still teach: those that are always or never solved are drawn less often.

A group whose answers are all right, or all wrong, has no better and no worse answer: in the group
estimators its advantages are 0, and the work of drawing it is lost. Filtering groups after the
draw (DAPO) keeps such groups out of the update; this keeps most of them from being drawn at all.

A visit is one draw of G answers to a prompt. It is *solved* if every answer that could be scored
reaches the threshold, *unsolved* if none does, else *mixed*. `visits` solved visits in a row put
a prompt among the solved, as many unsolved in a row among the unsolved; a single mixed visit takes
it out again, for the policy has moved on. Solved and unsolved prompts are still taken with the
probability `revisit`, which is how they are found to have become mixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.data.order import shuffled_batches
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import check_number
from rlhf_jax.parts import check_kinds
from rlhf_jax.types import Prompts

_TAKE = 1  # sets this use of (seed, position) apart from any other


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """When a prompt counts as solved or unsolved, and how often it is drawn then."""

    threshold: float
    """An answer is right if its score (weighted sum, before shaping) is at least this."""
    visits: int = 2
    """So many visits in a row with only right, or only wrong, answers make a prompt solved or
    unsolved."""
    revisit: float = 0.1
    """Probability with which a solved or unsolved prompt is taken all the same when its turn comes;
    0 skips it for good, 1 filters nothing and only reports."""

    def __post_init__(self):
        check_kinds(self, "frontier.")
        check_number("frontier.threshold", self.threshold)
        check_number("frontier.visits", self.visits, low=1)
        check_number("frontier.revisit", self.revisit, low=0, high=1)


class Frontier:
    """Statistics of a run's prompts, and the choice of the next batch.

    The choice is a function of (seed, position, statistics). `seen` maps a prompt's id (as text:
    it is kept as JSON) to [visits, answers scored, answers right, streak]; the streak counts
    solved visits in a row upwards, unsolved ones downwards. It belongs to the caller, is changed in
    place, and with the position is all that a resumed run needs.
    """

    def __init__(self, cfg: FrontierConfig, prompts: PromptSet, seed: int, seen: dict[str, Any]):
        self.cfg, self.prompts, self.seed, self.seen = cfg, prompts, seed, seen
        self._order = shuffled_batches(len(prompts), 1, seed, lambda index: int(index[0]))

    def next_batch(self, position: int, num_prompts: int) -> tuple[Prompts, int]:
        """The next prompts in the shuffled order of the dataset, and the position after them.

        A prompt is never twice in a batch. Where a whole epoch went by without filling the batch,
        what comes next is taken whatever its state, so that the choice always ends.

        Args:
            position: prompts looked at so far, taken or not.
            num_prompts: P, at most the size of the dataset.
        """
        taken: list[int] = []
        start = position
        while len(taken) < num_prompts:
            index = self._order[position]
            forced = position - start >= len(self.prompts)
            if index not in taken and (forced or self._accepts(index, position)):
                taken.append(index)
            position += 1
        return self.prompts.take(np.asarray(taken)), position

    def _accepts(self, index: int, position: int) -> bool:
        if not self.state_of(self.prompts.id_of[index]):
            return True
        draw = np.random.default_rng([_TAKE, self.seed, position]).random()
        return bool(draw < self.cfg.revisit)

    def state_of(self, prompt_id: int) -> int:
        """1 solved, −1 unsolved, 0 neither (or not known yet)."""
        streak = self.seen.get(str(prompt_id), (0, 0, 0, 0))[3]
        return int(np.sign(streak)) if abs(streak) >= self.cfg.visits else 0

    def note(self, id_P: np.ndarray, score_B: np.ndarray, valid_B: np.ndarray) -> None:
        """Count one visit of each prompt.

        Args:
            id_P: the prompts' ids.
            score_B: scores of their answers, G rows a prompt in the order of `id_P`.
            valid_B: False: no function could score the row. A visit without a scored row counts
                nothing.
        """
        for p, (right_G, valid_G) in enumerate(
            zip(
                (score_B >= self.cfg.threshold).reshape(len(id_P), -1),
                valid_B.reshape(len(id_P), -1),
                strict=True,
            )
        ):
            scored, right = int(valid_G.sum()), int((right_G & valid_G).sum())
            if not scored:
                continue
            visits, answers, solved, streak = self.seen.get(str(int(id_P[p])), (0, 0, 0, 0))
            if right == scored:
                streak = max(streak, 0) + 1
            elif right == 0:
                streak = min(streak, 0) - 1
            else:
                streak = 0
            self.seen[str(int(id_P[p]))] = [visits + 1, answers + scored, solved + right, streak]

    def numbers(self) -> dict[str, float]:
        """Of the whole dataset: the fractions visited, solved and unsolved; of the answers so far
        the fraction that was right."""
        states = [self.state_of(int(prompt_id)) for prompt_id in self.seen]
        answers = sum(entry[1] for entry in self.seen.values())
        right = sum(entry[2] for entry in self.seen.values())
        size = len(self.prompts)
        return {
            "frontier/visited": len(self.seen) / size,
            "frontier/solved": states.count(1) / size,
            "frontier/unsolved": states.count(-1) / size,
            "frontier/right": right / max(answers, 1),
        }
