"""SAPO (2511.20347), which has no KL term: `grpo_stories` with another objective, and two updates a
rollout, so that there are ratios for its soft gate.

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
    objective=sapo(),
    minibatch_rows=64,
)

if __name__ == "__main__":
    launch(CONFIG, run)
