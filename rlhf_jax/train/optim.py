"""AdamW with a warm-up and a decay; the only file, with its neighbours in `train`, on optax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rlhf_jax.errors import check_choice, check_number
from rlhf_jax.parts import check_kinds

SCHEDULES = ("constant", "linear", "cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig:
    """AdamW (arXiv:1711.05101) after clipping by the global norm."""

    learning_rate: float = 1e-5
    """The peak, reached at the end of the warm-up."""
    schedule: str = "constant"
    """What follows the warm-up: constant, linear or cosine."""
    warmup_updates: int = 0
    """Optimizer updates of linear warm-up (not rollouts: with 4 updates a rollout, 4 count)."""
    end_fraction: float = 0.0
    """Where linear and cosine end, as a fraction of the peak."""
    weight_decay: float = 0.0
    """Decoupled; matrices only: norm scales and biases do not decay."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    max_grad_norm: float | None = 1.0
    """Gradients of a larger global norm are scaled down to it. None: no clipping."""

    def __post_init__(self):
        check_kinds(self, "optim.")
        check_number("optim.learning_rate", self.learning_rate, low=0)
        check_choice("optim.schedule", self.schedule, SCHEDULES)
        check_number("optim.warmup_updates", self.warmup_updates, low=0)
        check_number("optim.end_fraction", self.end_fraction, low=0, high=1)
        check_number("optim.weight_decay", self.weight_decay, low=0)
        check_number("optim.b1", self.b1, low=0, high=1, open_high=True)
        check_number("optim.b2", self.b2, low=0, high=1, open_high=True)
        check_number("optim.eps", self.eps, low=0, open_low=True)
        if self.max_grad_norm is not None:
            check_number("optim.max_grad_norm", self.max_grad_norm, low=0, open_low=True)


class RateState(NamedTuple):
    """`count`: updates so far. `learning_rate`: what the latest of them used (for the log)."""

    count: jax.Array
    learning_rate: jax.Array


def make_optimizer(cfg: OptimConfig, total_updates: int) -> optax.GradientTransformation:
    """Clip, Adam moments, decoupled decay, minus the scheduled rate.

    Args:
        cfg: see `OptimConfig`.
        total_updates: optimizer updates of the whole run, where a decay ends; at least 1.

    Raises:
        ConfigError: `total_updates` < 1.
    """
    check_number("total_updates", total_updates, low=1)
    parts = [optax.scale_by_adam(b1=cfg.b1, b2=cfg.b2, eps=cfg.eps)]
    if cfg.max_grad_norm is not None:
        parts.insert(0, optax.clip_by_global_norm(cfg.max_grad_norm))
    if cfg.weight_decay:
        parts.append(optax.add_decayed_weights(cfg.weight_decay, mask=_decays))
    return optax.chain(*parts, _scale_by_rate(make_schedule(cfg, total_updates)))


def make_schedule(cfg: OptimConfig, total_updates: int) -> Callable[[Any], jax.Array]:
    """Learning rate of update k = 0, 1, ….

    warm-up: peak·(k + 1)/w for k < w, so that the first update already moves and update w − 1
    runs at the peak. Then, with u = (k − w)/(total − w) in [0, 1] and e = end_fraction:
    linear peak·(1 − (1 − e)·u); cosine peak·(e + (1 − e)·(1 + cos πu)/2); constant peak.
    k counts optimizer updates, never rollouts: a rollout cut into 4 updates advances it by 4.
    """
    warm, end = cfg.warmup_updates, cfg.end_fraction

    def schedule(count):
        k = jnp.asarray(count, jnp.float32)
        u = jnp.clip((k - warm) / max(total_updates - warm, 1), 0.0, 1.0)
        if cfg.schedule == "linear":
            after = 1.0 - (1.0 - end) * u
        elif cfg.schedule == "cosine":
            after = end + (1.0 - end) * 0.5 * (1.0 + jnp.cos(jnp.pi * u))
        else:
            after = jnp.ones_like(u)
        return cfg.learning_rate * jnp.where(k < warm, (k + 1.0) / max(warm, 1), after)

    return schedule


def read_learning_rate(opt_state: Any) -> jax.Array | None:
    """The rate that the latest update used; None where the optimizer does not record one."""
    return optax.tree_utils.tree_get(opt_state, "learning_rate", default=None)


def _scale_by_rate(schedule) -> optax.GradientTransformation:
    def init(params):
        return RateState(count=jnp.zeros((), jnp.int32), learning_rate=jnp.zeros(()))

    def update(grads, state, params=None):
        rate = schedule(state.count)
        scaled = jax.tree.map(lambda g: -rate.astype(g.dtype) * g, grads)
        return scaled, RateState(count=state.count + 1, learning_rate=rate)

    return optax.GradientTransformation(init, update)


def _decays(params: Any) -> Any:
    """True for matrices, by the name's last part: norms and biases are pulled nowhere."""

    def leaf(path, _):
        name = jax.tree_util.keystr(path[-1:], simple=True)
        return not (name.startswith(("scale", "gain", "bias")) or name == "b")

    return jax.tree_util.tree_map_with_path(leaf, params)
