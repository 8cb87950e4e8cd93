"""GSPO (2507.18071): `grpo_stories` with another objective, and two updates a rollout, so that the
narrow clip of its sequence ratio acts.

The paper has no KL term, and without one this score is gamed: sixty steps end at VADER .99 and
150 nats, in "friend friend friend …" (seed 0). So the KL of `grpo_stories` is added.

    python -m experiments.gspo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/gspo_stories",
    num_steps=60,
    objective=replace(gspo(), loss_kl=grpo_stories.CONFIG.objective.loss_kl),
    minibatch_rows=64,
)

if __name__ == "__main__":
    launch(CONFIG, run)
