"""What n samples say of k, against plain enumeration of every subset."""

import itertools
import math

import numpy as np
import pytest

from rlhf_jax.ops.samples import best_of_k, best_of_n_kl, majority_at_k, pass_at_k


def subsets(n, k):
    return list(itertools.combinations(range(n), k))


def test_pass_at_k_golden():
    # 1 − C(12,4)/C(16,4) = 1 − 495/1820; 1 − C(15,8)/C(16,8) = 1 − 1/2
    assert pass_at_k(16, 4, 4) == pytest.approx(0.728022, abs=5e-7)
    assert pass_at_k(16, 1, 8) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_pass_at_k_is_the_mean_over_subsets(n):
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        right = [True] * c + [False] * (n - c)
        wanted = np.mean([any(right[i] for i in subset) for subset in subsets(n, k)])
        assert pass_at_k(n, c, k) == pytest.approx(wanted, abs=1e-12)


def test_pass_at_k_is_safe_for_many_samples():
    assert pass_at_k(1000, 1, 500) == pytest.approx(0.5)
    assert pass_at_k(1000, 0, 1000) == 0
    assert pass_at_k(1000, 1000, 1) == 1


def test_pass_at_k_has_no_bias_where_the_plain_formula_has():
    """A sampler that is right with p = .2; c of n = 4 is binomial; truth is 1 − .8²."""
    n, k, p = 4, 2, 0.2
    chance = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    mean = sum(w * pass_at_k(n, c, k) for c, w in enumerate(chance))
    plain = sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chance))
    assert mean == pytest.approx(1 - 0.8**2, abs=1e-12)
    assert plain < mean - 0.03


def enumerate_majority(answers, right, k):
    total = 0.0
    for subset in subsets(len(answers), k):
        votes = {}
        for i in subset:
            if answers[i] is not None:
                votes.setdefault(answers[i], []).append(i)
        most = max(map(len, votes.values()), default=0)
        winners = [a for a, who in votes.items() if len(who) == most]
        for a in winners:
            everyone = [i for i, b in enumerate(answers) if b == a]
            total += np.mean([right[i] for i in everyone]) / len(winners)
    return total / len(subsets(len(answers), k))


@pytest.mark.parametrize(
    "answers", ["abab", "aabbc", "abcdef", "aaabbb-", "-a--b", "---", "aaaaaaa"]
)
def test_majority_is_the_mean_over_subsets(answers):
    answers = [None if a == "-" else a for a in answers]
    for good in ("a", "b", "z"):
        right = [float(a == good) for a in answers]
        for k in range(1, len(answers) + 1):
            wanted = enumerate_majority(answers, right, k)
            assert majority_at_k(answers, right, k) == pytest.approx(wanted, abs=1e-12)


def test_majority_of_random_answers():
    draw = np.random.default_rng(0)
    for _ in range(20):
        answers = draw.integers(0, 4, 9).tolist()
        right = draw.integers(0, 2, 9).tolist()  # one answer may be judged in two ways
        k = int(draw.integers(1, 10))
        wanted = enumerate_majority(answers, right, k)
        assert majority_at_k(answers, right, k) == pytest.approx(wanted, abs=1e-12)


def test_majority_by_hand():
    # votes of all four: a 2, b 2 share the win; of two: aa wins once, ab four times by half
    assert majority_at_k("abab", [1, 0, 1, 0], 4) == pytest.approx(0.5)
    assert majority_at_k("aabb", [1, 1, 0, 0], 2) == pytest.approx((1 + 4 * 0.5) / 6)
    # one vote is the accuracy
    assert majority_at_k("abcd", [1, 0, 0, 0], 1) == pytest.approx(0.25)
    # the majority is right although most samples are wrong
    assert majority_at_k("aabcd", [1, 1, 0, 0, 0], 5) == 1


def test_majority_of_many_samples():
    answers = ["right"] * 24 + list(range(40))
    right = [1.0] * 24 + [0.0] * 40
    assert majority_at_k(answers, right, 32) == pytest.approx(1, abs=1e-6)
    assert majority_at_k(answers, right, 1) == pytest.approx(24 / 64)


def test_best_of_k_golden():
    # sorted by proxy the gold scores are 1, 2, 3, 0
    proxy, gold = [0.1, 0.4, 0.2, 0.3], [1, 0, 2, 3]
    values = [best_of_k(proxy, gold, k) for k in (1, 2, 3, 4)]
    assert values == pytest.approx([1.5, 1.333333, 0.75, 0], abs=5e-7)


def test_best_of_k_takes_the_first_of_equals():
    draw = np.random.default_rng(1)
    for _ in range(20):
        proxy, gold = draw.integers(0, 3, 7).tolist(), draw.normal(size=7).tolist()
        for k in (1, 3, 7):
            # max() keeps the first of equals
            wanted = np.mean([gold[max(s, key=lambda i: proxy[i])] for s in subsets(7, k)])
            assert best_of_k(proxy, gold, k) == pytest.approx(wanted, abs=1e-12)


def test_best_of_right_and_wrong_is_pass_at_k():
    right = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]
    for k in range(1, 7):
        assert best_of_k(right, right, k) == pytest.approx(pass_at_k(6, 2, k), abs=1e-12)


@pytest.mark.parametrize(
    ("n", "wanted"),
    [
        *[(1, 0.0), (2, 0.193147), (4, 0.636294), (16, 1.835089), (64, 3.174508)],
        *[(128, 3.859843), (1000, 5.908755), (60000, 10.002117)],
    ],
)
def test_kl_of_best_of_n(n, wanted):
    assert best_of_n_kl(n) == pytest.approx(wanted, abs=5e-7)


def test_kl_of_best_of_n_is_that_of_a_uniform_distribution_without_ties():
    """Best of 3 of m equally likely answers: P(rank i) = (i³ − (i−1)³)/m³; the bound as m grows."""
    m, n = 4000, 3
    rank = np.arange(1, m + 1)
    p = (rank**n - (rank - 1) ** n) / m**n
    assert np.sum(p * np.log(p * m)) == pytest.approx(best_of_n_kl(n), abs=1e-5)
    few = np.array([1, 7, 19, 37]) / 64  # m = 4: ties happen
    assert np.sum(few * np.log(few * 4)) < best_of_n_kl(n)


@pytest.mark.parametrize("call", [(3, 1, 4), (3, 1, 0), (3, 4, 1), (1001, 1, 1)])
def test_numbers_out_of_range(call):
    with pytest.raises(ValueError):
        pass_at_k(*call)


def test_lists_of_different_lengths():
    with pytest.raises(ValueError, match="2 answers, but 1"):
        majority_at_k("ab", [1], 1)
    with pytest.raises(ValueError, match="2 proxy scores, but 1"):
        best_of_k([1, 2], [1], 1)
    with pytest.raises(ValueError, match="below 1"):
        best_of_n_kl(0.5)
