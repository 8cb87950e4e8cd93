"""SimPO (2405.14734), which has no reference: `dpo_stories` with another objective.

python -m experiments.sample_stories --model ../shared/models/stories260K/hf
python -m experiments.simpo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import dpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.loops.preference import run
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    dpo_stories.CONFIG,
    out="runs/simpo_stories",
    objective=simpo(beta=2.0, margin=1.0),
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=10, schedule="linear"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
