"""Cutting rows into micro-batches: the one place. Gradients are added, never averaged.

A batch of B rows lies in contiguous blocks on the row shards of the mesh. Micro-batch i of n
takes rows i, i + n, i + 2n, …: each device finds its share of every micro-batch among the rows
it already holds, so cutting moves nothing between devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.errors import check_divides
from rlhf_jax.ops.totals import add_metrics
from rlhf_jax.parallel.sharding import constrain, constrain_rows, row_shards


def check_micro_rows(rows: int, micro_rows: int | None, mesh: Mesh | None = None) -> int:
    """Rows of one micro-batch (None: all of them).

    Raises:
        ConfigError: it does not divide the rows, or the row shards do not divide it; names the
            nearest that do.
    """
    micro_rows = rows if micro_rows is None else micro_rows
    check_divides("rows of a batch", rows, "micro_rows", micro_rows)
    check_divides("micro_rows", micro_rows, "mesh data*fsdp", row_shards(mesh))
    return micro_rows


def split_rows(batch: Any, micro_rows: int, mesh: Mesh | None = None) -> Any:
    """Arrays [B, …] -> [n, micro_rows, …], row b = m·n + i to place m of micro-batch i."""
    parts = jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(micro_rows, -1, *x.shape[1:]), 0, 1), batch
    )
    return constrain_rows(mesh, parts, dim=1)


def merge_rows(parts: Any, mesh: Mesh | None = None) -> Any:
    """The inverse of `split_rows`."""
    batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:]), parts)
    return constrain_rows(mesh, batch)


def map_rows(fn: Callable, batch: Any, *, micro_rows: int | None, mesh: Mesh | None = None) -> Any:
    """fn(batch) for a row-wise `fn`, `micro_rows` rows at a time: peak memory is that of one cut.

    Args:
        fn: arrays that lead with rows -> arrays that lead with the same rows.
        batch: pytree of arrays [B, …].
        micro_rows: at most so many rows at a time; the largest number that divides is taken (a
            rollout and a batch of held-out answers need not divide alike). None: all.
        mesh: keeps the rows where they are.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    at_most, shards = min(micro_rows or rows, rows), row_shards(mesh)
    fits = [m for m in range(shards, at_most + 1, shards) if rows % m == 0]
    micro_rows = check_micro_rows(rows, fits[-1] if fits else at_most, mesh)
    if micro_rows == rows:
        return fn(batch)
    return merge_rows(jax.lax.map(fn, split_rows(batch, micro_rows, mesh)), mesh)


def summed_gradients(
    loss_fn: Callable,
    params: Any,
    batch: Any,
    *,
    micro_rows: int | None,
    mesh: Mesh | None = None,
) -> tuple[Array, Any, dict, Array]:
    """Σ over micro-batches of loss, float32 gradient and metrics.

    `loss_fn` must be a sum over rows whose weights were taken from the whole batch beforehand;
    then the result does not depend on the cut.

    Args:
        loss_fn: (params, part) -> (loss, (metrics, bad_B)); `metrics` as in `ops.totals`, `bad_B`
            True for rows that are to blame should the sum not be finite.
        params: differentiated.
        batch: pytree of arrays [B, …].
        micro_rows: rows of one forward and backward pass; None: all.
        mesh: gradients are kept on the parameters' shardings while they are added.

    Returns:
        loss, gradients, metrics, bad_B in the order of the rows.
    """
    rows = jax.tree.leaves(batch)[0].shape[0]
    micro_rows = check_micro_rows(rows, micro_rows, mesh)

    def gradients(part):
        (loss, aux), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, part)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        return loss, constrain(mesh, grads), aux

    if micro_rows == rows:
        loss, grads, (metrics, bad_B) = gradients(batch)
        return loss, grads, metrics, bad_B

    def add(total, part):
        loss, grads, aux = gradients(part)
        return jax.tree.map(jnp.add, total, (loss, grads)), aux

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
    start = (jnp.zeros(()), constrain(mesh, zero))
    parts = split_rows(batch, micro_rows, mesh)
    (loss, grads), (metrics, bad) = jax.lax.scan(add, start, parts)
    return loss, grads, _add_all(metrics), merge_rows(bad, mesh)


def _add_all(metrics: dict) -> dict:
    """Stacked metrics of all micro-batches -> those of the batch, each by its own addition."""
    first = jax.tree.map(lambda x: x[0], metrics)
    rest = jax.tree.map(lambda x: x[1:], metrics)
    return jax.lax.scan(lambda a, b: (add_metrics(a, b), None), first, rest)[0]
