"""Where an online loop's prompts and responses come from: which prompts, how many tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax

from rlhf_jax.data.frontier import Frontier
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.setup import Setup
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.rewards.notes import counting
from rlhf_jax.types import Prompts, Rollout


class Draws:
    """The draws of one run of an `OnlineConfig`.

    What it remembers is in `host`, the part of the run's state that is not arrays: `position` in
    the data, `tokens_drawn` (of every response, kept, discarded or greedy), and what is known of
    each prompt where a frontier filters them.
    """

    def __init__(self, cfg, setup: Setup, host: dict[str, Any]):
        self.cfg, self.setup, self.host = cfg, setup, host
        self.frontier = None
        if cfg.frontier is not None:
            seen = host.setdefault("frontier", {})
            self.frontier = Frontier(cfg.frontier, setup.inputs.prompts, cfg.seed, seen)
        self.passed_over = 0.0
        self.noted: Counter = Counter()  # of environments, since `numbers` were last read

    def draw(self, policy: Any, step: int, attempt: int) -> tuple[Prompts, Rollout]:
        """The next prompts, x ~ D, and G answers to each, y_1..y_G ~ π_old(· | x)."""
        host, position = self.host, self.host["position"]
        if self.frontier is None:
            prompts, host["position"] = self.setup.inputs.batches[position], position + 1
        else:
            prompts, host["position"] = self.frontier.next_batch(position, self.cfg.num_prompts)
            self.passed_over = 1 - self.cfg.num_prompts / (host["position"] - position)
        key = step_key(self.cfg.seed, step, "sample", attempt)
        return prompts, self._counted(self.setup.functions.sample, policy, prompts, key)

    def greedy(self, policy: Any, prompts: Prompts) -> Rollout:
        """The most likely answer to each prompt: ReMax's baseline, one more response a prompt."""
        key = step_key(self.cfg.seed, 0, "sample")  # nothing is left to chance
        return self._counted(self.setup.functions.greedy, policy, prompts, key)

    def numbers(self) -> dict[str, float]:
        """Of a step: the seconds and failures of an environment; of a frontier its state, and the
        fraction of the last draw's candidates passed over."""
        numbers, self.noted = dict(self.noted), Counter()
        if self.frontier is not None:
            numbers |= {**self.frontier.numbers(), "frontier/passed_over": self.passed_over}
        return numbers

    def _counted(self, sample: Callable, policy: Any, prompts: Prompts, key: jax.Array) -> Rollout:
        with counting() as counts:
            rollout = sample(policy, prompts, key)
        self.noted.update(counts)
        self.host["tokens_drawn"] += int(to_host(rollout.mask_BT).sum())
        return rollout
