"""GRPO (2402.03300) on a real pretrained model: friendlier stories, still stories.

    python -m experiments.grpo_stories --model ../shared/models/stories260K/hf

A 260 K-parameter Llama trained on TinyStories continues story openings by 48 tokens; the score is
the VADER sentiment of opening and continuation, in [−1, 1]. Numbers to reach, on held-out openings
at temperature 1, within 15 minutes on two CPU cores: mean score from about .5 to ≥ .85, at a KL to
the reference ≤ 20 nats a completion, the reference's perplexity of the samples ≤ 2 × its start,
distinct-2 ≥ .5.
"""

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.stories import story_openings
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.online import OnlineConfig, run
from rlhf_jax.rewards.sentiment import vader
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.optim import OptimConfig

CONFIG = OnlineConfig(
    out="runs/grpo_stories",
    model="../shared/models/stories260K/hf",
    objective=grpo(beta=0.2),
    prompts=bind(story_openings, path="../shared/data/tinystories_val/tinystories_val.txt"),
    rewards=(bind(vader),),
    num_steps=100,
    num_prompts=16,
    sampling=SamplingConfig(num_samples=8, max_new_tokens=48, max_prompt_tokens=64),
    optim=OptimConfig(learning_rate=1e-4, warmup_updates=10),
    evaluation=EvalConfig(every=25, temperature=1.0),
)

if __name__ == "__main__":
    launch(CONFIG, run)
