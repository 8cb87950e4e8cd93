"""REINFORCE++ with a group baseline (2501.03262): `grpo_stories` with another objective.

The KL is in the loss, as there, and so is its β.

python -m experiments.reinforce_pp_baseline_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp_baseline
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/reinforce_pp_baseline_stories",
    num_steps=60,
    objective=reinforce_pp_baseline(kl_coef=0.2),
)

if __name__ == "__main__":
    launch(CONFIG, run)
