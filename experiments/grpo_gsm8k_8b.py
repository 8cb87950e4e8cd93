"""GRPO (2402.03300) on GSM8K at full scale: `grpo_gsm8k` with an 8 B model on a pod. Not run yet.

    tpu_scripts/run.sh --job gsm8k --follow -- python -m experiments.grpo_gsm8k_8b \\
      --model /mnt/shared/Llama-3.1-8B-Instruct --out /mnt/shared/grpo_gsm8k_8b \\
      --prompts.of.path /mnt/shared/gsm8k/train.jsonl \\
      --prompts.of.held-out-path /mnt/shared/gsm8k/test.jsonl

Meant for 64 chips of 16 GB (v5e-64). All parameters are trained: in float32 parameters, gradient,
two Adam moments and a reference take 160 GB, split sixteen ways by fsdp and four by tensor (the
eight heads of keys and values divide by it). A step is 64 problems, 1,024 completions, one update;
all 1,319 test problems are answered greedily every 20 steps.
"""

from dataclasses import replace

from experiments import grpo_gsm8k
from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.online import run
from rlhf_jax.parallel.mesh import MeshConfig
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig

CONFIG = replace(
    grpo_gsm8k.CONFIG,
    out="runs/grpo_gsm8k_8b",
    model="meta-llama/Llama-3.1-8B-Instruct",
    objective=grpo(beta=0.001),
    prompts=grpo_gsm8k.CONFIG.prompts.replace(of=grpo_gsm8k.PROBLEMS.replace(held_out=0)),
    num_steps=200,
    num_prompts=64,
    sampling=SamplingConfig(num_samples=16, max_new_tokens=1024, max_prompt_tokens=320),
    lora=None,
    optim=OptimConfig(learning_rate=1e-6, warmup_updates=10, weight_decay=0.01),
    evaluation=EvalConfig(every=20),
    checkpoint=CheckpointConfig(every=20),
    samples_every=10,
    mesh=MeshConfig(data=1, fsdp=16, tensor=4),
    micro_rows=64,
    remat="full",
    compute_dtype="bfloat16",
)

if __name__ == "__main__":
    launch(CONFIG, run)
