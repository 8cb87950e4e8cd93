"""DPO (2305.18290) on pairs of sampled continuations that a noisy judge has compared.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.dpo_stories --model ../shared/models/stories260K/hf

Two of sixteen continuations of an opening, preferred by σ(difference of VADER scores / .1): one
epoch of 4 pairs an opening. Held-out openings are answered before and after, as in `grpo_stories`.
"""

from experiments import grpo_stories, sft_stories
from experiments.launch import launch
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import sampled_pairs
from rlhf_jax.loops.preference import PreferenceConfig, run
from rlhf_jax.train.optim import OptimConfig

PAIRS = bind(sampled_pairs, samples="runs/sample_stories", temperature=0.1, pairs_per_prompt=4)
CONFIG = PreferenceConfig(
    out="runs/dpo_stories",
    model=grpo_stories.CONFIG.model,
    objective=dpo(beta=0.1),
    preferences=PAIRS.replace(part="train"),
    held_out=PAIRS.replace(part="held_out", pairs_per_prompt=2),
    answers=sft_stories.ANSWERS,
    num_steps=60,
    batch_rows=32,
    max_tokens=100,
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="linear"),
    evaluate_every=30,
)

if __name__ == "__main__":
    launch(CONFIG, run)
