"""Running a `Layout`: each prompt once, then its responses over it, block by block.

Only tokens are moved. What the models say comes back to the rows of the batch, column by column,
and a block's part of the loss is that of the whole batch with every row masked that does not stand
in the block: ratios of whole responses, weights and metrics see what they always see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import Mesh

from rlhf_jax.models.branches import Stem, read_branches
from rlhf_jax.models.heads import scalar
from rlhf_jax.ops.logprobs import follow, shift_right, token_logprobs
from rlhf_jax.ops.totals import add_metrics
from rlhf_jax.parallel.sharding import constrain, constrain_rows
from rlhf_jax.train.layout import Layout


class Prompt(NamedTuple):
    """The prompts of one set."""

    tokens_PL: Array
    attend_PL: Array


class Block(NamedTuple):
    """Responses that are run together; `segment_PXR` is their row + 1, 0 where there is none."""

    tokens_PXR: Array
    attend_PXR: Array
    segment_PXR: Array

    @property
    def opens_PXR(self) -> Array:
        """True on the first token of every response."""
        before_PXR = jnp.pad(self.segment_PXR, ((0, 0), (0, 0), (1, 0)))[..., :-1]
        return (self.segment_PXR > 0) & (self.segment_PXR != before_PXR)


class Packed(NamedTuple):
    """The tokens of a batch where its layout runs them: E sets of P prompts, and their blocks."""

    layout: Layout
    prompts: Prompt  # [E, P, L]
    blocks: Block  # [E, P, all blocks, R]

    def prompt(self, e: Array) -> Prompt:
        """The prompts of set e."""
        return jax.tree.map(lambda x: x[e], self.prompts)

    def block(self, e: Array, step: Array) -> Block:
        """The blocks of set e that are run in this step."""
        size = self.layout.at_once
        return jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x[e], step * size, size, axis=1), self.blocks
        )

    def here(self, e: Array, step: Array) -> Array:
        """here_B: which rows of the batch stand in them."""
        layout = self.layout
        in_set_B = layout.slot_B // layout.prompt_EP.shape[1] == e
        return in_set_B & (layout.block_B // layout.at_once == step) & (layout.length_B > 0)

    def to_rows(self, x_PXR: Array, e: Array = 0, step: Array = 0) -> Array:
        """x_BT: what is said of tokens, back in the rows of the batch; 0 elsewhere.

        Args:
            x_PXR: of the blocks of set e in this step; or, of everything, [E·P, all blocks, R].
            e, step: where it is of.
        """
        layout = self.layout
        prompts, blocks, room = x_PXR.shape
        slot_B, block_B = layout.slot_B - e * prompts, layout.block_B - step * blocks
        known_B = (slot_B >= 0) & (slot_B < prompts) & (block_B >= 0) & (block_B < blocks)
        column_R = jnp.arange(room)[None]
        known_BR = known_B[:, None] & (column_R < layout.length_B[:, None])
        cell_BR = ((slot_B * blocks + block_B) * room + layout.start_B)[:, None] + column_R
        x_BR = jnp.where(known_BR, x_PXR.reshape(-1)[jnp.where(known_BR, cell_BR, 0)], 0)
        return jnp.pad(x_BR, ((0, 0), (layout.prompt_columns, 0)))


def pack(layout: Layout, tokens_BT: Array, attend_BT: Array, mesh: Mesh | None) -> Packed:
    """Move tokens to where the layout runs them; prompts and their blocks to the same devices."""
    length = layout.prompt_columns
    sets, prompts = layout.prompt_EP.shape
    rows, room = tokens_BT.shape[0], tokens_BT.shape[1] - length
    column_R = jnp.arange(room)[None]
    inside_BR = column_R < layout.length_B[:, None]
    cell = (
        (layout.slot_B // prompts)[:, None],
        (layout.slot_B % prompts)[:, None],
        jnp.where(inside_BR, layout.block_B[:, None], layout.blocks),  # beyond the last: dropped
        layout.start_B[:, None] + column_R,
    )

    def put(x_BR: Array) -> Array:
        return (
            jnp.zeros((sets, prompts, layout.blocks, room), x_BR.dtype)
            .at[cell]
            .set(x_BR, mode="drop")
        )

    number_BR = jnp.broadcast_to(jnp.arange(1, rows + 1)[:, None], (rows, room))
    return Packed(
        layout,
        *constrain_rows(
            mesh,
            (
                Prompt(
                    tokens_BT[:, :length][layout.prompt_EP],
                    attend_BT[:, :length][layout.prompt_EP].astype(bool),
                ),
                Block(
                    put(tokens_BT[:, length:]),
                    put(attend_BT[:, length:].astype(bool)),
                    put(number_BR),
                ),
            ),
            dim=1,
        ),
    )


def branch_logprobs(
    model,
    params: Any,
    stem: Stem,
    prompt: Prompt,
    block: Block,
    *,
    temperature: float,
    with_entropy: bool,
    mesh: Mesh | None,
) -> tuple[Array, Array | None]:
    """logp_PXR and entropy_PXR of a block's tokens, as `train.scoring.forward_logprobs` of rows."""
    p, x, r = block.tokens_PXR.shape
    hidden_PXRD = read_branches(model, params, stem, prompt.attend_PL, *block)
    before_BSD = _rows(follow(stem.last_PD, hidden_PXRD, block.opens_PXR))
    out = token_logprobs(
        constrain_rows(mesh, before_BSD),
        model.head(params),
        jnp.pad(block.tokens_PXR.reshape(p * x, r), ((0, 0), (1, 0))),
        temperature=temperature,
        softcap=model.config.logit_softcap,
        vocab=model.config.vocab_size,
        with_entropy=with_entropy,
    )
    return jax.tree.map(lambda x_BS: x_BS[:, 1:].reshape(p, x, r), out)


def branch_values(
    critic_model, params: Any, stem: Stem, prompt: Prompt, block: Block
) -> tuple[Array, Array]:
    """value_PXR before each token, and read_PXR, the head's reading at it."""
    hidden_PXRD = read_branches(critic_model, params["trunk"], stem, prompt.attend_PL, *block)
    before_BS = scalar(params["head"], _rows(follow(stem.last_PD, hidden_PXRD, block.opens_PXR)))
    read_BR = scalar(params["head"], _rows(hidden_PXRD))
    shape = block.tokens_PXR.shape
    return shift_right(before_BS)[:, 1:].reshape(shape), read_BR.reshape(shape)


def _rows(x_PXS: Array) -> Array:
    return x_PXS.reshape(-1, *x_PXS.shape[2:])


def map_blocks(read: Callable, fn: Callable, packed: Packed) -> Any:
    """fn of every block, back in the rows of the batch: arrays [B, T].

    Args:
        read: Prompt -> stems, run once a set.
        fn: (stems, prompt, block) -> arrays [P, X, R].
        packed: what is run.
    """
    layout = packed.layout
    sets, prompts = layout.prompt_EP.shape

    def of_step(e, step):
        prompt = packed.prompt(e)
        return fn(read(prompt), prompt, packed.block(e, step))

    def run_set(e, out):
        prompt = packed.prompt(e)
        stems = read(prompt)

        def run_step(step, out):
            new = fn(stems, prompt, packed.block(e, step))
            place = (e, 0, step * layout.at_once, 0)
            return jax.tree.map(lambda a, n: lax.dynamic_update_slice(a, n[None], place), out, new)

        return lax.fori_loop(0, layout.steps_E[e], run_step, out)

    def empty(like):
        room = like.shape[-1]
        return jnp.zeros((sets, prompts, layout.blocks, room), like.dtype)

    out = jax.tree.map(empty, jax.eval_shape(of_step, 0, 0))
    out = lax.fori_loop(0, jnp.count_nonzero(layout.steps_E), run_set, out)
    return jax.tree.map(lambda x: packed.to_rows(x.reshape(-1, *x.shape[2:])), out)


def packed_gradients(
    read: Callable, loss_fn: Callable, params: Any, packed: Packed, *, mesh: Mesh | None
) -> tuple[Array, Any, dict, Array]:
    """Σ over blocks of loss, float32 gradient and metrics; the packed `summed_gradients`.

    A set's prompts are run forward once; each step adds its own gradient and what it sends back to
    the stems, and the prompts are run backward once on the sum.

    Args:
        read: (params, Prompt) -> stems.
        loss_fn: (params, stems, e, step) -> (loss, (metrics, bad_B)), the part of the loss of the
            rows that stand there; parts must add up to the loss of the batch.
        params: differentiated.
        packed: what is run.
        mesh: gradients are kept on the parameters' shardings while they are added.

    Returns:
        loss, gradients, metrics, bad_B.
    """
    layout = packed.layout
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), tree)  # noqa: E731
    add = lambda a, b: jax.tree.map(lambda x, y: x + y.astype(x.dtype), a, b)  # noqa: E731

    def run_set(e, total):
        stems, send_back = jax.vjp(lambda p: read(p, packed.prompt(e)), params)

        def run_step(step, carry):
            (loss, grads, metrics, bad_B), d_stems = carry
            gradient = jax.value_and_grad(loss_fn, argnums=(0, 1), has_aux=True)
            (part, (new, worse_B)), (d_params, d_new) = gradient(params, stems, e, step)
            grads = constrain(mesh, add(grads, d_params))
            total = (loss + part, grads, add_metrics(metrics, new), bad_B | worse_B)
            return total, add(d_stems, d_new)

        steps = layout.steps_E[e]
        (loss, grads, *rest), d_stems = lax.fori_loop(0, steps, run_step, (total, zeros(stems)))
        # summed in float32, sent back in the dtype that the layers compute in
        (d_params,) = send_back(jax.tree.map(lambda d, x: d.astype(x.dtype), d_stems, stems))
        return loss, constrain(mesh, add(grads, d_params)), *rest

    def told(params):
        return loss_fn(params, read(params, packed.prompt(0)), 0, 0)[1]

    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(told, params))
    start = (jnp.zeros(()), constrain(mesh, zeros(params)), *nothing)
    return lax.fori_loop(0, jnp.count_nonzero(layout.steps_E), run_set, start)
