"""Where the time of one GRPO step goes, against this machine's own matmul rate.

    python -m experiments.bench_step

A random decoder (4 layers, width 256), 8 prompts of 8 tokens, 8 samples each of 64 tokens, no
early end, k3 KL to a reference, one update. Prints prompts/s, completion tokens/s, the seconds of
sampling, scoring and update, and the step's time over (its FLOPs ÷ the float32 matmul rate measured
in the same run): medians over rounds in which matmul and step take turns. Number to reach on two
CPU cores: a ratio ≤ 2.3.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.data.synthetic import sum_prompts
from rlhf_jax.errors import check_number
from rlhf_jax.loops import online
from rlhf_jax.loops.functions import build
from rlhf_jax.models.config import DecoderConfig, DecoderShape
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.rewards.exact import exact_answer
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.state import init_params, init_state
from rlhf_jax.types import Prompts

STEP = online.OnlineConfig(
    out="",
    model="",
    objective=grpo(beta=0.04),
    prompts=bind(sum_prompts),
    rewards=(bind(exact_answer),),
    num_steps=1,
    num_prompts=8,
    sampling=SamplingConfig(num_samples=8, max_new_tokens=64, max_prompt_tokens=8),
    mesh=MeshConfig(data=1),
    micro_rows=16,  # fits the caches: on two cores a quarter faster than 64 rows at once
)

DECODER = DecoderShape(d_model=256, num_heads=8, num_kv_heads=8, d_ff=688)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """Sizes of the model and the step, and how often it is timed."""

    rounds: int = 7
    """Timed rounds, after one that compiles; each times a matmul and every part of a step."""
    decoder: DecoderShape = DECODER
    """Shape of the decoder."""
    vocab_size: int = 4096
    """Its vocabulary."""
    matmul: int = 2048
    """Side of the square matrices whose product gives the machine's rate."""
    step: online.OnlineConfig = field(default_factory=lambda: STEP)
    """The step: its prompts, samples, lengths, objective, mesh and micro-batches."""

    def __post_init__(self):
        check_number("rounds", self.rounds, low=1)
        check_number("matmul", self.matmul, low=64)


CONFIG = BenchConfig()


def step_flops(shape: DecoderConfig, step: online.OnlineConfig) -> dict[str, float]:
    """Floating-point operations that each part must do: 2 a multiply-add, no recomputation.

    A forward pass is 2 for each weight of a matmul and token, and 4·H·K for each token attended
    to; a backward pass is twice the forward. Sampling runs the prompt once for its G samples.
    """
    layer = shape.d_model * shape.head_dim * (2 * shape.num_heads + 2 * shape.num_kv_heads)
    layer += 3 * shape.d_model * shape.d_ff
    head = shape.vocab_size * shape.d_model
    attend = 4 * shape.num_heads * shape.head_dim * shape.num_layers
    P, G = step.num_prompts, step.sampling.num_samples
    L, R = step.sampling.max_prompt_tokens, step.sampling.max_new_tokens

    def forward(rows, first, last, scored):
        tokens = last - first
        context = (first + 1 + last) / 2 * tokens  # causal: token t attends to t
        body = 2 * shape.num_layers * layer * tokens + attend * context
        return rows * (body + 2 * head * scored)

    full = forward(P * G, 0, L + R, L + R)
    return {
        "sampling": forward(P, 0, L, 1) + forward(P * G, L, L + R, R),
        "scoring": full if step.objective.needs_reference else 0.0,
        "update": 3 * full * step.num_epochs,
    }


def main(cfg: BenchConfig) -> None:
    """Time matmul, sampling, scoring and update in turns; print medians and ratios."""
    shape = cfg.decoder.config(cfg.vocab_size)
    step, mesh = cfg.step, make_mesh(cfg.step.mesh)
    model = Model(shape)
    rng = np.random.default_rng(step.seed)
    tokens_PL = rng.integers(3, cfg.vocab_size, (step.num_prompts, step.sampling.max_prompt_tokens))
    prompts = Prompts(
        tokens_PL=tokens_PL.astype(np.int32),
        attend_PL=np.ones_like(tokens_PL, bool),
        id_P=np.arange(step.num_prompts, dtype=np.int32),
        texts=[""] * step.num_prompts,
        rows=[{}] * step.num_prompts,
    )
    scores = {
        "score_BC": rng.integers(0, 2, (step.rows, 1)).astype(np.float32),
        "valid_BC": np.ones((step.rows, 1), bool),
    }
    matmul = jax.jit(lambda a: a @ a)
    square = jnp.ones((cfg.matmul, cfg.matmul), jnp.float32)
    seconds: dict[str, list[float]] = {}

    def timed(name, fn, *arguments):
        began = time.perf_counter()
        out = jax.block_until_ready(fn(*arguments))
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return out

    with jax.set_mesh(mesh):
        # an end token that is never drawn: every response has all its tokens
        functions, (tx, _) = build(step, model, end_ids=(), pad_id=0, mesh=mesh)
        state = init_state(
            init_params(model, jax.random.key(0), mesh=mesh), tx, with_reference=True, mesh=mesh
        )
        for number in range(cfg.rounds + 1):
            timed("matmul", matmul, square)
            began = time.perf_counter()
            key = jax.random.key(number)
            rollout = timed("sampling", functions.sample, state.policy, prompts, key)
            values = timed("scoring", functions.score, None, state.reference, None, rollout)
            batch, _ = functions.label(step.objective, rollout, shard_rows(mesh, scores), values)
            for _ in range(step.num_epochs):
                state, _ = timed("update", functions.update, state, step.objective, batch)
            seconds.setdefault("whole step", []).append(time.perf_counter() - began)
    report(cfg, seconds, step_flops(shape, step))


def report(cfg: BenchConfig, seconds: dict[str, list[float]], flops: dict[str, float]) -> None:
    """One line a part: median seconds, FLOP/s over the machine's rate, and time over the bound."""
    median = {name: float(np.median(times[1:])) for name, times in seconds.items()}
    rate = 2 * cfg.matmul**3 / median["matmul"]
    flops = {**flops, "whole step": sum(flops.values())}
    tokens = cfg.step.rows * cfg.step.sampling.max_new_tokens
    print(f"matmul {cfg.matmul}x{cfg.matmul} float32: {rate / 1e9:.0f} GFLOP/s")
    print(f"{'':12}{'seconds':>9}{'GFLOP':>9}{'of rate':>9}{'time/bound':>12}")
    for name in ("sampling", "scoring", "update", "whole step"):
        achieved = flops[name] / median[name] / rate
        print(
            f"{name:12}{median[name]:9.3f}{flops[name] / 1e9:9.1f}{achieved:9.1%}"
            f"{1 / achieved if achieved else float('nan'):12.2f}"
        )
    whole = median["whole step"]
    print(f"{cfg.step.num_prompts / whole:.2f} prompts/s, {tokens / whole:.0f} completion tokens/s")


if __name__ == "__main__":
    launch(CONFIG, main)
