import math
import warnings

import numpy as np
import pytest
from scipy import stats

from rlhf_jax.report.paired import difference, holm, mean_interval


def test_intervals_are_students():
    values = np.random.default_rng(0).normal(size=(5, 3))
    mean, half = mean_interval(values)
    low, high = stats.t.interval(0.95, 4, loc=values.mean(0), scale=stats.sem(values))
    np.testing.assert_allclose([mean - half, mean + half], [low, high])
    mean, half = mean_interval(values[:1])
    assert np.array_equal(mean, values[0]) and np.isnan(half).all()


def test_the_test_is_scipys_on_the_seeds_that_both_have():
    rng = np.random.default_rng(1)
    base = {seed: rng.normal() for seed in range(6)}
    other = {seed: base[seed] + 0.3 + rng.normal(0, 0.2) for seed in range(1, 8) if seed in base}
    other[9] = 100.0
    shared = range(1, 6)
    wanted = stats.ttest_rel([other[s] for s in shared], [base[s] for s in shared])
    found = difference(base, other)
    assert found.n == 5
    assert found.p == pytest.approx(wanted.pvalue)
    low, high = wanted.confidence_interval(0.95)
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))


def test_nothing_to_judge_by():
    assert difference({0: 1.0}, {1: 2.0}) is None
    assert difference({0: 1.0}, {0: 2.0}).p is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same = difference({s: s / 7 for s in range(4)}, {s: s / 7 + 0.1 for s in range(4)})
    assert same.mean == pytest.approx(0.1) and same.p is None and same.half is None


def test_holm():
    # 1979: .01·4, .02·3, .03·2, .04·1, none below the one before it
    assert holm([0.04, None, 0.01, 0.03, 0.02]) == pytest.approx([0.06, None, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert math.isclose(holm([0.01])[0], 0.01)
