"""A reward model (2203.02155, section 3.5) of the sentiment of stories, from a noisy judge.

    python -m experiments.sample_stories --model ../shared/models/stories260K/hf
    python -m experiments.reward_stories --model ../shared/models/stories260K/hf

The judge ranks eight continuations of an opening by VADER score and noise (Plackett–Luce, τ = .05,
so each pair is Bradley–Terry); openings are held out whole. Number to reach: accuracy ≥ .75 on
held-out pairs as the judge ordered them; .806 at seed 0, where the true scores themselves reach
.892 (the Bayes rate of these labels) and length alone .499. Under ten minutes on two CPU cores
(230 seconds of processor time).
"""

from experiments import grpo_stories, sample_stories
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.judges import sampled_noisy_rankings
from rlhf_jax.loops.reward_model import RewardModelConfig, run
from rlhf_jax.train.optim import OptimConfig

JUDGED = bind(
    sampled_noisy_rankings,
    samples=sample_stories.CONFIG.out,
    temperature=0.05,
    seed=0,
    sides=8,
)
CONFIG = RewardModelConfig(
    out="runs/reward_stories",
    model=grpo_stories.CONFIG.model,
    rankings=JUDGED.replace(part="train"),
    held_out=JUDGED.replace(part="held_out"),
    num_steps=300,
    batch_rows=8,
    max_tokens=104,
    over_long="left",
    optim=OptimConfig(learning_rate=1e-3, warmup_updates=20, schedule="cosine"),
    evaluate_every=100,
)

if __name__ == "__main__":
    launch(CONFIG, run)
