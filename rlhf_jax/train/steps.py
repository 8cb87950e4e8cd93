"""One optimizer update: log-probs, loss, summed gradients, clip, step. Pure, jitted, donated."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array, lax
from jax.sharding import Mesh

from rlhf_jax.algorithms.objective import policy_loss
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import token_mean, weighted_sum
from rlhf_jax.losses.sft import next_token_loss
from rlhf_jax.models.branches import read_stem
from rlhf_jax.ops.logprobs import shift_right
from rlhf_jax.ops.totals import total
from rlhf_jax.parallel.sharding import constrain
from rlhf_jax.train.microbatch import summed_gradients
from rlhf_jax.train.optim import read_learning_rate
from rlhf_jax.train.packed import Packed, branch_logprobs, branch_values, pack, packed_gradients
from rlhf_jax.train.scoring import forward_logprobs, forward_values
from rlhf_jax.train.state import CriticState, TrainState, jit_update, with_base
from rlhf_jax.types import SFTBatch, replace


def make_update(
    model,
    tx: optax.GradientTransformation,
    *,
    temperature: float,
    micro_rows: int | None = None,
    critic_model=None,
    critic_tx: optax.GradientTransformation | None = None,
    mesh: Mesh | None = None,
) -> Callable[..., tuple[TrainState, dict]]:
    """update(state, objective, batch, layout=None) -> (state, metrics) for every policy gradient.

    θ ← θ − tx(Σ_parts ∇ policy_loss(part)); the weight of every token is `objective.aggregate`
    of the whole batch, taken before the batch is cut, so the cut changes nothing. The objective
    is an argument: its numbers are traced, a schedule or an adaptive β compiles nothing anew.

    Args:
        model: the policy's decoder.
        tx: the policy's optimizer, any optax transformation.
        temperature: the sampler's; log-probs are of softmax(z/τ).
        micro_rows: rows of one forward and backward pass; None: all.
        critic_model: decoder of the critic's trunk; read where the state has a critic.
        critic_tx: the critic's optimizer, likewise.
        mesh: keeps rows, gradients and the new state on it.

    Returns:
        A jitted function that donates the state; given a `Layout` of the batch too, it runs each
        prompt once for its responses, which gives the same gradient to rounding, and only the
        responses that the layout places: the rest must have no gradient, and no metric sees them
        (`micro_rows` is the layout's then). A loss or gradient that is not finite, or a batch
        that counts no token, leaves parameters and optimizer state as they were. Metrics: those of
        `policy_loss` as additive records; `grad_norm` (before clipping), `critic_grad_norm`,
        `learning_rate`, `updates`, `skipped` (not finite), `rows_bad_B` (True for the rows to
        blame of a skipped update). See `train.metrics`.

    Raises (when first called):
        ConfigError: `micro_rows` does not divide, the objective reads what the batch lacks, or it
            has a value term and there is no critic.
    """

    options = dict(temperature=temperature, with_entropy=True, mesh=mesh)

    def of_rows(params, part, objective):
        batch, weight_BT = part
        rows = (batch.tokens_BT, batch.attend_BT)
        logp_BT, entropy_BT = forward_logprobs(model, params["policy"], *rows, **options)
        value_BT = None
        if "critic" in params:
            value_BT = shift_right(forward_values(critic_model, params["critic"], *rows, mesh=mesh))
        return _judged(objective, batch, weight_BT, logp_BT, entropy_BT, value_BT)

    @jit_update
    def update(state, objective, batch, layout=None):
        parts = (batch, objective.aggregate(batch.mask_BT, batch.group_B))
        packing = None
        if layout is not None:
            packed = pack(layout, batch.tokens_BT, batch.attend_BT, mesh)
            packing = *_packed_loss(objective, parts, packed, model, critic_model, options), packed
        return guarded_step(
            state,
            partial(of_rows, objective=objective),
            parts,
            {"policy": tx, "critic": critic_tx},
            with_critic=objective.value is not None,
            micro_rows=micro_rows,
            mesh=mesh,
            packing=packing,
        )

    return update


def _packed_loss(objective, parts, packed, model, critic_model, options):
    """`read` and `loss_fn` of `packed_gradients`: a block's part of the loss of `make_update`."""

    def read(params, prompt):
        stems = {"policy": read_stem(model, params["policy"], *prompt)}
        if "critic" in params:
            stems["critic"] = read_stem(critic_model, params["critic"]["trunk"], *prompt)
        return stems

    def of_block(params, stems, e, step):
        place = (packed.prompt(e), packed.block(e, step))
        out = branch_logprobs(model, params["policy"], stems["policy"], *place, **options)
        logp_BT, entropy_BT = (packed.to_rows(x_PXR, e, step) for x_PXR in out)
        value_BT = None
        if "critic" in params:
            value_PXR, _ = branch_values(critic_model, params["critic"], stems["critic"], *place)
            value_BT = packed.to_rows(value_PXR, e, step)
        here_B1 = packed.here(e, step)[:, None]
        batch, weight_BT = parts
        batch = replace(batch, mask_BT=batch.mask_BT & here_B1)
        weight_BT = jnp.where(here_B1, weight_BT, 0)
        return _judged(objective, batch, weight_BT, logp_BT, entropy_BT, value_BT)

    return read, of_block


def _judged(objective, batch, weight_BT, logp_BT, entropy_BT, value_BT):
    """(loss, (metrics, rows to blame)) of rows, from what the models say of their tokens."""
    if objective.entropy is None:
        entropy_BT = lax.stop_gradient(entropy_BT)  # reported only; its backward pass is free
    loss, metrics = policy_loss(
        objective, logp_BT, batch, weight_BT, entropy_BT=entropy_BT, value_BT=value_BT
    )
    return loss, (metrics, _bad_rows(batch, logp_BT, value_BT))


def make_sft_update(
    model,
    tx: optax.GradientTransformation,
    *,
    micro_rows: int | None = None,
    mesh: Mesh | None = None,
) -> Callable[[TrainState, SFTBatch], tuple[TrainState, dict]]:
    """update(state, batch) -> (state, metrics): mean next-token loss over the counted tokens.

    Arguments, donation and the non-finite rule as in `make_update`; temperature 1. Metrics:
    `loss` (nats a token) and those common to every update.
    """

    def loss_fn(params, part):
        batch, weight_BT = part
        logp_BT, _ = forward_logprobs(
            model,
            params["policy"],
            batch.tokens_BT,
            batch.attend_BT,
            temperature=1.0,
            with_entropy=False,
            segment_BT=batch.segment_BT,
            mesh=mesh,
        )
        loss_BT = next_token_loss(logp_BT)
        loss = weighted_sum(loss_BT, weight_BT)
        metrics = lax.stop_gradient({"loss": total(loss_BT, batch.mask_BT)})
        return loss, (metrics, _bad_rows(batch, logp_BT))

    @jit_update
    def update(state, batch):
        rows = jnp.arange(batch.mask_BT.shape[0])
        weight_BT = token_mean(batch.mask_BT, rows)
        return guarded_step(
            state,
            loss_fn,
            (batch, weight_BT),
            {"policy": tx},
            with_critic=False,
            micro_rows=micro_rows,
            mesh=mesh,
        )

    return update


def guarded_step(
    state: TrainState,
    loss_fn: Callable,
    parts: tuple[Any, Array],
    txs: dict[str, optax.GradientTransformation | None],
    *,
    with_critic: bool,
    micro_rows: int | None,
    mesh: Mesh | None,
    packing: tuple[Callable, Callable, Packed] | None = None,
) -> tuple[TrainState, dict]:
    """Gradients of the whole batch, then one guarded step of each optimizer; the core of an update.

    Nothing moves where the loss or a gradient is not finite, or where no weight differs from 0.

    Args:
        state: policy, critic and their optimizers' states.
        loss_fn: as `summed_gradients` takes it; params are {"policy"} and, with it, {"critic"},
            whole, as models take them; the gradient is of what the state trains of them.
        parts: (batch, its weights), both leading with rows; the weights of the whole batch, taken
            before it is cut.
        txs: optimizers of "policy" and "critic".
        with_critic: the loss reads and trains the critic.
        micro_rows: rows of one forward and backward pass; None: all.
        mesh: keeps gradients and the new state on it.
        packing: what `packed_gradients` takes, to be asked in the place of `loss_fn`.

    Returns:
        the state with another policy, critic, optimizer state and count of updates; metrics, those
        of `loss_fn` and the ones that `make_update` names.
    """
    params, opt_states = {"policy": state.policy}, {"policy": state.opt_state}
    if with_critic:
        if state.critic is None or txs["critic"] is None:
            raise ConfigError(
                "the objective has a value term: give init_state a critic and both init_state and "
                "make_update a critic_tx"
            )
        params["critic"] = state.critic.params
        opt_states["critic"] = state.critic.opt_state
    whole = partial(with_base, state.base)
    if packing is None:
        loss, grads, metrics, bad_B = summed_gradients(
            lambda trained, part: loss_fn(whole(trained), part),
            params,
            parts,
            micro_rows=micro_rows,
            mesh=mesh,
        )
    else:
        read, of_block, packed = packing
        loss, grads, metrics, bad_B = packed_gradients(
            lambda trained, prompt: read(whole(trained), prompt),
            lambda trained, *place: of_block(whole(trained), *place),
            params,
            packed,
            mesh=mesh,
        )
    norms = {name: optax.global_norm(grads[name]) for name in params}
    finite = jnp.isfinite(loss) & jnp.all(jnp.isfinite(jnp.stack(list(norms.values()))))
    # a batch that counts no token is no step either: momentum alone would still move the policy
    apply = finite & jnp.any(parts[1] != 0)

    new = {}
    for name in params:
        stepped = _apply(txs[name], grads[name], opt_states[name], params[name])
        old = (params[name], opt_states[name])
        kept = jax.tree.map(lambda a, b: jnp.where(apply, a, b), stepped, old)
        new[name] = constrain(mesh, kept)
    policy, opt_state = new["policy"]
    critic = state.critic
    if with_critic:
        critic = CriticState(params=new["critic"][0], opt_state=new["critic"][1])
        metrics["critic_grad_norm"] = norms["critic"]
    metrics |= {
        "grad_norm": norms["policy"],
        "updates": state.updates + apply,
        "skipped": ~finite,
        "rows_bad_B": bad_B & ~finite,
    }
    rate = read_learning_rate(opt_state)
    if rate is not None:
        metrics["learning_rate"] = rate
    state = replace(
        state, policy=policy, opt_state=opt_state, critic=critic, updates=metrics["updates"]
    )
    return state, metrics


def _apply(tx, grads, opt_state, params):
    """(new parameters, new optimizer state) in the dtypes of the old."""
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
    deltas, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, deltas), opt_state


def _bad_rows(batch: Any, logp_BT: Array, value_BT: Array | None = None) -> Array:
    """True where a row holds a number that is not finite on a counted token."""
    labels = [logp_BT, value_BT]
    for name in ("advantage_BT", "logp_old_BT", "logp_ref_BT", "correction_BT", "return_BT"):
        labels.append(getattr(batch, name, None))
    bad_BT = jnp.zeros(batch.mask_BT.shape, bool)
    for x_BT in labels:
        if x_BT is not None:
            bad_BT = bad_BT | ~jnp.isfinite(x_BT)
    return jnp.any(bad_BT & batch.mask_BT, axis=1)
