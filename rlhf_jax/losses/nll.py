"""Negative log-likelihood of the preferred side, and what it is divided by.

A reduction takes (length_B, weight_B), the counted tokens of the preferred sides and the pairs'
weights (which sum to 1), and gives the weight of each pair's −Σ_t log π(y_w,t). It is taken once
from the whole batch: any cut then adds up.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rlhf_jax.bind import Bound, bind
from rlhf_jax.losses.preference import tokens
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import pytree


def summed(length_B: Array, weight_B: Array) -> Array:
    """−Σ_t log π(y_w,t), the mean over pairs: long answers weigh more."""
    return weight_B


def averaged(length_B: Array, weight_B: Array) -> Array:
    """−(1/|y_w|)·Σ_t log π(y_w,t), the mean over pairs (2404.19733, eq. 1)."""
    return weight_B / tokens(length_B)


def token_mean(length_B: Array, weight_B: Array) -> Array:
    """−Σ log π over all preferred tokens of the batch / their number: what TRL's `sft` term is."""
    return weight_B / jnp.maximum(jnp.sum(weight_B * length_B), 1e-9)


@pytree
class NLL:
    """Negative log-likelihood of the preferred side, added to a preference loss.

    Raises:
        ConfigError: what `settle` and `check_calls` raise.
    """

    coef: float
    """≥ 0."""
    reduce: Bound = bind(averaged)
    """summed, averaged or token_mean."""

    def __post_init__(self):
        settle(self, "NLL ")
        check_calls(self, "NLL ", reduce=("length_B", "weight_B"))
