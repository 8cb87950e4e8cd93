"""IPO (2310.12036), on sums of log-probs as in the paper: `dpo_stories` with another objective.

python -m experiments.sample_stories --model ../shared/models/stories260K/hf
python -m experiments.ipo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import dpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.ipo import ipo
from rlhf_jax.loops.preference import run
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    dpo_stories.CONFIG,
    out="runs/ipo_stories",
    objective=ipo(beta=0.1),
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="linear"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
