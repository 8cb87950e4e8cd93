"""ORPO (2403.07691), imitation and an odds ratio: `dpo_stories` with another objective.

python -m experiments.sample_stories --model ../shared/models/stories260K/hf
python -m experiments.orpo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import dpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.loops.preference import run
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    dpo_stories.CONFIG,
    out="runs/orpo_stories",
    objective=orpo(beta=5.0),
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="linear"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
