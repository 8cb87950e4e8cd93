"""The one record that training changes, and that a checkpoint holds."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.parallel.sharding import sharding_tree
from rlhf_jax.types import pytree, replace


@pytree
class CriticState:
    """`params`: {"trunk": a decoder's parameters, "head": a scalar head's}, and its optimizer."""

    params: Any
    opt_state: Any


@pytree
class TrainState:
    """Everything that a step reads and writes. What a run does not use is None.

    `step` counts finished steps of the loop (rollouts), `updates` applied optimizer updates; a
    skipped non-finite update does not count. Learning rates follow `updates`; evaluations, saves
    and the renewal of the reference follow `step`, and so does `reward_kl_coef`, the adaptive β of
    the KL in the reward (None where β is fixed), which moves once a rollout.
    """

    step: Array
    updates: Array
    policy: Any
    opt_state: Any
    reference: Any = None
    critic: CriticState | None = None
    reward_kl_coef: Array | None = None


def init_params(model, key: Array, *, mesh: Mesh | None = None) -> Any:
    """Random parameters of a decoder, made where they will live: never whole on one device."""
    shardings = None if mesh is None else sharding_tree(mesh, model.abstract())
    return jax.jit(model.init, out_shardings=shardings)(key)


def init_state(
    policy: Any,
    tx: optax.GradientTransformation,
    *,
    with_reference: bool = False,
    critic: Any = None,
    critic_tx: optax.GradientTransformation | None = None,
    reward_kl_coef: float | None = None,
    mesh: Mesh | None = None,
) -> TrainState:
    """Step 0: own copies of the parameters, fresh optimizer state, all on the sharding table.

    Args:
        policy: decoder parameters. Copied: an update donates the state's buffers.
        tx: the policy's optimizer.
        with_reference: keep a frozen copy of the policy as the reference.
        critic: {"trunk", "head"} parameters, or None.
        critic_tx: the critic's optimizer; asked for with `critic`.
        reward_kl_coef: first adaptive β, or None where β is fixed.
        mesh: where the state lives; None leaves it on the parameters' device.

    Raises:
        ConfigError: an array that the sharding table does not know, or that does not divide.
    """

    def build(policy, critic):
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            updates=jnp.zeros((), jnp.int32),
            policy=_copy(policy),
            opt_state=tx.init(policy),
            reference=_copy(policy) if with_reference else None,
            critic=None
            if critic is None
            else CriticState(params=_copy(critic), opt_state=critic_tx.init(critic)),
            reward_kl_coef=None if reward_kl_coef is None else jnp.float32(reward_kl_coef),
        )

    shardings = None
    if mesh is not None:
        shardings = sharding_tree(mesh, jax.eval_shape(build, policy, critic))
    return jax.jit(build, out_shardings=shardings)(policy, critic)


def refresh_reference(state: TrainState, mix: float = 1.0) -> TrainState:
    """π_ref ← m·π + (1 − m)·π_ref in the parameters; m = 1 copies the policy, to the bit.

    m = 1 is the renewed reference of GRPO's outer loop (2402.03300, Algorithm 1, line 2); m < 1
    the moving average of trust-region alignment (TR-DPO's soft update, 2404.09656, eq. 7).

    Args:
        state: holds a reference.
        mix: m in (0, 1].
    """
    if mix == 1.0:
        return replace(state, reference=_copy(state.policy))
    mixed = jax.tree.map(
        lambda new, old: (mix * new + (1.0 - mix) * old).astype(old.dtype),
        state.policy,
        state.reference,
    )
    return replace(state, reference=mixed)


def abstract_state(state: TrainState) -> TrainState:
    """Shapes, dtypes and shardings without the arrays: what a restore is told to produce."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


def objective_now(objective: Any, state: TrainState) -> Any:
    """The objective with the state's adaptive β in its reward KL; the same one where β is fixed."""
    if state.reward_kl_coef is None:
        return objective
    return replace(objective, reward_kl=replace(objective.reward_kl, coef=state.reward_kl_coef))


def control_reward_kl(state: TrainState, objective: Any, kl: Array) -> TrainState:
    """β ← controller(β, kl) where the objective's reward KL has one.

    Args:
        state: holds β.
        objective: `objective.reward_kl.controller(coef, kl)` gives the next β.
        kl: measured KL to the reference, nats per completion.
    """
    if state.reward_kl_coef is None:
        return state
    old = state.reward_kl_coef
    coef = jnp.asarray(objective.reward_kl.controller(old, kl), jnp.float32)
    # a step that is skipped for its numbers must not spoil β for all that follow
    return replace(state, reward_kl_coef=jnp.where(jnp.isfinite(coef), coef, old))


def _copy(tree: Any) -> Any:
    # jit hands an untouched input on as an output, and then two fields would share one buffer,
    # which donation refuses.
    return jax.tree.map(jnp.copy, tree)
