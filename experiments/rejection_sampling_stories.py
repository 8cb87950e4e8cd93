"""Rejection sampling (best of n, then imitation; 2307.09288, section 3.2.3) on stories.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.rejection_sampling_stories --model ../shared/models/stories260K/hf

The friendliest of sixteen continuations of each opening is imitated, as it was drawn. Choosing it
would cost log 16 − 15/16 = 1.84 nats; what imitation keeps of that is measured on held-out openings
as in `grpo_stories`.
"""

from dataclasses import replace

from experiments import sft_stories
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import sampled_best
from rlhf_jax.loops.sft import run
from rlhf_jax.train.optim import OptimConfig

BEST = bind(sampled_best, samples="runs/sample_stories", n=16)
CONFIG = replace(
    sft_stories.CONFIG,
    out="runs/rejection_sampling_stories",
    demonstrations=BEST.replace(part="train"),
    held_out=BEST.replace(part="held_out"),
    num_steps=24,
    max_tokens=112,
    over_long="error",
    evaluate_every=12,
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=5, schedule="cosine"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
