"""CISPO (2506.13585), which has no KL term: `grpo_stories` with another objective, and two updates
a rollout, so that there are importance weights to clip.

    python -m experiments.cispo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/cispo_stories",
    num_steps=60,
    objective=cispo(),
    minibatch_rows=64,
)

if __name__ == "__main__":
    launch(CONFIG, run)
