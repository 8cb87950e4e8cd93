"""RLOO (2402.14740): `grpo_stories` with another objective.

python -m experiments.rloo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/rloo_stories",
    num_steps=60,
    objective=rloo(),
)

if __name__ == "__main__":
    launch(CONFIG, run)
