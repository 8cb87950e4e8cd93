"""The one record that training changes, and that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.lora import attach
from rlhf_jax.parallel.sharding import sharding_tree
from rlhf_jax.types import pytree, replace


@pytree
class CriticState:
    """`params`: {"trunk": a decoder's parameters, "head": a scalar head's}, and its optimizer."""

    params: Any
    opt_state: Any


@pytree
class Frozen:
    """The parameters that a run with adapters does not train.

    policy: those of the decoder; of a reward model {"trunk": a decoder's}
    critic: those of the critic's trunk; None: the policy's
    scale: of every adapter's update
    """

    policy: Any
    critic: Any = None
    scale: float = field(metadata={"static": True})


@pytree
class TrainState:
    """Everything that a step reads and writes. What a run does not use is None.

    `policy`, `reference` and `critic` hold what is trained, or a copy of it: all parameters, or
    adapters alone, and then `base` holds the parameters that stay as they are. It is never written,
    donated or saved. `policy_of`, `reference_of` and `critic_of` give what a model takes, either
    way; a reference is the adapters of an earlier time on the same base.

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
    base: Frozen | None = None


def policy_of(state: TrainState) -> Any:
    """The policy's parameters, as its model takes them."""
    return with_base(state.base, {"policy": state.policy})["policy"]


def reference_of(state: TrainState) -> Any:
    """The reference's parameters; None where the state holds none."""
    if state.reference is None:
        return None
    return with_base(state.base, {"policy": state.reference})["policy"]


def critic_of(state: TrainState) -> Any:
    """{"trunk", "head"} of the critic."""
    return with_base(state.base, {"critic": state.critic.params})["critic"]


def with_base(base: Frozen | None, trained: dict[str, Any]) -> dict[str, Any]:
    """{"policy", "critic"} (either may be missing) with the frozen parameters beside the adapters;
    unchanged where there are none. Nothing is computed or copied."""
    if base is None:
        return trained
    trunk = base.policy if base.critic is None else base.critic
    frozen = {"policy": base.policy, "critic": {"trunk": trunk}}
    return {name: attach(frozen[name], part, base.scale) for name, part in trained.items()}


def jit_update(update: Callable) -> Callable:
    """jit of update(state, …) -> (state, metrics) that donates the state, all but its base.

    The base goes in as an argument and does not come out: no copy of it is made, and whoever else
    holds it (the loaded model, a critic that shares it) goes on holding it.
    """

    def inner(base, state, *args):
        state, metrics = update(replace(state, base=base), *args)
        return replace(state, base=None), metrics

    jitted = jax.jit(inner, donate_argnums=1)

    def outer(state, *args):
        new, metrics = jitted(state.base, replace(state, base=None), *args)
        return replace(new, base=state.base), metrics

    outer.lower = lambda state, *args: jitted.lower(state.base, replace(state, base=None), *args)
    outer._cache_size = jitted._cache_size
    return outer


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
    base: Frozen | None = None,
    mesh: Mesh | None = None,
) -> TrainState:
    """Step 0: own copies of what is trained, fresh optimizer state, all on the sharding table.

    Args:
        policy: decoder parameters, or adapters. Copied: an update donates the state's buffers.
        tx: the policy's optimizer.
        with_reference: keep a frozen copy of the policy as the reference.
        critic: {"trunk", "head"} parameters, or None.
        critic_tx: the critic's optimizer; asked for with `critic`.
        reward_kl_coef: first adaptive β, or None where β is fixed.
        base: where `policy` and the critic's trunk are adapters, what they adapt. Not copied.
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
    state = jax.jit(build, out_shardings=shardings)(policy, critic)
    return replace(state, base=base)


def refresh_reference(state: TrainState, mix: float = 1.0) -> TrainState:
    """π_ref ← m·π + (1 − m)·π_ref in the parameters; m = 1 copies the policy, to the bit.

    m = 1 is the renewed reference of GRPO's outer loop (2402.03300, Algorithm 1, line 2); m < 1
    the moving average of trust-region alignment (TR-DPO's soft update, 2404.09656, eq. 7).

    Args:
        state: holds a reference.
        mix: m in (0, 1].

    Raises:
        ConfigError: m < 1 and adapters: the mean of A and the mean of B do not multiply to the mean
            of A·B.
    """
    if mix < 1.0 and state.base is not None:
        raise ConfigError(f"a reference of adapters is renewed whole: mix={mix} must be 1")
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
