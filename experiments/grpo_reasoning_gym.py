"""GRPO (2402.03300) on one-digit sums of reasoning-gym (2505.24760), by a small instruct model.

    python -m experiments.grpo_reasoning_gym --model FOLDER    # of SmolLM2-135M-Instruct

Two terms from 0 to 9, added or subtracted; adapters are trained, without a KL term. Number to
reach, greedily on 100 held-out sums within an hour on two CPU cores: from about .3 to ≥ .75.

Seed 0: .31 (95 % interval .23 to .41) → .74 after 16 steps → .84 (.76 to .90) after 32, at 6.1 nats
a completion from the start; 21 minutes of training on cores that other jobs shared. "The final
answer to this arithmetic problem is 1." becomes "1 + 5 = 6."; the wrong ones among the answers
shown at the end are differences below 0. Samples are drawn at temperature .6: at 1 the untrained
model rambles.
"""

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.chats import chat_prompts
from rlhf_jax.data.reasoning_gym import reasoning_gym as sums
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.online import OnlineConfig, run
from rlhf_jax.models.lora import LoraConfig
from rlhf_jax.rewards.reasoning_gym import reasoning_gym
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig

CONFIG = OnlineConfig(
    out="runs/grpo_reasoning_gym",
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    objective=grpo(beta=None),
    prompts=bind(
        chat_prompts,
        of=bind(
            sums,
            task="chain_sum",
            min_terms=2,
            max_terms=2,
            min_digits=1,
            max_digits=1,
            train=1000,
            held_out=100,
        ),
        system="Answer with the number alone.",
    ),
    rewards=(bind(reasoning_gym, find="last_number"),),
    num_steps=32,
    num_prompts=8,
    sampling=SamplingConfig(
        num_samples=8, max_new_tokens=16, max_prompt_tokens=40, temperature=0.6
    ),
    lora=LoraConfig(rank=16, alpha=32.0),
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=4),
    evaluation=EvalConfig(every=16),
    checkpoint=CheckpointConfig(every=16, keep=1),
)

if __name__ == "__main__":
    launch(CONFIG, run)
