"""Sums with their counts: metrics that add up exactly over micro-batches, devices and processes."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.types import pytree


@pytree
class Total:
    """A sum and the number of entries in it; two add field by field, `mean` divides once."""

    sum: Array
    count: Array

    def __add__(self, other: Total) -> Total:
        return Total(sum=self.sum + other.sum, count=self.count + other.count)

    def value(self) -> Array:
        return self.sum / jnp.maximum(self.count, 1.0)


@pytree
class Share:
    """A part of a sum whose weights were taken from the whole batch: parts add, nothing divides."""

    part: Array

    def __add__(self, other: Share) -> Share:
        return Share(part=self.part + other.part)

    def value(self) -> Array:
        return self.part


@pytree
class Peak:
    """A maximum: two combine to the larger."""

    peak: Array

    def __add__(self, other: Peak) -> Peak:
        return Peak(peak=jnp.maximum(self.peak, other.peak))

    def value(self) -> Array:
        return self.peak


def total(x: Array, mask: Array) -> Total:
    """The `Total` of the counted entries of `x`."""
    return Total(sum=masked_sum(x, mask), count=jnp.sum(mask, dtype=jnp.float32))


def add_metrics(a: dict, b: dict) -> dict:
    """The metrics of two micro-batches as those of both; the same names in each."""
    return {name: a[name] + b[name] for name in a}


def metric_values(metrics: dict) -> dict:
    """One number a name, after all micro-batches have been added."""
    return {name: metric.value() for name, metric in metrics.items()}
