"""From nothing to an aligned policy in five minutes on two CPU cores.

    python -m experiments.quickstart

1. Warm-up: a small decoder over bytes imitates a teacher who often forgets to carry ("27+45=062").
2. GRPO (2402.03300) with a checkable reward, 1 for the right sum and 0 otherwise, on other
   problems. Imitation can only reach the teacher; the reward takes the policy past it.

Held-out problems are in neither set. Number to reach: greedy accuracy on them from 20–60 % after
the warm-up to ≥ 90 %, in each of seeds 0, 1, 2. `--continue-sft` runs a third part, imitation for
as long as the reinforcement learning took: what the reward adds is the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.synthetic import sloppy_sums, sum_prompts
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, sft
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.run import begin_anew
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.rewards.exact import exact_answer
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig

SIZES = dict(warmup=4000, rl=4000, held_out=500)  # distinct problems, of 10,000
WARMUP = sft.SFTConfig(
    out="",
    demonstrations=bind(sloppy_sums, slip=0.6, draws=4, seed=0, **SIZES),
    decoder=DecoderShape(num_layers=2, d_model=96, d_ff=288, max_positions=32),
    num_steps=400,
    batch_rows=256,
    max_tokens=12,
    optim=OptimConfig(learning_rate=3e-3, schedule="cosine", warmup_updates=50, b2=0.98),
    checkpoint=CheckpointConfig(every=100),
)
RL = online.OnlineConfig(
    out="",
    model="",
    objective=grpo(beta=0.01),
    prompts=bind(sum_prompts, seed=0, **SIZES),
    rewards=(bind(exact_answer),),
    num_steps=120,
    num_prompts=64,
    sampling=SamplingConfig(num_samples=16, max_new_tokens=5, max_prompt_tokens=7),
    minibatch_rows=512,
    optim=OptimConfig(learning_rate=5e-4, warmup_updates=10),
    evaluation=EvalConfig(every=40),
    checkpoint=CheckpointConfig(every=40),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickstartConfig:
    """The whole path: warm-up, then reinforcement learning."""

    out: str = "runs/quickstart"
    """The run folder; the warm-up's is warmup/ inside it."""
    seed: int = 0
    """Of both parts: problems, initial weights, slips, samples."""
    restart: bool = False
    """Move what the run folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    continue_sft: bool = False
    """Afterwards, imitate on for as long as the reinforcement learning took, for comparison."""
    warmup: sft.SFTConfig = WARMUP
    """The warm-up; its out and seed are set from above."""
    rl: online.OnlineConfig = RL
    """The reinforcement learning; its out, seed and model are set from above."""

    def __post_init__(self):
        for name, part in (("warmup", self.warmup), ("rl", self.rl)):
            for option, default in (("out", ""), ("seed", 0), ("restart", False)):
                if getattr(part, option) != default:
                    raise ConfigError(f"{name}.{option} is set by the quickstart; use --{option}")
        if self.rl.model:
            raise ConfigError(
                "rl.model is the policy of the warm-up; to start from a model of your own, see "
                "experiments/grpo_stories.py"
            )
        imitated, rewarded = self.warmup.demonstrations.kw, self.rl.prompts.kw
        for name in (*SIZES, "seed"):
            if imitated[name] != rewarded[name]:
                raise ConfigError(
                    f"warmup.demonstrations.{name}={imitated[name]} and rl.prompts.{name}="
                    f"{rewarded[name]} must agree: they cut one set of problems into three"
                )


CONFIG = QuickstartConfig()


def main(cfg: QuickstartConfig) -> None:
    """Run both parts (and the comparison, if asked), then say what came of it."""
    out = Path(cfg.out)
    if cfg.restart:
        begin_anew(out)
    warmup = replace(
        cfg.warmup,
        out=str(out / "warmup"),
        seed=cfg.seed,
        demonstrations=cfg.warmup.demonstrations.replace(seed=cfg.seed),
    )
    rl = replace(
        cfg.rl,
        out=str(out),
        seed=cfg.seed,
        model=str(out / "warmup" / "policy"),
        prompts=cfg.rl.prompts.replace(seed=cfg.seed),
    )
    print("1. Imitate a teacher who forgets to carry")
    imitation = sft.run(warmup)
    print("2. GRPO on a checkable reward")
    result = online.run(rl)
    before, after = result["before"]["score"], result["after"]["score"]
    seconds = imitation["seconds"] + result["seconds"]
    print(f"held-out greedy accuracy {before:.1%} -> {after:.1%} in {seconds:.0f} s of training")
    if cfg.continue_sft:
        compare(cfg, warmup, rl, imitation, result)


def compare(cfg, warmup, rl, imitation, result) -> None:
    """Imitation for as long as the reinforcement learning took, measured the same way."""
    rate = imitation["steps"] / imitation["seconds"]
    more = max(1, round(rate * result["seconds"]))
    print(f"3. For comparison, {more} further steps of imitation: as long as part 2 took")
    folder = Path(cfg.out) / "continued_sft"
    sft.run(replace(warmup, out=str(folder), model=rl.model, num_steps=more, seed=warmup.seed + 1))
    measured = online.measure_only(replace(rl, model=str(folder / "policy")))
    print(
        f"held-out greedy accuracy: after the warm-up {result['before']['score']:.1%}, "
        f"after as much imitation again {measured['score']:.1%}, after GRPO "
        f"{result['after']['score']:.1%}"
    )


if __name__ == "__main__":
    launch(CONFIG, main)
