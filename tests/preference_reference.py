"""Preference and reward-model losses again as scalar functions of Python floats, and their batch.

A paired function takes (lw, ll, rw, rl, nw, nl): log π and log π_ref of the preferred and of the
other side, and their lengths; then numbers by keyword. The losses that look at the whole batch are
written as the paper has them: sorted, or about the mean, and nothing is precomputed.
"""

from __future__ import annotations

import math

import numpy as np

# --- the batch: eight pairs, so that eight devices get one each ----------------------------------

_draw = np.random.default_rng(7)
LENGTH_BS = np.array([[7, 9], [1, 4], [3, 3], [5, 2], [8, 8], [2, 6], [4, 1], [6, 7]])
LOGP_BS = -LENGTH_BS * _draw.uniform(0.3, 2.0, (8, 2))
REF_BS = LOGP_BS + _draw.normal(scale=1.5, size=(8, 2))
REF_BS = np.minimum(REF_BS, -0.05)
WEIGHT_B = np.array([1.0, 2.0, 0.5, 1.0, 0.0, 3.0, 1.0, 1.5])
DESIRABLE_B = np.array([1, 0, 1, 1, 0, 1, 0, 0], bool)


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def sigmoid(x):
    return math.exp(log_sigmoid(x))


# --- pairs ---------------------------------------------------------------------------------------


def lead(lw, ll, rw, rl):
    return (lw - rw) - (ll - rl)


def mean_lead(lw, ll, rw, rl, nw, nl):
    return (lw - rw) / max(nw, 1) - (ll - rl) / max(nl, 1)


def dpo(lw, ll, rw, rl, nw, nl, *, beta):
    return -log_sigmoid(beta * lead(lw, ll, rw, rl))


def dpo_averaged(lw, ll, rw, rl, nw, nl, *, beta):
    return -log_sigmoid(beta * mean_lead(lw, ll, rw, rl, nw, nl))


def cdpo(lw, ll, rw, rl, nw, nl, *, beta, smoothing):
    right = dpo(lw, ll, rw, rl, nw, nl, beta=beta)
    flipped = dpo(ll, lw, rl, rw, nl, nw, beta=beta)
    return (1 - smoothing) * right + smoothing * flipped


def robust_dpo(lw, ll, rw, rl, nw, nl, *, beta, smoothing):
    right = dpo(lw, ll, rw, rl, nw, nl, beta=beta)
    flipped = dpo(ll, lw, rl, rw, nl, nw, beta=beta)
    return ((1 - smoothing) * right - smoothing * flipped) / (1 - 2 * smoothing)


def hinge(lw, ll, rw, rl, nw, nl, *, beta):
    return max(0.0, 1 - beta * lead(lw, ll, rw, rl))


def ipo(lw, ll, rw, rl, nw, nl, *, beta):
    return (lead(lw, ll, rw, rl) - 1 / (2 * beta)) ** 2


def ipo_averaged(lw, ll, rw, rl, nw, nl, *, beta):
    return (mean_lead(lw, ll, rw, rl, nw, nl) - 1 / (2 * beta)) ** 2


def exo(lw, ll, rw, rl, nw, nl, *, beta, soft):
    p = sigmoid(beta * lead(lw, ll, rw, rl))
    return p * math.log(p / (1 - soft)) + (1 - p) * math.log((1 - p) / soft)


def discopop(lw, ll, rw, rl, nw, nl, *, beta, tau):
    rho = beta * lead(lw, ll, rw, rl)
    m = sigmoid(rho / tau)
    return (1 - m) * -log_sigmoid(rho) + m * math.exp(-rho)


def dpop(lw, ll, rw, rl, nw, nl, *, beta, penalty):
    return -log_sigmoid(beta * (lead(lw, ll, rw, rl) - penalty * max(0.0, rw - lw)))


def nca(lw, ll, rw, rl, nw, nl, *, beta):
    chosen, rejected = beta * (lw - rw), beta * (ll - rl)
    return -log_sigmoid(chosen) - 0.5 * log_sigmoid(-chosen) - 0.5 * log_sigmoid(-rejected)


def sppo_hard(lw, ll, rw, rl, nw, nl, *, beta):
    return (lw - rw - 0.5 / beta) ** 2 + (ll - rl + 0.5 / beta) ** 2


def apo_zero(lw, ll, rw, rl, nw, nl, *, beta):
    return 1 - sigmoid(beta * (lw - rw)) + sigmoid(beta * (ll - rl))


def apo_down(lw, ll, rw, rl, nw, nl, *, beta):
    return sigmoid(beta * (lw - rw)) + 1 - sigmoid(beta * lead(lw, ll, rw, rl))


def simpo(lw, ll, rw, rl, nw, nl, *, beta, margin):
    return -log_sigmoid(beta * lw / max(nw, 1) - beta * ll / max(nl, 1) - margin)


def cpo(lw, ll, rw, rl, nw, nl, *, beta):
    return -log_sigmoid(beta * (lw - ll))


def orpo(lw, ll, rw, rl, nw, nl, *, beta):
    def log_odds(mean):
        return mean - math.log(1 - math.exp(mean))

    return -beta * log_sigmoid(log_odds(lw / max(nw, 1)) - log_odds(ll / max(nl, 1)))


def over_pairs(fn, logp_BS, ref_BS, length_BS, **kw):
    """One value a pair."""
    rows = zip(logp_BS, ref_BS, length_BS, strict=True)
    return [fn(*logp, *ref, *length, **kw) for logp, ref, length in rows]


# --- pairs, whole batch --------------------------------------------------------------------------


def shift(logp_BS, ref_BS):
    ratios = []
    for (lw, ll), (rw, rl) in zip(logp_BS, ref_BS, strict=True):
        ratios += [lw - rw, ll - rl]
    return sum(ratios) / len(ratios)


def bco(logp_BS, ref_BS, *, beta, delta):
    """`delta` in nats; frozen, so that its gradient is not taken."""
    return [
        -log_sigmoid(beta * (lw - rw - delta)) - log_sigmoid(-beta * (ll - rl - delta))
        for (lw, ll), (rw, rl) in zip(logp_BS, ref_BS, strict=True)
    ]


def aot(logp_BS, ref_BS, *, beta):
    u = sorted(lw - ll for lw, ll in logp_BS)
    v = sorted(rw - rl for rw, rl in ref_BS)
    return [-log_sigmoid(beta * (a - b)) for a, b in zip(u, v, strict=True)]


def aot_unpaired(logp_BS, ref_BS, *, beta):
    rows = list(zip(logp_BS, ref_BS, strict=True))
    u = sorted(logp[0] - ref[0] for logp, ref in rows)
    v = sorted(logp[1] - ref[1] for logp, ref in rows)
    return [-log_sigmoid(beta * (a - b)) for a, b in zip(u, v, strict=True)]


# --- single completions --------------------------------------------------------------------------


def kto(logp, ref, desirable, kl, *, beta, desirable_weight, undesirable_weight):
    if desirable:
        return desirable_weight * (1 - sigmoid(beta * (logp - ref - kl)))
    return undesirable_weight * (1 - sigmoid(beta * (kl - (logp - ref))))


def bco_unpaired(logp, ref, desirable, delta, *, beta):
    return -log_sigmoid(beta * (logp - ref - delta) * (1 if desirable else -1))


def apo_zero_unpaired(logp, ref, desirable, _, *, beta):
    reward = beta * (logp - ref)
    return 1 - sigmoid(reward) if desirable else sigmoid(reward)


# --- reward model --------------------------------------------------------------------------------


def ranked(score_S, rank_S, valid_S, margin_SS):
    terms = []
    for i in range(len(score_S)):
        for j in range(len(score_S)):
            if valid_S[i] and valid_S[j] and rank_S[i] < rank_S[j]:
                terms.append(-log_sigmoid(score_S[i] - score_S[j] - margin_SS[i][j]))
    return sum(terms) / len(terms) if terms else 0.0


def best_of(score_S, rank_S, valid_S):
    there = [k for k, v in enumerate(valid_S) if v]
    if not any(rank_S[i] < rank_S[j] for i in there for j in there):
        return 0.0
    top = min(rank_S[k] for k in there)
    best = [k for k in there if rank_S[k] == top]
    norm = math.log(sum(math.exp(score_S[k]) for k in there))
    return sum(norm - score_S[k] for k in best) / len(best)


def centring(score_S, rank_S, valid_S):
    terms = []
    for i in range(len(score_S)):
        for j in range(len(score_S)):
            if valid_S[i] and valid_S[j] and rank_S[i] < rank_S[j]:
                terms.append((score_S[i] + score_S[j]) ** 2)
    return sum(terms) / len(terms) if terms else 0.0
