"""The whole chain on stories: SFT, rejection sampling, reward model, PPO, DPO.

    python -m experiments.chain_stories --model ../shared/models/stories260K/hf

1. SFT: continue the openings as their stories do.
2. Rejection sampling: sample it, imitate the friendliest of sixteen (2307.09288, section 3.2.3).
3. Reward model: of a noisy judge's rankings of the same samples (2203.02155, section 3.5).
4. PPO: from the policy of 2 against that reward model; VADER is only watched.
5. DPO: sample the policy of 4, let the noisy judge choose between two answers (2305.18290).

Each stage is a run folder inside OUT; what is finished is not run again. After each the policy
answers the held-out openings as in `grpo_stories`, and its KL is to the model that the chain began
with. Numbers to reach: VADER .60 at the start, less after SFT (real stories are less friendly than
the model's own), ≥ .75 after rejection sampling, ≥ .9 after PPO and after DPO. Thirteen minutes of
processor time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from experiments import (
    dpo_stories,
    grpo_stories,
    ppo_reward_model_stories,
    rejection_sampling_stories,
    reward_stories,
    sample_stories,
    sft_stories,
)
from experiments.launch import launch
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.loops import online, preference, reward_model, sampling, sft
from rlhf_jax.loops.answers import answer_from_folder
from rlhf_jax.loops.run import open_path
from rlhf_jax.report.run_folder import RunFolder

# what differs from the experiments of these names: folders, models and seeds, set by the chain
SFT = replace(sft_stories.CONFIG, out="", model="")
SAMPLES = replace(sample_stories.CONFIG, out="", model="")
REJECTION = replace(rejection_sampling_stories.CONFIG, out="", model="")
REWARD = replace(reward_stories.CONFIG, out="", model="", num_steps=200)
PPO = replace(ppo_reward_model_stories.CONFIG, out="", model="", num_steps=40)
DPO = replace(dpo_stories.CONFIG, out="", model="", answers=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainConfig:
    """The stages. Their folders, models, samples and seeds follow from the chain."""

    out: str = "runs/chain_stories"
    """Holds a run folder for each stage, and result.json."""
    seed: int = 0
    """Of every stage."""
    restart: bool = False
    """Move what the folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    model: str = grpo_stories.CONFIG.model
    """Folder of the model that the chain begins with."""
    sft: sft.SFTConfig = SFT
    """1. Its answers are also how every policy of the chain is measured."""
    samples: sampling.SampleConfig = SAMPLES
    """How a policy is sampled, for 2 and 3, and again for 5."""
    rejection: sft.SFTConfig = REJECTION
    """2."""
    reward: reward_model.RewardModelConfig = REWARD
    """3."""
    ppo: online.OnlineConfig = PPO
    """4."""
    dpo: preference.PreferenceConfig = DPO
    """5."""

    def __post_init__(self):
        check_number("seed", self.seed, low=0, high=2**31 - 1)
        if self.sft.answers is None:
            raise ConfigError(
                "sft.answers says how every policy is measured: it cannot be left out"
            )
        for name in ("sft", "samples", "rejection", "reward", "ppo", "dpo"):
            part = getattr(self, name)
            for option, default in (("out", ""), ("model", ""), ("seed", 0), ("restart", False)):
                if getattr(part, option) != default:
                    raise ConfigError(f"{name}.{option} is set by the chain; use --{option}")


CONFIG = ChainConfig()


def main(cfg: ChainConfig) -> dict[str, dict[str, float]]:
    """Run the stages in order; print and return what the policy after each is worth."""
    open_path(cfg, for_several=True)
    told = {"start": measured(cfg, cfg.model)}

    def stage(name, run, part, *, policy):
        print(f"== {name}", flush=True)
        folder = Path(cfg.out, name)
        run(replace(part, out=str(folder), model=policy, seed=cfg.seed))
        trained = str(folder / "policy")
        if Path(trained).exists():
            told[name] = measured(cfg, trained)
            print(f"after {name}: {said(told[name])}", flush=True)
        return str(folder), trained

    _, tuned = stage("sft", sft.run, cfg.sft, policy=cfg.model)
    drawn, _ = stage("samples", sampling.run, cfg.samples, policy=tuned)
    rejection = on(cfg.rejection, drawn, "demonstrations", "held_out")
    _, chosen = stage("rejection_sampling", sft.run, rejection, policy=tuned)
    reward = on(cfg.reward, drawn, "rankings", "held_out")
    judge, _ = stage("reward", reward_model.run, reward, policy=tuned)
    scorer = f"{judge}/reward_model"
    rewards = (cfg.ppo.rewards[0].replace(model=scorer),)
    ppo = replace(cfg.ppo, rewards=rewards, critic_from=scorer)
    _, improved = stage("ppo", online.run, ppo, policy=chosen)
    redrawn, _ = stage("ppo_samples", sampling.run, cfg.samples, policy=improved)
    stage("dpo", preference.run, on(cfg.dpo, redrawn, "preferences", "held_out"), policy=improved)

    with RunFolder(cfg.out) as folder:
        folder.write_result(told)
    for name, numbers in told.items():
        print(f"{name:>20}: {said(numbers)}")
    return told


def on(part, samples: str, *names: str):
    """The same part, its data under these names made of other samples."""
    return replace(part, **{name: getattr(part, name).replace(samples=samples) for name in names})


def measured(cfg: ChainConfig, policy: str) -> dict[str, float]:
    """What a policy of the chain answers to the held-out openings."""
    like = replace(cfg.sft, seed=cfg.seed)
    return answer_from_folder(cfg.sft.answers, policy, cfg.model, like=like)


def said(numbers: dict[str, float]) -> str:
    """One line."""
    return (
        f"VADER {numbers['score']:.3f}, KL to the start {numbers['kl']:.1f} nats, "
        f"distinct-2 {numbers['distinct_2']:.2f}, perplexity {numbers['ref_perplexity']:.2f}"
    )


if __name__ == "__main__":
    launch(CONFIG, main)
