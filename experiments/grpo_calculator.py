"""GRPO (2402.03300) on dialogues with a tool: ask the calculator, then answer.

    python -m experiments.grpo_calculator

"37*84=" is more than a decoder of a hundred thousand parameters can work out. It may write
`<calc>37*84</calc>`, is told `<result>3108</result>`, and answers with a turn of its own.

1. Warm-up: a decoder over bytes imitates a teacher who answers three problems in five with a guess
   of his own, and mistypes every fourth call.
2. GRPO against the environment `Calculator`, 1 for the right answer and 0 otherwise, on other
   problems: the policy comes to ask each time, and to type what stands there.

Held-out problems solved at temperature 1 (200, in neither set): 31.0 % -> 96.0 % (seed 0), 31.0 %
-> 90.5 % (seed 1). Imitation can only reach the teacher, who solves 31.1 %. On two CPU cores that
others used too, seed 1 took 223 s of training, 117 seconds of processor time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.environments.calculator import Calculator
from rlhf_jax.environments.scripted import scripted_turns
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, sft
from rlhf_jax.loops.dialogues import DialogueConfig
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.run import begin_anew
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.rewards.dialogue import dialogue_reward
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig

ENVIRONMENT = bind(Calculator)
TURNS = 2
SIZES = dict(warmup=4000, rl=3900, held_out=200)  # of the 90 · 90 products of two digits each


def problems(*, warmup: int, rl: int, held_out: int, seed: int) -> list[list[dict]]:
    """a·b in three lists that share no problem."""
    order = np.random.default_rng([seed, 3]).permutation(90 * 90)[: warmup + rl + held_out]
    factors = [(10 + int(i) // 90, 10 + int(i) % 90) for i in order]
    rows = [{"prompt": f"{a}*{b}=", "answer": str(a * b)} for a, b in factors]
    return [rows[:warmup], rows[warmup : warmup + rl], rows[warmup + rl :]]


def rewarded_problems(
    *, warmup: int, rl: int, held_out: int, seed: int = 0
) -> tuple[list[dict], list[dict]]:
    """(rl, held-out) of `problems`."""
    _, train, measured = problems(warmup=warmup, rl=rl, held_out=held_out, seed=seed)
    return train, measured


def hasty_teacher(row, told, rng) -> str:
    """Guesses without the tool (.6), else mistypes the call (.25), and reads results rightly."""
    if told:
        return told[-1][1].removeprefix("<result>").removesuffix("</result>")
    if rng.random() < 0.6:
        return str(rng.integers(100, 9802))
    typed = row["prompt"].removesuffix("=")
    if rng.random() < 0.25:
        place = rng.choice([0, 1, 3, 4])
        typed = f"{typed[:place]}{rng.integers(1, 10)}{typed[place + 1 :]}"
    return f"<calc>{typed}</calc>"


def hasty_calculations(*, warmup: int, rl: int, held_out: int, seed: int = 0) -> list[dict]:
    """The teacher's turns on the warm-up problems."""
    rows = problems(warmup=warmup, rl=rl, held_out=held_out, seed=seed)[0]
    options = dict(max_turns=TURNS, seed=seed)
    return scripted_turns(ENVIRONMENT, rows, hasty_teacher, byte_tokenizer(), **options)


WARMUP = sft.SFTConfig(
    out="",
    demonstrations=bind(hasty_calculations, seed=0, **SIZES),
    decoder=DecoderShape(num_layers=2, d_model=64, d_ff=192, max_positions=72),
    num_steps=400,
    batch_rows=64,
    max_tokens=52,
    optim=OptimConfig(learning_rate=3e-3, schedule="cosine", warmup_updates=50, b2=0.98),
    checkpoint=CheckpointConfig(every=100),
)
RL = online.OnlineConfig(
    out="",
    model="",
    objective=grpo(beta=0.01),
    prompts=bind(rewarded_problems, seed=0, **SIZES),
    dialogue=DialogueConfig(environment=ENVIRONMENT, max_turns=TURNS, max_columns=60),
    rewards=(bind(dialogue_reward),),
    num_steps=40,
    num_prompts=32,
    sampling=SamplingConfig(num_samples=8, max_new_tokens=20, max_prompt_tokens=7),
    minibatch_rows=128,
    optim=OptimConfig(learning_rate=5e-4, warmup_updates=10),
    evaluation=EvalConfig(every=20, temperature=1.0),
    checkpoint=CheckpointConfig(every=20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalculatorConfig:
    """The warm-up, then reinforcement learning."""

    out: str = "runs/grpo_calculator"
    """The run folder; the warm-up's is warmup/ inside it."""
    seed: int = 0
    """Of both parts: problems, what the teacher says, initial weights, samples."""
    restart: bool = False
    """Move what the run folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    warmup: sft.SFTConfig = WARMUP
    """The warm-up; its out and seed are set from above."""
    rl: online.OnlineConfig = RL
    """The reinforcement learning; its out, seed and model are set from above."""

    def __post_init__(self):
        for name, part in (("warmup", self.warmup), ("rl", self.rl)):
            for option, default in (("out", ""), ("seed", 0), ("restart", False)):
                if getattr(part, option) != default:
                    raise ConfigError(f"{name}.{option} is set from above; use --{option}")
        if self.rl.model:
            raise ConfigError("rl.model is the policy of the warm-up")


CONFIG = CalculatorConfig()


def main(cfg: CalculatorConfig) -> None:
    """Run both parts and say what came of them."""
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
    print("1. Imitate a teacher who is hasty with the tool")
    imitation = sft.run(warmup)
    print("2. GRPO against the calculator")
    result = online.run(rl)
    before, after = result["before"], result["after"]
    seconds = imitation["seconds"] + result["seconds"]
    print(
        f"held-out problems solved {before['score']:.1%} -> {after['score']:.1%}, turns "
        f"{before['turns']:.2f} -> {after['turns']:.2f}, in {seconds:.0f} s of training"
    )


if __name__ == "__main__":
    launch(CONFIG, main)
