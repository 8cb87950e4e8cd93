"""The options of every loop that draws completions and has them scored, whatever it learns."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_jax.bind import Bound
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.errors import check_choice, check_number
from rlhf_jax.loops.common import RunConfig
from rlhf_jax.loops.dialogues import DialogueConfig
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.rewards.compose import check_rewards
from rlhf_jax.rollout.sampler import SamplingConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig(RunConfig):
    """Model, prompts, reward functions, and how responses are drawn."""

    model: str
    """Folder of a Hugging Face model: the policy at the start, and the frozen reference."""
    prompts: Bound
    """Returns (training rows, held-out rows); a row is a dict with a "prompt"."""
    rewards: tuple[Bound, ...]
    """Reward functions: (prompts, completions, rows) -> a number or None for each."""
    reward_weights: tuple[float, ...] = ()
    """One weight a reward function; empty: all 1."""
    reward_errors: str = "raise"
    """A row that a reward function fails on: raise ends the run, skip leaves the row unscored and
    counts it."""
    watch: tuple[Bound, ...] = ()
    """Reward functions that are reported, as watch/NAME, and never trained on: the gold score
    beside a learned one."""
    num_prompts: int
    """Prompts of one step; each is answered sampling.num_samples times."""
    sampling: SamplingConfig
    """How responses are drawn; of a dialogue, each turn."""
    dialogue: DialogueConfig | None = None
    """An environment that answers what is drawn, turn by turn; `rewards.dialogue.dialogue_reward`
    is its score. None: one response to each prompt."""
    over_long: str = "error"
    """What becomes of a prompt longer than sampling.max_prompt_tokens: error, drop, left or right
    (cut there)."""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """How the held-out prompts are answered, and how often."""
    samples_every: int = 10
    """Steps between two steps of which a few completions are written to samples.jsonl."""

    def __post_init__(self):
        RunConfig.__post_init__(self)
        for name in ("num_prompts", "samples_every"):
            check_number(name, getattr(self, name), low=1)
        check_choice("over_long", self.over_long, OVER_LONG)
        check_rewards(self.rewards, self.reward_weights, self.reward_errors)
        if self.dialogue is not None:
            self.dialogue.check_room(self.sampling.max_new_tokens)

    @property
    def weights(self) -> tuple[float, ...]:
        """One factor a reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    @property
    def rows(self) -> int:
        """Rows of a rollout, B = P·G."""
        return self.num_prompts * self.sampling.num_samples

    @property
    def columns(self) -> int:
        """Columns of a rollout, T = L + R."""
        own = self.dialogue.max_columns if self.dialogue else self.sampling.max_new_tokens
        return self.sampling.max_prompt_tokens + own
