"""Every reduction is a weight: golden means, empty rows, and cuts that change nothing."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from reference import GROUP_B, MASK_BT, rows_of

from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import (
    constant_length,
    sequence_mean,
    sequence_sum,
    token_mean,
    weighted_sum,
)

AGGREGATES = [
    bind(token_mean),
    bind(sequence_mean),
    bind(sequence_sum),
    bind(constant_length, length=10),
]
LOSS_BT = np.random.default_rng(0).normal(size=MASK_BT.shape).astype(np.float32)


def ragged(rows, length):
    mask_BT = np.array([[t < len(row) for t in range(length)] for row in rows])
    loss_BT = np.array([list(row) + [np.nan] * (length - len(row)) for row in rows], np.float32)
    return loss_BT, mask_BT, np.zeros(len(rows), int)


def reduce(aggregate, loss_BT, mask_BT, group_B):
    return float(weighted_sum(loss_BT, aggregate(mask_BT, group_B)))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("aggregate", AGGREGATES, ids=repr)
def test_equals_the_mean_by_definition(aggregate, jit):
    def fn(loss_BT):
        return weighted_sum(loss_BT, aggregate(MASK_BT, GROUP_B))

    expected = getattr(reference, aggregate.fn.__name__)(
        rows_of(LOSS_BT), rows_of(MASK_BT), **aggregate.kw
    )
    np.testing.assert_allclose((jax.jit(fn) if jit else fn)(LOSS_BT), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "length", "limit", "expected"),
    [
        # 3 rows of losses 1, 2, −1 with 2, 4, 8 tokens: 2/14, (1+2−1)/3, 2/3, 2/(3·10)
        ([[1] * 2, [2] * 4, [-1] * 8], 8, 10, [0.142857, 0.666667, 0.666667, 0.066667]),
        # 22/6, (1.5+4+7)/3, 22/3, 22/(3·4)
        ([[1, 2], [3, 4, 5], [7]], 4, 4, [3.666667, 4.166667, 7.333333, 1.833333]),
        # a row with nothing counted: absent from sequence_mean, a drawn row in the sums
        ([[1, 3], []], 2, 2, [2.0, 2.0, 2.0, 1.0]),
        ([[], []], 2, 2, [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_golden(rows, length, limit, expected):
    batch = ragged(rows, length)
    values = [reduce(aggregate, *batch) for aggregate in AGGREGATES[:3]]
    values.append(reduce(bind(constant_length, length=limit), *batch))
    np.testing.assert_allclose(values, expected, atol=1e-6)


def test_weight_of_a_token_by_length():
    # two rows, lengths 2 and 8: short rows weigh more only in sequence_mean
    _, mask_BT, group_B = ragged([[0] * 2, [0] * 8], 8)
    weights = [fn(mask_BT, group_B) for fn in AGGREGATES]
    by_row = [(float(w_BT[0, 0]), float(w_BT[1, 0])) for w_BT in weights]
    expected = [(0.1, 0.1), (0.25, 0.0625), (0.5, 0.5), (0.05, 0.05)]
    np.testing.assert_allclose(by_row, expected, rtol=1e-6)


def test_empty_rows_do_not_count_in_sequence_mean_and_do_in_the_sums():
    """B′ counts rows with tokens, B all rows: pinned."""
    _, mask_BT, group_B = ragged([[0] * 4, []], 4)
    _, alone_BT, alone_B = ragged([[0] * 4], 4)
    np.testing.assert_array_equal(
        sequence_mean(mask_BT, group_B)[:1], sequence_mean(alone_BT, alone_B)
    )
    np.testing.assert_array_equal(
        sequence_sum(mask_BT, group_B)[:1] * 2, sequence_sum(alone_BT, alone_B)
    )


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=repr)
@pytest.mark.parametrize("cut", [[1] * 8, [2, 3, 3], [7, 1]])
def test_cuts_add_up(aggregate, cut):
    # token losses [1, 2, 3] and [10] cut in two: 4, never 6 (mean of means) or 12 (sum)
    weight_BT = aggregate(MASK_BT, GROUP_B)
    whole = weighted_sum(LOSS_BT, weight_BT)
    edges = np.cumsum([0, *cut])
    parts = [weighted_sum(LOSS_BT[a:b], weight_BT[a:b]) for a, b in itertools.pairwise(edges)]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-5)


def test_mask_settled_before_the_weight():
    # a truncated row that is masked away leaves 2 tokens: 2/2, not 2/5
    _, mask_BT, group_B = ragged([[1, 1], [1, 1, 1]], 3)
    kept_BT = mask_BT & np.array([[True], [False]])
    assert reduce(bind(token_mean), np.ones((2, 3), np.float32), kept_BT, group_B) == 1.0


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=repr)
def test_masked_positions_get_exactly_zero_gradient(aggregate):
    junk_BT = jnp.where(MASK_BT, LOSS_BT, jnp.nan)
    gradient_BT = jax.grad(lambda x: weighted_sum(x * x, aggregate(MASK_BT, GROUP_B)))(
        jnp.where(MASK_BT, junk_BT, 1e30)
    )
    assert not np.any(np.asarray(gradient_BT)[~MASK_BT])
    assert np.isfinite(weighted_sum(junk_BT, aggregate(MASK_BT, GROUP_B)))


def test_rows_of_one_length_make_the_means_equal():
    mask_BT, group_B = np.ones((3, 5), bool), np.zeros(3, int)
    for other in (bind(sequence_mean), bind(constant_length, length=5)):
        np.testing.assert_allclose(token_mean(mask_BT, group_B), other(mask_BT, group_B), rtol=1e-6)
