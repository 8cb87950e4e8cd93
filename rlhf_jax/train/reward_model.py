"""A reward model's update, and its scores of ranked completions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.algorithms.reward_model import RewardObjective, reward_loss
from rlhf_jax.losses.bradley_terry import prompt_weight
from rlhf_jax.models.reward import forward_scores
from rlhf_jax.train.microbatch import map_rows
from rlhf_jax.train.state import TrainState, jit_update
from rlhf_jax.train.steps import guarded_step
from rlhf_jax.types import RankedBatch


def score_sides(
    model, params: Any, tokens_BST: Array, attend_BST: Array, *, mesh: Mesh | None = None
) -> Array:
    """score_BS: all completions of all prompts in one forward pass of B·S rows."""
    rows, sides, columns = tokens_BST.shape
    flat = [x.reshape(rows * sides, columns) for x in (tokens_BST, attend_BST)]
    return forward_scores(model, params, *flat, mesh=mesh).reshape(rows, sides)


def make_reward_update(
    model,
    tx: optax.GradientTransformation,
    *,
    micro_rows: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, RewardObjective, RankedBatch], tuple[TrainState, dict]]:
    """update(state, objective, batch) -> (state, metrics); `state.policy` is {"trunk", "head"}.

    The mean over the prompts that have something to compare: a prompt whose completions all tie,
    or whose completions but one are missing, is as if it were not there.

    Args:
        model: decoder of the trunk.
        tx: any optax transformation.
        micro_rows: prompts of one forward and backward pass, each with its S completions; None:
            all.
        mesh: keeps rows, gradients and the new state on it.

    Returns:
        A jitted function that donates the state; non-finite numbers as in `make_update`. Metrics:
        those of `reward_loss` and those common to every update.
    """

    def loss_fn(params, part, objective):
        batch, weight_B = part
        score_BS = score_sides(
            model, params["policy"], batch.tokens_BST, batch.attend_BST, mesh=mesh
        )
        loss, metrics = reward_loss(objective, score_BS, batch, weight_B)
        bad_B = jnp.any(~jnp.isfinite(score_BS) & batch.valid_BS, axis=1)
        return loss, (metrics, bad_B)

    @jit_update
    def update(state, objective, batch):
        return guarded_step(
            state,
            partial(loss_fn, objective=objective),
            (batch, prompt_weight(batch.rank_BS, batch.valid_BS)),
            {"policy": tx},
            with_critic=False,
            micro_rows=micro_rows,
            mesh=mesh,
        )

    return update


def make_reward_score(
    model, *, micro_rows: int | None = None, mesh: Mesh | None = None
) -> Callable[[Any, Array, Array], Array]:
    """score(params, tokens_BST, attend_BST) -> score_BS, jitted; arguments as in the update."""

    @jax.jit
    def score(params, tokens_BST, attend_BST):
        def rows(part):
            return score_sides(model, params, *part, mesh=mesh)

        return map_rows(rows, (tokens_BST, attend_BST), micro_rows=micro_rows, mesh=mesh)

    return score
