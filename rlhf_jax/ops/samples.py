"""What n samples of a prompt say of k: unbiased means over all C(n, k) subsets, in closed form.

On the host, in float64: n is a few hundred at most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

MOST_SAMPLES = 1000  # C(n, n/2) of more is beyond float64


def pass_at_k(n: int, c: int, k: int) -> float:
    """P(one of k samples is right), from n samples of which c are.

    1 − C(n−c, k)/C(n, k) = 1 − Π_{i=n−c+1}^{n} (1 − k/i)    (2107.03374, eq. 1)

    The plain 1 − (1 − c/n)^k has a bias. The product needs no large binomials.

    Args:
        n: samples drawn, at least k.
        c: right ones, 0 to n.
        k: samples allowed, at least 1.

    Raises:
        ValueError: a number out of its range.
    """
    _check(n, k)
    if not 0 <= c <= n:
        raise ValueError(f"c={c} is outside [0, n={n}]")
    if n - c < k:
        return 1.0
    return 1.0 - math.prod(1.0 - k / i for i in range(n - c + 1, n + 1))


def majority_at_k(answers: Sequence[Hashable | None], right: Sequence[float], k: int) -> float:
    """maj@k: how often the most frequent answer of k samples is right, over all k-subsets.

    Σ_a v_a Σ_m Σ_t N(a, m, t)/(1 + t) / C(n, k), where N counts the k-subsets in which answer a
    has m votes, t other answers have m too, and none has more; v_a is the mean of `right` over
    the samples of a.

    Choices: equally frequent answers share the win (a draw among them, in expectation), so the
    order of the samples does not matter; others take the first that was drawn. A sample without
    an answer does not vote, and a subset without votes is wrong.

    Args:
        answers: of n samples; None: the sample has none.
        right: 1 where the sample is right, 0 where not.
        k: votes, 1 to n.

    Raises:
        ValueError: k is out of range, or the lists differ in length.
    """
    n = len(answers)
    _check(n, k)
    if len(right) != n:
        raise ValueError(f"{n} answers, but {len(right)} say whether they are right")
    votes = Counter(answers)
    silent = votes.pop(None, 0)
    total = 0.0
    for answer, count in votes.items():
        value = sum(r for a, r in zip(answers, right, strict=True) if a == answer) / count
        if value == 0:
            continue
        others = [c for a, c in votes.items() if a != answer]
        for m in range(1, min(count, k) + 1):
            ways_T = _ways(others, silent, m, k - m)
            total += value * math.comb(count, m) * (ways_T / np.arange(1, 1 + len(ways_T))).sum()
    return float(total / math.comb(n, k))


def _ways(counts: Sequence[int], silent: int, m: int, size: int) -> np.ndarray:
    """ways_T[t]: subsets of `size` of the other samples where t answers have m votes, none more."""
    ways_ST = np.zeros((size + 1, size // m + 1))
    ways_ST[0, 0] = 1
    for count, votes in [*((c, True) for c in counts), (silent, False)]:
        new_ST = np.zeros_like(ways_ST)
        for j in range(min(count, m if votes else size, size) + 1):
            ways = math.comb(count, j) * ways_ST[: size + 1 - j]
            if votes and j == m:
                new_ST[j:, 1:] += ways[:, :-1]
            else:
                new_ST[j:] += ways
        ways_ST = new_ST
    return ways_ST[size]


def best_of_k(proxy: Sequence[float], gold: Sequence[float], k: int) -> float:
    """Mean gold score of the best of k by the proxy score, over all k-subsets of n samples.

    1/C(n, k) Σ_{i=k}^{n} C(i−1, k−1)·gold_(i), sorted by proxy, ascending   (2112.09332;
    2210.10760). With proxy = gold it is the expected best score of k.

    Of equal proxies the first in the list wins, as in `data.comparisons.best_of_n`.

    Args:
        proxy: what chooses, n scores.
        gold: what is measured, n scores.
        k: samples to choose from, 1 to n.

    Raises:
        ValueError: k is out of range, or the lists differ in length.
    """
    n = len(proxy)
    _check(n, k)
    if len(gold) != n:
        raise ValueError(f"{n} proxy scores, but {len(gold)} gold scores")
    order = sorted(range(n), key=lambda i: (proxy[i], -i))
    total = math.comb(n, k)
    shares = [math.comb(i, k - 1) / total for i in range(k - 1, n)]
    return math.fsum(s * gold[i] for s, i in zip(shares, order[k - 1 :], strict=True))


def best_of_n_kl(n: float) -> float:
    """KL(best of n ‖ one sample) = log n − (n − 1)/n in nats   (2009.01325; 2210.10760).

    Exact where scores have no ties, an upper bound otherwise (2401.01879).
    """
    if n < 1:
        raise ValueError(f"n={n} is below 1")
    return math.log(n) - (n - 1) / n


def _check(n: int, k: int) -> None:
    if not 1 <= k <= n <= MOST_SAMPLES:
        raise ValueError(f"k={k} of n={n} samples: 1 ≤ k ≤ n ≤ {MOST_SAMPLES} is needed")
