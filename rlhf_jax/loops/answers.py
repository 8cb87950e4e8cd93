"""Held-out prompts answered by a policy that was trained on other things than answers of its own.

A preference run learns from pairs; whether its answers have got better shows only when it answers.
The same measurement as in an online run, as an optional part of an offline config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from rlhf_jax.bind import Bound
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.data.prompts import PromptSet, both_parts
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.collect import Judged, judge
from rlhf_jax.loops.common import RunConfig, step_key
from rlhf_jax.loops.evaluate import evaluate
from rlhf_jax.loops.functions import prompt_sampler
from rlhf_jax.loops.run import load_policy
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.sharding import row_shards
from rlhf_jax.parts import check_kinds
from rlhf_jax.rewards.compose import check_rewards
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.scoring import make_score


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersConfig:
    """Which prompts are answered, how, and what scores the answers."""

    prompts: Bound
    """Returns (training rows, held-out rows), of which the held-out ones are answered."""
    rewards: tuple[Bound, ...]
    """Reward functions: (prompts, completions, rows) -> a number or None for each."""
    reward_weights: tuple[float, ...] = ()
    """One weight a reward function; empty: all 1."""
    reward_errors: str = "raise"
    """A row that a reward function fails on: raise ends the run, skip leaves the row unscored and
    counts it."""
    num_prompts: int = 50
    """Prompts of one batch; it changes memory and speed, not the numbers."""
    max_prompt_tokens: int
    """Columns of the prompts."""
    max_new_tokens: int
    """Longest answer."""
    temperature: float = 1.0
    """Of the answers; 0 takes the most likely token."""
    over_long: str = "error"
    """What becomes of a prompt longer than max_prompt_tokens: error, drop, left or right (cut
    there)."""

    def __post_init__(self):
        check_kinds(self, "answers.")
        check_number("answers.num_prompts", self.num_prompts, low=1)
        check_choice("answers.over_long", self.over_long, OVER_LONG)
        check_rewards(self.rewards, self.reward_weights, self.reward_errors)
        self.sampling  # noqa: B018  refuses lengths and temperatures that cannot be

    @property
    def weights(self) -> tuple[float, ...]:
        """One factor a reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    @property
    def sampling(self) -> SamplingConfig:
        """One answer a prompt."""
        return SamplingConfig(
            num_samples=1,
            max_prompt_tokens=self.max_prompt_tokens,
            max_new_tokens=self.max_new_tokens,
            temperature=self.temperature,
        )

    def read(self, tokenizer: Tokenizer, config: DecoderConfig) -> PromptSet:
        """The held-out prompts.

        Raises:
            ConfigError: a prompt, or a length beyond the model's positions.
        """
        length = self.max_prompt_tokens + self.max_new_tokens
        if length > config.max_positions:
            raise ConfigError(
                f"answers.max_prompt_tokens + max_new_tokens = {length} is above the model's "
                f"{config.max_positions} positions"
            )
        return PromptSet.from_rows(
            both_parts(self.prompts())[1],
            tokenizer,
            max_prompt_tokens=self.max_prompt_tokens,
            over_long=self.over_long,
            name="held-out prompts",
        )


def make_answering(
    cfg: AnswersConfig,
    model: Model,
    tokenizer: Tokenizer,
    prompts: PromptSet,
    *,
    seed: int,
    micro_rows: int | None,
    mesh: Mesh,
) -> Callable[[Any, Any], tuple[dict[str, float], Judged]]:
    """answer(policy, reference) -> the numbers of `loops.evaluate.evaluate`, and what was judged.

    The same keys every time: two policies differ by what they are, not by the draw.

    Args:
        cfg: the options.
        model: decoder of policy and reference.
        tokenizer: theirs.
        prompts: to answer, as `cfg.read` gives them.
        seed: of the draws.
        micro_rows: rows of one scoring pass; None: all.
        mesh: where the parameters live.

    Raises:
        ConfigError: num_prompts does not divide by the row shards.
    """
    check_divides("answers.num_prompts", cfg.num_prompts, "mesh data*fsdp", row_shards(mesh))
    sampling = cfg.sampling
    sample = prompt_sampler(
        model, sampling, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id, mesh=mesh
    )
    temperature = sampling.trainer_temperature
    score = make_score(model, temperature=temperature, micro_rows=micro_rows, mesh=mesh)
    key = step_key(seed, 0, "evaluate")

    def answer(policy, reference):
        return evaluate(
            prompts,
            cfg.num_prompts,
            answer=lambda batch: sample(policy, batch, key),
            judge=lambda batch, rollout: judge(cfg, tokenizer, batch, rollout),
            log_probs=lambda rollout: score(policy, reference, None, rollout),
        )

    return answer


def answer_from_folder(
    cfg: AnswersConfig, policy: str, reference: str, *, like: RunConfig
) -> dict[str, float]:
    """The numbers of a model folder on the held-out prompts, and its distance from another.

    Args:
        cfg: the options.
        policy: folder of the model that answers.
        reference: folder of the model that its answers are compared with, of the same shape.
        like: a run whose seed, mesh, micro-batches and dtype are used.

    Raises:
        ConfigError: a folder or a prompt that cannot be used.
    """
    tokenizer, config = Tokenizer.from_folder(policy), read_config(policy)
    if read_config(reference) != config:
        raise ConfigError(f"{policy} and {reference} are decoders of different shapes")
    prompts, mesh = cfg.read(tokenizer, config), make_mesh(like.mesh)
    with jax.set_mesh(mesh):
        model, params = load_policy(policy, like, mesh)
        _, reference_params = load_policy(reference, like, mesh)
        options = dict(seed=like.seed, micro_rows=like.micro_rows, mesh=mesh)
        answer = make_answering(cfg, model, tokenizer, prompts, **options)
        return answer(params, reference_params)[0]
