"""Supervised fine-tuning of a pretrained model on whole stories.

    python -m experiments.sft_stories --model ../shared/models/stories260K/hf

The model was trained on stories of this kind; it now learns to continue the openings of these.
Number to reach: a held-out loss below its start's, on openings that are not trained on.
"""

from experiments import grpo_stories
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.stories import story_continuations
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.loops.sft import SFTConfig, run
from rlhf_jax.train.optim import OptimConfig

STORIES = bind(story_continuations, path=grpo_stories.CONFIG.prompts.kw["path"])
# the held-out openings, answered and scored as in `grpo_stories`
ANSWERS = AnswersConfig(
    prompts=grpo_stories.CONFIG.prompts,
    rewards=grpo_stories.CONFIG.rewards,
    max_prompt_tokens=grpo_stories.CONFIG.sampling.max_prompt_tokens,
    max_new_tokens=grpo_stories.CONFIG.sampling.max_new_tokens,
    num_prompts=grpo_stories.CONFIG.num_prompts,
)
CONFIG = SFTConfig(
    out="runs/sft_stories",
    model=grpo_stories.CONFIG.model,
    demonstrations=STORIES.replace(part="train"),
    held_out=STORIES.replace(part="held_out"),
    answers=ANSWERS,
    num_steps=40,
    batch_rows=32,
    max_tokens=128,
    over_long="right",
    optim=OptimConfig(learning_rate=3e-4, warmup_updates=10, schedule="cosine"),
    evaluate_every=20,
)

if __name__ == "__main__":
    launch(CONFIG, run)
