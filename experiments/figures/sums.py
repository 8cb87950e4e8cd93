"""Running sums: four digits and "=", answered by their four running sums modulo 10.

The last sum is the outcome, each sum a step. A decoder imitates answers whose steps are random
digits with some probability, after which the error goes on: a base policy that is often wrong and
sometimes right, with room for reinforcement learning.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.figures.runs import imitate, small_model
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import Rollout, SFTBatch

EQUALS, STEPS = 10, 4
PROMPT = STEPS + 1
MODEL = small_model(11, PROMPT + STEPS, width=48)
HELD_OUT = 1000  # of the 10,000 prompts, drawn by the seed


@dataclass(frozen=True, kw_only=True)
class Base:
    """The base policy: how noisy its demonstrations are, how long it imitates them."""

    noise: float = 0.35
    updates: int = 1500
    rows: int = 128
    learning_rate: float = 3e-3


def prompts_of(number: np.ndarray) -> np.ndarray:
    """tokens [..., 5] of prompts by their number, 0 to 9,999."""
    digits = np.stack([number // 10**k % 10 for k in reversed(range(STEPS))], axis=-1)
    equals = np.full((*digits.shape[:-1], 1), EQUALS)
    return np.concatenate([digits, equals], axis=-1).astype(np.int32)


def split(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the prompts to train on and of those held out."""
    order = np.random.default_rng([seed, 10]).permutation(10**STEPS)
    return order[HELD_OUT:], order[:HELD_OUT]


@lru_cache(maxsize=8)
def base_policy(seed: int, base: Base) -> Any:
    """Parameters after imitating noisy answers to the training prompts."""
    draw = np.random.default_rng([seed, 11])
    prompt = prompts_of(draw.choice(split(seed)[0], (base.updates, base.rows)))
    sums, now = [], np.zeros(prompt.shape[:-1], np.int32)
    for k in range(STEPS):
        slip = draw.random(now.shape) < base.noise
        now = np.where(slip, draw.integers(0, 10, now.shape), (now + prompt[..., k]) % 10)
        sums.append(now)
    tokens = np.concatenate([prompt, np.stack(sums, axis=-1)], axis=-1).astype(np.int32)
    mask = np.broadcast_to(np.arange(tokens.shape[-1]) >= PROMPT, tokens.shape)
    batches = SFTBatch(
        tokens_BT=jnp.asarray(tokens),
        attend_BT=jnp.ones(tokens.shape, bool),
        mask_BT=jnp.asarray(mask),
    )
    optim = OptimConfig(learning_rate=base.learning_rate, schedule="linear")
    return imitate(MODEL, MODEL.init(jax.random.key(seed)), batches, optim)


def right_steps(tokens_BT: Array) -> Array:
    """[B, T] True where a response token is the running sum of the prompt's digits."""
    sums_BT = jnp.cumsum(tokens_BT[:, :STEPS], axis=1) % 10
    right_BT = tokens_BT[:, PROMPT:] == sums_BT
    return jnp.pad(right_BT, ((0, 0), (PROMPT, 0)))


def judge_outcome(rollout: Rollout) -> dict[str, Array]:
    """1 where the last sum is right."""
    score_BC = right_steps(rollout.tokens_BT)[:, -1:].astype(jnp.float32)
    return {"score_BC": score_BC, "valid_BC": jnp.ones(score_BC.shape, bool)}


def judge_steps(rollout: Rollout) -> dict[str, Array]:
    """The outcome, and 1 at every step that is right."""
    step_BT = right_steps(rollout.tokens_BT).astype(jnp.float32)
    return {**judge_outcome(rollout), "step_score_BT": step_BT, "step_end_BT": rollout.mask_BT}


def sampling(num_samples: int) -> SamplingConfig:
    """At temperature 1, always four tokens: nothing ends a response early."""
    return SamplingConfig(num_samples=num_samples, max_new_tokens=STEPS, max_prompt_tokens=PROMPT)


@lru_cache
def _answers(num_samples: int):
    sample = make_sampler(MODEL, sampling(num_samples), end_ids=(), pad_id=EQUALS)

    @jax.jit
    def answer(params, tokens_PL, key):
        id_P = jnp.arange(tokens_PL.shape[0])
        rollout = sample(params, tokens_PL, jnp.ones(tokens_PL.shape, bool), id_P, key)
        last_B, right_B = rollout.tokens_BT[:, -1], right_steps(rollout.tokens_BT)[:, -1]
        return last_B.reshape(-1, num_samples), right_B.reshape(-1, num_samples)

    return answer


def answers(params: Any, seed: int, *, prompts: int, num_samples: int) -> tuple[Array, Array]:
    """The last sum of every sample, and whether it is right: [P, G] each, on held-out prompts."""
    tokens_PL = jnp.asarray(prompts_of(split(seed)[1][:prompts]))
    return _answers(num_samples)(params, tokens_PL, jax.random.key(seed + 1_000_000))


def accuracy(params: Any, seed: int, *, prompts: int = 500, num_samples: int = 4) -> float:
    """Share of right outcomes at temperature 1 on held-out prompts."""
    return float(answers(params, seed, prompts=prompts, num_samples=num_samples)[1].mean())


def prompt_batches(seed: int, steps: int, prompts: int) -> tuple[Array, Array]:
    """tokens [steps, P, L] of training prompts, and ids that differ within a step."""
    number = np.random.default_rng([seed, 12]).choice(split(seed)[0], (steps, prompts))
    return jnp.asarray(prompts_of(number)), jnp.arange(prompts)
