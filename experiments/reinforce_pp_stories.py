"""REINFORCE++ (2501.03262): `grpo_stories` with another objective, β as in `ppo_stories`.

python -m experiments.reinforce_pp_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/reinforce_pp_stories",
    num_steps=60,
    objective=reinforce_pp(kl_coef=0.05),
)

if __name__ == "__main__":
    launch(CONFIG, run)
