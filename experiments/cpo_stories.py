"""CPO (2401.08417), DPO without its reference beside imitation: `dpo_stories`, another objective.

python -m experiments.sample_stories --model ../shared/models/stories260K/hf
python -m experiments.cpo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import dpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.cpo import cpo
from rlhf_jax.loops.preference import run
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    dpo_stories.CONFIG,
    out="runs/cpo_stories",
    objective=cpo(beta=0.1),
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="linear"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
