"""GRPO (2402.03300) on GSM8K (2110.14168): solutions that end in the right `#### number`.

    python -m experiments.grpo_gsm8k --model FOLDER    # of SmolLM2-135M-Instruct, say

1 for the right number, however it is written, and .1 for a last line of #### and a number. Four
steps of a small model on two CPU cores show samples, scores and loss, no more; `grpo_gsm8k_8b` has
the settings of a pod. To begin from what `sft_gsm8k` left: --model runs/sft_gsm8k/policy.

Seed 0: 2 of 8 test answers end in such a line before, 5 after, none is right; samples score .006
to .013 in the first three steps; 370 s on cores that other jobs shared.
"""

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.chats import chat_prompts
from rlhf_jax.data.sources import file_prompts
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.online import OnlineConfig, run
from rlhf_jax.models.lora import LoraConfig
from rlhf_jax.rewards.format import matches
from rlhf_jax.rewards.maths import maths
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.optim import OptimConfig

FOLDER = "../shared/data/gsm8k"
SYSTEM = "Solve the problem step by step. End with a line of #### and the number, such as: #### 42"
PROBLEMS = bind(
    file_prompts,
    path=f"{FOLDER}/train.jsonl",
    held_out_path=f"{FOLDER}/test.jsonl",
    held_out=8,  # of the 1,319 test problems; 0: all
    shape="verifiable",  # a question and an answer, which the reward reads
    rename=("prompt=question",),
)
CONFIG = OnlineConfig(
    out="runs/grpo_gsm8k",
    model="HuggingFaceTB/SmolLM2-135M-Instruct",
    objective=grpo(beta=0.01),
    prompts=bind(chat_prompts, of=PROBLEMS, system=SYSTEM),
    rewards=(bind(maths), bind(matches, pattern=r".*\n#### -?[\d,.]+\s*")),
    reward_weights=(1.0, 0.1),
    num_steps=4,
    num_prompts=4,
    sampling=SamplingConfig(num_samples=4, max_new_tokens=160, max_prompt_tokens=192),
    over_long="drop",
    lora=LoraConfig(rank=16, alpha=32.0),
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=2),
    evaluation=EvalConfig(samples_shown=3),
    samples_every=1,
)

if __name__ == "__main__":
    launch(CONFIG, run)
