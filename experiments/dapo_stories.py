"""DAPO (2503.14476), which has no KL term: `grpo_stories` with another objective.

python -m experiments.dapo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/dapo_stories",
    num_steps=60,
    objective=dapo(),
)

if __name__ == "__main__":
    launch(CONFIG, run)
