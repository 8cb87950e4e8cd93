"""Text to SQL in three measured stages: the model as it is, SFT on gold queries, GRPO (2402.03300)
against execution.

    python -m experiments.sql_grpo --model FOLDER    # of SmolLM2-135M-Instruct, say

1. SFT: LoRA on the gold queries of the training questions.
2. GRPO: the same adapter goes on; 1 for a query that gives the gold query's table, 0.1 for one
   ```sql block and nothing else.

Both stages hold out the same questions and are measured by greedy execution accuracy. The same
command goes on where it was stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.chats import chat_prompts, chat_rows
from rlhf_jax.data.sql import sql_demonstrations, sql_prompts
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.loops import online, sft
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.loops.run import open_path
from rlhf_jax.models.lora import LoraConfig
from rlhf_jax.report.run_folder import RunFolder
from rlhf_jax.rewards.sql import sql
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import replace

FOLDER = "../shared/data/sql"
QUESTIONS = dict(
    path=f"{FOLDER}/questions_gen_sqlite.csv",
    folder=FOLDER,
    databases=("academic", "advising", "atis", "geography", "restaurants", "scholar"),
    most_tables=2,  # of up to 24, which would take 633 tokens; 94 of 112 questions need no other
    longest=200,
    held_out=40,
)
SYSTEM = "Answer with one SQLite query in a ```sql block."
PROMPTS = bind(chat_prompts, of=bind(sql_prompts, **QUESTIONS), system=SYSTEM)
GOLD = bind(chat_rows, of=bind(sql_demonstrations, **QUESTIONS), system=SYSTEM)
EXECUTION = bind(sql, folder=FOLDER)
LORA = LoraConfig(rank=16, alpha=32.0)
SFT = sft.SFTConfig(
    out="",
    model="",
    demonstrations=GOLD,
    held_out=GOLD.replace(of=GOLD.kw["of"].replace(part="held_out")),
    answers=AnswersConfig(
        prompts=PROMPTS,
        rewards=(EXECUTION,),
        num_prompts=20,
        max_prompt_tokens=192,
        max_new_tokens=84,
        temperature=0.0,
        over_long="drop",
    ),
    num_steps=64,
    batch_rows=4,
    max_tokens=288,
    packing=True,
    over_long="drop",
    lora=LORA,
    optim=OptimConfig(learning_rate=7e-4, warmup_updates=4, schedule="cosine"),
    checkpoint=CheckpointConfig(every=16, keep=1),
)
GRPO = online.OnlineConfig(
    out="",
    model="",
    objective=grpo(beta=None),
    prompts=PROMPTS,
    rewards=(EXECUTION.replace(format_bonus=0.1),),
    watch=(EXECUTION,),
    num_steps=12,
    num_prompts=4,
    sampling=SamplingConfig(num_samples=4, max_new_tokens=84, max_prompt_tokens=192),
    over_long="drop",  # seven of 112, with wide tables or long instructions
    lora=LORA,
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=2),
    checkpoint=CheckpointConfig(every=6, keep=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlConfig:
    """Both stages. Their folders, models and seeds follow, and the adapter that GRPO goes on."""

    out: str = "runs/sql_grpo"
    """Holds a run folder for each stage, and result.json."""
    seed: int = 0
    """Of both stages."""
    restart: bool = False
    """Move what the folder holds aside (to FOLDER.1, FOLDER.2, …) and begin anew."""
    model: str = "HuggingFaceTB/SmolLM2-135M-Instruct"
    """Folder of the model that both stages adapt."""
    sft: sft.SFTConfig = SFT
    """1. Its answers are execution accuracy, before and after."""
    grpo: online.OnlineConfig = GRPO
    """2. It watches execution accuracy."""

    def __post_init__(self):
        check_number("seed", self.seed, low=0, high=2**31 - 1)
        for name, part in (("sft", self.sft), ("grpo", self.grpo)):
            for option, default in (("out", ""), ("model", ""), ("seed", 0), ("restart", False)):
                if getattr(part, option) != default:
                    raise ConfigError(f"{name}.{option} is set by the experiment; use --{option}")
        if self.sft.lora is None or self.sft.lora != self.grpo.lora:
            raise ConfigError("grpo.lora goes on from sft.lora: both must be the same")


CONFIG = SqlConfig()


def main(cfg: SqlConfig) -> dict[str, float]:
    """Run both stages; print and return held-out execution accuracy after each."""
    open_path(cfg, for_several=True)
    print("1. SFT on gold queries", flush=True)
    imitated = Path(cfg.out, "sft")
    first = sft.run(replace(cfg.sft, out=str(imitated), model=cfg.model, seed=cfg.seed))
    print("2. GRPO against execution", flush=True)
    lora = replace(cfg.grpo.lora, adapter=str(imitated / "adapter"))
    out = str(Path(cfg.out, "grpo"))
    second = online.run(replace(cfg.grpo, out=out, model=cfg.model, seed=cfg.seed, lora=lora))
    told = {
        "start": first["before"]["score"],
        "sft": first["after"]["score"],
        "grpo": second["after"]["watch/sql"],
    }
    with RunFolder(cfg.out) as folder:
        folder.write_result(told)
    stages = " -> ".join(f"{name} {accuracy:.1%}" for name, accuracy in told.items())
    print(f"held-out execution accuracy: {stages}")
    return told


if __name__ == "__main__":
    launch(CONFIG, main)
