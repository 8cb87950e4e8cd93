"""Dr. GRPO (2503.20783), which has no KL term: `grpo_stories` with another objective.

python -m experiments.dr_grpo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/dr_grpo_stories",
    num_steps=60,
    objective=dr_grpo(length=48),
)

if __name__ == "__main__":
    launch(CONFIG, run)
