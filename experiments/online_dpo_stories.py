"""Online DPO (OAIF, 2402.04792): each step writes two continuations an opening and compares them.

    python -m experiments.online_dpo_stories --model ../shared/models/stories260K/hf

VADER stands for the annotator. Prompts, sampling and evaluation are those of `grpo_stories`.
"""

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.loops.online_preference import OnlinePreferenceConfig, run
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import replace

GRPO = grpo_stories.CONFIG
CONFIG = OnlinePreferenceConfig(
    out="runs/online_dpo_stories",
    model=GRPO.model,
    objective=dpo(beta=0.3),
    prompts=GRPO.prompts,
    rewards=GRPO.rewards,
    num_steps=40,
    num_prompts=32,
    sampling=replace(GRPO.sampling, num_samples=2),
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=10, schedule="linear"),
    evaluation=replace(GRPO.evaluation, every=20),
)

if __name__ == "__main__":
    launch(CONFIG, run)
