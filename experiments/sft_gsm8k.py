"""Supervised fine-tuning on GSM8K's worked solutions (2110.14168), through the chat template.

    python -m experiments.sft_gsm8k --model FOLDER    # of SmolLM2-135M-Instruct, say

Solutions are learnt as the data has them: with calculator marks (<<48/2=24>>) and the closing
`#### 72`. Eight steps of a small model on two CPU cores show loss and scored answers, no more;
`sft_gsm8k_8b` has the settings of a pod.

Seed 0, on 8 test problems: loss 1.285 → 1.149 nats a token, score .025 → .163 (none right → one);
161 s on cores that other jobs shared.
"""

from experiments import grpo_gsm8k
from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.chats import chat_rows
from rlhf_jax.data.sources import file_rows
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.loops.sft import SFTConfig, run
from rlhf_jax.train.optim import OptimConfig

SOLUTIONS = bind(
    file_rows,
    path=f"{grpo_gsm8k.FOLDER}/train.jsonl",
    shape="demonstration",
    rename=("prompt=question", "completion=answer"),
)
TEST = SOLUTIONS.replace(path=f"{grpo_gsm8k.FOLDER}/test.jsonl", part="held_out", held_out=8)
CONFIG = SFTConfig(
    out="runs/sft_gsm8k",
    model=grpo_gsm8k.CONFIG.model,
    demonstrations=bind(chat_rows, of=SOLUTIONS, system=grpo_gsm8k.SYSTEM),
    held_out=bind(chat_rows, of=TEST, system=grpo_gsm8k.SYSTEM),
    # the same test questions, answered and scored as in `grpo_gsm8k`
    answers=AnswersConfig(
        prompts=grpo_gsm8k.CONFIG.prompts,
        rewards=grpo_gsm8k.CONFIG.rewards,
        reward_weights=grpo_gsm8k.CONFIG.reward_weights,
        num_prompts=8,
        max_prompt_tokens=grpo_gsm8k.CONFIG.sampling.max_prompt_tokens,
        max_new_tokens=grpo_gsm8k.CONFIG.sampling.max_new_tokens,
        temperature=0.0,
        over_long=grpo_gsm8k.CONFIG.over_long,
    ),
    num_steps=8,
    batch_rows=4,
    max_tokens=512,
    packing=True,
    over_long="drop",
    lora=grpo_gsm8k.CONFIG.lora,
    optim=OptimConfig(learning_rate=2e-4, warmup_updates=2, schedule="cosine"),
)

if __name__ == "__main__":
    launch(CONFIG, run)
