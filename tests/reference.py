"""The formulas again as scalar loops over Python floats, and the batches they are tried on.

Slow, float64, one token at a time, no array operation: what the package computes must equal
what is written here.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from reference_surrogates import STOPPED, surrogate_row

from rlhf_jax.types import PolicyBatch, Scored

# --- batches -----------------------------------------------------------------------------------

# Ragged rows after a prompt of two: full, with an observation token (hole), short, one token,
# empty, and three more so that eight devices get a row each. Column 0 is always masked.
MASK_BT = np.array(
    [
        [0, 0, 1, 1, 1, 1, 1],
        [0, 0, 1, 0, 1, 1, 0],
        [0, 0, 1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1, 1],
    ],
    bool,
)
GROUP_B = np.array([0, 1, 0, 1, 2, 2, 0, 2])  # rows of a group do not lie together


def sample_batch(seed: int = 0, fill: float = 0.0) -> tuple[np.ndarray, PolicyBatch]:
    """(logp_BT, batch) with `fill` in every masked entry of every float array."""
    draw = np.random.default_rng(seed)
    shape = MASK_BT.shape

    def field(x_BT):
        return jnp.asarray(np.where(MASK_BT, x_BT, fill), jnp.float32)

    logp_BT = -draw.uniform(0.2, 3.0, shape)
    batch = PolicyBatch(
        tokens_BT=jnp.asarray(draw.integers(1, 9, shape)),
        attend_BT=jnp.asarray(MASK_BT),
        mask_BT=jnp.asarray(MASK_BT),
        group_B=jnp.asarray(GROUP_B),
        advantage_BT=field(draw.normal(size=shape)),
        logp_old_BT=field(np.minimum(logp_BT + draw.normal(scale=0.4, size=shape), -0.01)),
        logp_ref_BT=field(np.minimum(logp_BT + draw.normal(scale=0.4, size=shape), -0.01)),
        logp_full_BT=field(logp_BT + draw.normal(scale=0.01, size=shape)),
        correction_BT=field(draw.uniform(0.5, 2.0, shape)),
        value_old_BT=field(draw.normal(size=shape)),
        return_BT=field(draw.normal(size=shape)),
    )
    return field(logp_BT), batch


def sample_scored(seed: int = 0, fill: float = 0.0) -> Scored:
    """A rollout of eight rows in three groups, with `fill` in every masked or invalid entry."""
    draw = np.random.default_rng(seed)
    shape = MASK_BT.shape

    def field(x_BT):
        return jnp.asarray(np.where(MASK_BT, x_BT, fill), jnp.float32)

    valid_BC = np.array([[1, 1], [1, 0], [1, 1], [0, 1], [1, 1], [1, 1], [0, 0], [1, 1]], bool)
    score_BC = np.where(valid_BC, draw.normal(size=(8, 2)), fill)
    logp_BT = -draw.uniform(0.2, 3.0, shape)
    return Scored(
        score_BC=jnp.asarray(score_BC, jnp.float32),
        valid_BC=jnp.asarray(valid_BC),
        group_B=jnp.asarray(GROUP_B),
        mask_BT=jnp.asarray(MASK_BT),
        truncated_B=jnp.asarray([1, 0, 0, 0, 0, 0, 0, 1], bool),
        logp_sampler_BT=field(logp_BT + draw.normal(scale=0.3, size=shape)),
        logp_full_BT=field(logp_BT + draw.normal(scale=0.01, size=shape)),
        logp_old_BT=field(logp_BT),
        logp_ref_BT=field(logp_BT + draw.normal(scale=0.4, size=shape)),
        value_BT=field(draw.normal(size=shape)),
        last_value_B=jnp.asarray(draw.normal(size=8), jnp.float32),
        baseline_B=jnp.asarray(draw.normal(size=8), jnp.float32),
        entropy_BT=field(draw.uniform(0, 2, shape)),
    )


def rows_of(x) -> list:
    """A JAX or numpy array as nested lists of Python numbers."""
    return np.asarray(x).tolist()


def numeric_gradient(fn, x_BT, mask_BT, step: float = 1e-5) -> np.ndarray:
    """Central differences of a scalar-loop function at every counted entry, 0 elsewhere."""
    x_BT = np.asarray(x_BT, float)
    gradient_BT = np.zeros(x_BT.shape)
    for b, t in zip(*np.nonzero(mask_BT), strict=True):
        for sign in (1, -1):
            moved_BT = x_BT.copy()
            moved_BT[b, t] += sign * step
            gradient_BT[b, t] += sign * fn(moved_BT.tolist()) / (2 * step)
    return gradient_BT


# --- ratios: one row of log-probs -> one row of ratios -----------------------------------------


def token_ratio(logp_T, old_T, mask_T):
    return [math.exp(a - b) if m else 1.0 for a, b, m in zip(logp_T, old_T, mask_T, strict=True)]


def geometric_ratio(logp_T, old_T, mask_T):
    logs = [a - b for a, b, m in zip(logp_T, old_T, mask_T, strict=True) if m]
    ratio = math.exp(sum(logs) / len(logs)) if logs else 1.0
    return [ratio if m else 1.0 for m in mask_T]


def product_ratio(logp_T, old_T, mask_T):
    ratio = math.prod(token_ratio(logp_T, old_T, mask_T))
    return [ratio if m else 1.0 for m in mask_T]


# --- penalties: one token ------------------------------------------------------------------------


def k1(logp, ref):
    return logp - ref


def k2(logp, ref):
    return (logp - ref) ** 2 / 2


def k3(logp, ref):
    return math.exp(ref - logp) - 1 - (ref - logp)


def squared(value, old, target):
    return (value - target) ** 2 / 2


def clipped_squared(value, old, target, *, clip):
    near = min(max(value, old - clip), old + clip)
    return max((value - target) ** 2, (near - target) ** 2) / 2


# --- aggregation: weights by the definition of each mean ---------------------------------------


def token_mean(loss_BT, mask_BT):
    kept = [x for row, m in zip(loss_BT, mask_BT, strict=True) for x in _kept(row, m)]
    return sum(kept) / len(kept) if kept else 0.0


def sequence_mean(loss_BT, mask_BT):
    rows = [_kept(row, m) for row, m in zip(loss_BT, mask_BT, strict=True) if any(m)]
    return sum(sum(row) / len(row) for row in rows) / len(rows) if rows else 0.0


def sequence_sum(loss_BT, mask_BT):
    sums = [sum(_kept(row, m)) for row, m in zip(loss_BT, mask_BT, strict=True)]
    return sum(sums) / len(sums)


def constant_length(loss_BT, mask_BT, *, length):
    return sequence_sum(loss_BT, mask_BT) / length


def _kept(row, mask):
    return [x for x, m in zip(row, mask, strict=True) if m]


# --- advantages --------------------------------------------------------------------------------


def gae_row(reward_T, value_T, mask_T, *, gamma, lam, last_value=0.0):
    """Sum of discounted deltas, written forwards from each token: no recursion."""
    at = [t for t, m in enumerate(mask_T) if m]
    values = [value_T[t] for t in at] + [last_value]
    deltas = [reward_T[t] + gamma * values[i + 1] - values[i] for i, t in enumerate(at)]
    out = [0.0] * len(mask_T)
    for i, t in enumerate(at):
        out[t] = sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(at)))
    return out


def group_scores(score_B, group_B, valid_B, fn):
    """fn(list of the group's valid scores, own position in it) for every row, 0 if not valid."""
    out = []
    for i, (group, valid) in enumerate(zip(group_B, valid_B, strict=True)):
        members = [j for j, g in enumerate(group_B) if g == group and valid_B[j]]
        scores = [score_B[j] for j in members]
        out.append(fn(scores, members.index(i)) if valid and len(set(scores)) > 1 else 0.0)
    return out


def centre(scores, i):
    return scores[i] - sum(scores) / len(scores)


def normalise(scores, i, *, ddof, eps):
    mean = sum(scores) / len(scores)
    variance = sum((s - mean) ** 2 for s in scores) / (len(scores) - ddof)
    return (scores[i] - mean) / (math.sqrt(variance) + eps)


def without_self(scores, i):
    others = scores[:i] + scores[i + 1 :]
    return scores[i] - sum(others) / len(others)


def against_others(scores, i, *, ddof, eps):
    others = scores[:i] + scores[i + 1 :]
    mean = sum(others) / len(others)
    if len(set(others)) == 1:
        return scores[i] - mean
    variance = sum((s - mean) ** 2 for s in others) / (len(others) - ddof)
    return (scores[i] - mean) / (math.sqrt(variance) + eps)


def whitened(x_BT, mask_BT, eps=1e-8):
    kept = [x for row, m in zip(x_BT, mask_BT, strict=True) for x in _kept(row, m)]
    mean = sum(kept) / len(kept)
    scale = math.sqrt(sum((x - mean) ** 2 for x in kept) / len(kept) + eps)
    return [
        [(x - mean) / scale if m else 0.0 for x, m in zip(row, mask, strict=True)]
        for row, mask in zip(x_BT, mask_BT, strict=True)
    ]


# --- the whole loss ----------------------------------------------------------------------------

_HERE = globals()


def policy_loss(
    objective, logp_BT, batch, *, entropy_BT=None, value_BT=None, frozen_BT=None
) -> float:
    """`algorithms.objective.policy_loss` of one whole batch, the parts looked up here by name.

    `frozen_BT`: the ratios that a surrogate takes without gradient, for differences around them.
    """

    def part(bound):
        return lambda *args: _HERE[bound.fn.__name__](*args, **bound.kw)

    mask_BT = rows_of(batch.mask_BT)
    names = ("logp_old_BT", "logp_ref_BT", "advantage_BT", "correction_BT", "value_old_BT")
    old, ref, advantage, correction, value_old = (
        None if getattr(batch, n) is None else rows_of(getattr(batch, n)) for n in names
    )
    old = logp_BT if old is None else old
    returns = None if batch.return_BT is None else rows_of(batch.return_BT)
    loss_BT = []
    for b, mask_T in enumerate(mask_BT):
        ratio_T = part(objective.ratio)(logp_BT[b], old[b], mask_T)
        stopped = objective.surrogate.fn.__name__ in STOPPED and frozen_BT is not None
        used_T = frozen_BT[b] if stopped else ratio_T
        row = surrogate_row(objective.surrogate, logp_BT[b], old[b], used_T, advantage[b], mask_T)
        for t in (t for t, m in enumerate(mask_T) if m):
            if correction is not None:
                row[t] *= correction[b][t]
            if objective.loss_kl is not None:
                kl = part(objective.loss_kl.estimator)(logp_BT[b][t], ref[b][t])
                if objective.loss_kl.ratio is not None:
                    kl *= part(objective.loss_kl.ratio)(logp_BT[b], old[b], mask_T)[t]
                row[t] += objective.loss_kl.coef * kl
            if objective.entropy is not None:
                row[t] -= objective.entropy * entropy_BT[b][t]
            if objective.value is not None:
                v = part(objective.value.loss)(value_BT[b][t], value_old[b][t], returns[b][t])
                row[t] += objective.value.coef * v
        loss_BT.append(row)
    return part(objective.aggregate)(loss_BT, mask_BT)
