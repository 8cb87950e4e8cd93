"""Metrics of micro-batches add up to those of the batch."""

import jax
import jax.numpy as jnp
import numpy as np

from rlhf_jax.ops.totals import Peak, Share, add_metrics, metric_values, total


def test_a_mean_over_parts_is_pooled_not_averaged():
    # one token of 10 and nine tokens of 0: 1, not 5
    first = {"x": total(jnp.array([10.0]), jnp.ones(1, bool))}
    second = {"x": total(jnp.zeros(9), jnp.ones(9, bool))}
    assert metric_values(add_metrics(first, second)) == {"x": 1.0}


def test_each_kind_adds_its_own_way_under_jit():
    def part(x):
        return {
            "mean": total(x, x > 0),
            "share": Share(part=jnp.sum(x)),
            "peak": Peak(peak=jnp.max(x)),
        }

    x = jnp.array([1.0, -5.0, 3.0, 2.0])
    added = jax.jit(lambda x: add_metrics(part(x[:1]), part(x[1:])))(x)
    expected = {"mean": 2.0, "share": 1.0, "peak": 3.0}
    assert {k: float(v) for k, v in metric_values(added).items()} == expected


def test_nothing_counted_is_zero_and_junk_is_not_read():
    metric = total(jnp.array([jnp.nan]), jnp.zeros(1, bool))
    assert metric.value() == 0 and np.isfinite(metric.sum)
