"""Iterative GRPO (2402.03300, Algorithm 1): policy, reference and reward model take turns.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.reward_stories --model ../shared/models/stories260K/hf
    python -m experiments.iterative_grpo_stories --model ../shared/models/stories260K/hf

In each iteration the policy of the last becomes the reference; GRPO trains against the reward
model, frozen; the new policy is sampled, the judge of `reward_stories` (VADER with noise) ranks the
samples, and the reward model goes on training with them and a tenth of earlier rankings. VADER
itself is only watched. Each part is a run folder of its own inside runs/iterative_grpo_stories.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from experiments import grpo_stories, reward_stories, sample_stories
from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.replay import replayed_noisy_rankings
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.loops import online, reward_model, sampling
from rlhf_jax.rewards.learned import learned
from rlhf_jax.rewards.sentiment import vader

RL = replace(
    grpo_stories.CONFIG,
    out="",
    model="",
    objective=grpo(beta=0.1),
    rewards=(bind(learned, model=""),),
    watch=(bind(vader),),
    num_steps=30,
)
DRAW = replace(sample_stories.CONFIG, out="", model="", max_prompts=400)
# the judge of `reward_stories`
JUDGED = bind(replayed_noisy_rankings, **{**reward_stories.JUDGED.kw, "samples": (), "share": 0.1})
REWARD = replace(
    reward_stories.CONFIG,
    out="",
    model="",
    rankings=JUDGED.replace(part="train"),
    held_out=JUDGED.replace(part="held_out"),
    num_steps=60,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IterativeConfig:
    """The outer loop and its three parts, whose folders, models, seed and data are set by it."""

    out: str = "runs/iterative_grpo_stories"
    """The folder; rl_N, draw_N and reward_N inside it are the parts of iteration N."""
    seed: int = 0
    """Of every part."""
    model: str = grpo_stories.CONFIG.model
    """Folder of the first policy."""
    first_reward_model: str = "runs/reward_stories/reward_model"
    """Folder of the first reward model."""
    first_samples: str = sample_stories.CONFIG.out
    """Folder of the samples that it was trained on: the first to be replayed."""
    iterations: int = 2
    """Times that the policy is trained (I of the paper); the reward model once less."""
    rl: online.OnlineConfig = RL
    """The policy's part."""
    draw: sampling.SampleConfig = DRAW
    """The samples that the judge ranks."""
    reward: reward_model.RewardModelConfig = REWARD
    """The reward model's part."""

    def __post_init__(self):
        check_number("iterations", self.iterations, low=1)
        for name, part in (("rl", self.rl), ("draw", self.draw), ("reward", self.reward)):
            for option, unset in (("out", ""), ("model", ""), ("seed", 0)):
                if getattr(part, option) != unset:
                    raise ConfigError(f"{name}.{option} is set by the outer loop: leave it out")


CONFIG = IterativeConfig()


def main(cfg: IterativeConfig) -> None:
    """Take turns, then say what came of each; a part that is finished is not run again."""
    policy, reward, samples, told = cfg.model, cfg.first_reward_model, (cfg.first_samples,), []
    for number in range(1, cfg.iterations + 1):
        rl, draw, training = (
            replace(part, out=str(Path(cfg.out, f"{name}_{number}")), seed=cfg.seed)
            for name, part in (("rl", cfg.rl), ("draw", cfg.draw), ("reward", cfg.reward))
        )
        print(f"iteration {number}: GRPO against {reward}; the reference is {policy}")
        scores = (cfg.rl.rewards[0].replace(model=reward),)
        result = online.run(replace(rl, model=policy, rewards=scores))
        policy = f"{rl.out}/policy"
        told.append((result["after"]["watch/vader"], result["after"]["kl"]))
        if number == cfg.iterations:
            break
        print(f"iteration {number}: draw, rank, and train the reward model")
        sampling.run(replace(draw, model=policy))
        samples += (draw.out,)
        rows = {
            name: getattr(training, name).replace(samples=samples)
            for name in ("rankings", "held_out")
        }
        reward_model.run(replace(training, model=reward, **rows))
        reward = f"{training.out}/reward_model"
    for number, (gold, kl) in enumerate(told, start=1):
        print(f"after iteration {number}: held-out VADER {gold:.3f}, KL {kl:.1f} to its reference")


if __name__ == "__main__":
    launch(CONFIG, main)
