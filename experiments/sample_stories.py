"""Draw what the reward model and the preference losses of stories learn from.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf

Sixteen continuations of each training opening at temperature 1, with their VADER scores, as rows of
runs/sample_stories. Half a minute on two CPU cores. The experiments that read them draw nothing.
"""

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.loops.sampling import SampleConfig, run
from rlhf_jax.rollout.sampler import SamplingConfig

CONFIG = SampleConfig(
    out="runs/sample_stories",
    model=grpo_stories.CONFIG.model,
    prompts=grpo_stories.CONFIG.prompts,
    rewards=grpo_stories.CONFIG.rewards,
    sampling=SamplingConfig(num_samples=16, max_new_tokens=48, max_prompt_tokens=64),
    num_prompts=32,
)

if __name__ == "__main__":
    launch(CONFIG, run)
