"""SFT on GSM8K at full scale: `sft_gsm8k` with an 8 B model on a pod. Not run yet.

    tpu_scripts/run.sh --job sft --follow -- python -m experiments.sft_gsm8k_8b \\
      --model /mnt/shared/Llama-3.1-8B-Instruct --out /mnt/shared/sft_gsm8k_8b

with the data's paths as in `grpo_gsm8k_8b` (--demonstrations.of.path, --held-out.of.path and
--answers.prompts.of.…). Meant for 64 chips of 16 GB (v5e-64); mesh and memory as there. 7,473
solutions packed into rows of 1,024 tokens, 64 rows a step: three passes.
"""

from dataclasses import replace

from experiments import grpo_gsm8k_8b, sft_gsm8k
from experiments.launch import launch
from rlhf_jax.loops.sft import run
from rlhf_jax.train.optim import OptimConfig

POD = grpo_gsm8k_8b.CONFIG
CONFIG = replace(
    sft_gsm8k.CONFIG,
    out="runs/sft_gsm8k_8b",
    model=POD.model,
    held_out=sft_gsm8k.CONFIG.held_out.replace(of=sft_gsm8k.TEST.replace(part="all", held_out=0)),
    answers=replace(
        sft_gsm8k.CONFIG.answers,
        prompts=POD.prompts,
        num_prompts=64,
        max_prompt_tokens=POD.sampling.max_prompt_tokens,
        max_new_tokens=POD.sampling.max_new_tokens,
    ),
    num_steps=78,
    batch_rows=64,
    max_tokens=1024,
    lora=None,
    optim=OptimConfig(learning_rate=1e-5, warmup_updates=8, schedule="cosine"),
    mesh=POD.mesh,
    remat=POD.remat,
    compute_dtype=POD.compute_dtype,
)

if __name__ == "__main__":
    launch(CONFIG, run)
