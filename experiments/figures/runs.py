"""Small decoders trained without tokens, texts or folders: the package's functions in `lax.scan`.

Everything here is what `loops.functions` gives a real run (sampler, scoring, labels, update); only
data and rewards are arrays, so that a whole run is one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rlhf_jax.loops.functions import label
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.models.heads import init_scalar_head
from rlhf_jax.models.transformer import Model
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.scoring import make_score
from rlhf_jax.train.state import control_reward_kl, init_state, objective_now
from rlhf_jax.train.steps import make_sft_update, make_update
from rlhf_jax.types import Rollout, SFTBatch, pytree, replace


@pytree
class Batch:
    """What one step of `learn` saw: the rollout, the rows' scores, mean Σ k1 a response (nats)."""

    rollout: Rollout
    score_B: Array
    kl: Array


def small_model(vocab: int, positions: int, *, width: int = 32, layers: int = 2) -> Model:
    """A decoder of four heads."""
    shape = DecoderShape(
        num_layers=layers,
        d_model=width,
        num_heads=4,
        num_kv_heads=4,
        d_ff=2 * width,
        max_positions=positions,
    )
    return Model(shape.config(vocab))


def imitate(model: Model, params: Any, batches: SFTBatch, optim: OptimConfig) -> Any:
    """Parameters after one SFT update a batch; every array of `batches` leads with the updates."""
    return _imitation(model, optim, batches.mask_BT.shape[0])(params, batches)


@lru_cache
def _imitation(model, optim, updates):
    tx = make_optimizer(optim, updates)
    update = make_sft_update(model, tx)

    @jax.jit
    def run(params, batches):
        def step(state, batch):
            return update(state, batch)[0], None

        return jax.lax.scan(step, init_state(params, tx), batches)[0].policy

    return run


def make_learner(
    model: Model,
    sampling: SamplingConfig,
    judge: Callable[..., dict[str, Array]],
    *,
    optim: OptimConfig,
    steps: int,
    epochs: int = 1,
    end_ids: tuple[int, ...] = (),
    pad_id: int = 0,
):
    """(start, step) of online reinforcement learning, as `loops.online` runs it, to be scanned.

    Args:
        model: decoder of policy, reference and the critic's trunk.
        sampling: of the rollouts.
        judge: (rollout, *known) -> the fields of `Scored` that rewards give.
        optim: of policy and critic.
        steps: rollouts of the whole run.
        epochs: passes over a rollout, one update each.
        end_ids, pad_id: of the vocabulary.

    Returns:
        start(objective, params) -> state, with reference, critic and adaptive β where they are read
        step(objective, state, tokens_PL, id_P, key, *known) -> (state, Batch)
    """
    tx = make_optimizer(optim, steps * epochs)
    shared = dict(temperature=sampling.trainer_temperature, critic_model=model)
    sample = make_sampler(model, sampling, end_ids=end_ids, pad_id=pad_id)
    score = make_score(model, **shared)
    update = make_update(model, tx, critic_tx=tx, **shared)

    @jax.jit
    def start(objective, params):
        critic = None
        if objective.needs_critic:
            critic = {"trunk": params, "head": init_scalar_head(model.config.d_model)}
        adapts = objective.reward_kl is not None and objective.reward_kl.controller is not None
        return init_state(
            params,
            tx,
            with_reference=True,
            critic=critic,
            critic_tx=tx,
            reward_kl_coef=objective.reward_kl.coef if adapts else None,
        )

    def step(objective, state, tokens_PL, id_P, key, *known):
        rollout = sample(state.policy, tokens_PL, jnp.ones(tokens_PL.shape, bool), id_P, key)
        values = score(
            state.policy,
            state.reference,
            state.critic.params if objective.needs_critic else None,
            rollout,
        )
        scores = judge(rollout, *known)
        batch, _ = label(objective_now(objective, state), rollout, scores, values)
        kl_BT = values["logp_old_BT"] - values["logp_ref_BT"]
        kl = jnp.mean(masked_sum(kl_BT, rollout.mask_BT, axis=1))
        state = control_reward_kl(state, objective, kl)
        # a scan and not a Python loop: the update is compiled once, however many epochs
        state, _ = jax.lax.scan(
            lambda state, _: (update(state, objective, batch)[0], None), state, None, epochs
        )
        state = replace(state, step=state.step + 1)
        return state, Batch(rollout=rollout, score_B=scores["score_BC"][:, 0], kl=kl)

    return start, step


def outcome(score_B: Array) -> dict[str, Array]:
    """The fields of `Scored` of one reward function that applies to every row."""
    return {"score_BC": score_B[:, None], "valid_BC": jnp.ones((score_B.shape[0], 1), bool)}
