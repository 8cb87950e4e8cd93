"""GRPO with process supervision (2402.03300, section 4.1.3): every sentence is scored.

    python -m experiments.grpo_process_stories --model ../shared/models/stories260K/hf

`grpo_stories`, but what teaches is the VADER score of each sentence of a continuation: normalised
over all sentences of a group, a token's advantage is the sum over its own sentence and the later
ones. The score of the whole text, as in `grpo_stories`, is reported beside it.
"""

from dataclasses import replace

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.advantages import process_norm
from rlhf_jax.bind import bind
from rlhf_jax.loops.online import run
from rlhf_jax.rewards.sentiment import vader_sentences

CONFIG = replace(
    grpo_stories.CONFIG,
    out="runs/grpo_process_stories",
    num_steps=60,
    objective=replace(grpo_stories.CONFIG.objective, advantage=bind(process_norm)),
    process_reward=bind(vader_sentences),
)

if __name__ == "__main__":
    launch(CONFIG, run)
