"""ReMax (2310.10505): one sampled and one greedy answer to each of 64 prompts, as many tokens a
step as in `grpo_stories`; the greedy answer's score is the baseline.

    python -m experiments.remax_stories --model ../shared/models/stories260K/hf
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.algorithms.remax import remax
from rlhf_jax.loops.online import run

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/remax_stories",
    num_steps=60,
    objective=remax(),
    num_prompts=64,
    sampling=replace(grpo_stories.CONFIG.sampling, num_samples=1),
)

if __name__ == "__main__":
    launch(CONFIG, run)
