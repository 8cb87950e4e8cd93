"""SAPO (2511.20347): `grpo_stories` with another objective, and two updates a rollout, so that
there are ratios for its soft gate.

The paper has no KL term, and without one this score is gamed: sixty steps end at VADER .99 and
435 nats, in "friend friend friend …" (seed 0). So the KL of `grpo_stories` is added.

    python -m experiments.sapo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/sapo_stories",
    num_steps=60,
    objective=replace(sapo(), loss_kl=grpo_stories.CONFIG.objective.loss_kl),
    minibatch_rows=64,
)

if __name__ == "__main__":
    launch(CONFIG, run)
