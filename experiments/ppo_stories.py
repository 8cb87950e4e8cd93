"""PPO with a critic (1707.06347, 1909.08593): `grpo_stories` with another objective, and two epochs
of two updates a rollout.

    python -m experiments.ppo_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.loops.online import run
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/ppo_stories",
    num_steps=60,
    objective=ppo(),
    num_epochs=2,
    minibatch_rows=64,
    critic_optim=OptimConfig(learning_rate=1e-3),
)

if __name__ == "__main__":
    launch(CONFIG, run)
