"""DAPO (2503.14476): `grpo_stories` with another objective.

The paper has no KL term, and without one this score is gamed: sixty steps end at VADER .99 and 90
nats, in "friend friend friend …" (seed 0). So the KL of `grpo_stories` is added.

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
    objective=replace(dapo(), loss_kl=grpo_stories.CONFIG.objective.loss_kl),
)

if __name__ == "__main__":
    launch(CONFIG, run)
