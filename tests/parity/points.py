"""One rollout at which no two formulas agree by chance, and our side of the comparison.

old ≠ policy ≠ reference ≠ sampler at every token, advantages of both signs, ragged rows, one
observation token, ratios on both sides of every clip.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from rlhf_jax.algorithms.objective import policy_loss
from rlhf_jax.types import PolicyBatch

PROMPT = 2  # columns before the response
GROUP = 3  # rows of one prompt, adjacent, as TRL wants them
MASK_BR = np.array(
    [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 0, 1, 1, 0],  # the third token is a tool's answer
        [1, 1, 0, 0, 0, 0],
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
    ],
    bool,
)
NO_TOOLS_BR = np.cumsum(MASK_BR[:, ::-1], axis=1)[:, ::-1] > 0  # the hole filled


@dataclass(frozen=True)
class Point:
    """Arrays over response columns; TRL sees no others. `advantage_BR` None: one a row."""

    mask_BR: np.ndarray
    logp_BR: np.ndarray
    old_BR: np.ndarray
    ref_BR: np.ndarray
    sampler_BR: np.ndarray
    entropy_BR: np.ndarray
    advantage_B: np.ndarray
    advantage_BR: np.ndarray | None = None

    @property
    def group_B(self) -> np.ndarray:
        return np.arange(len(self.advantage_B)) // GROUP

    def rows(self, rows: slice) -> Point:
        fields = {k: x if x is None else x[rows] for k, x in vars(self).items()}
        return replace(self, **fields)


def point(seed: int = 0, spread: float = 0.4) -> Point:
    """`spread`: standard deviation of the log-ratios between the four policies."""
    draw = np.random.default_rng(seed)

    def near(x_BR):
        return np.minimum(x_BR + draw.normal(scale=spread, size=x_BR.shape), -0.01)

    logp_BR = -draw.uniform(0.2, 3.0, MASK_BR.shape)
    old_BR = near(logp_BR)
    return Point(
        mask_BR=MASK_BR,
        logp_BR=logp_BR,
        old_BR=old_BR,
        ref_BR=near(logp_BR),
        sampler_BR=near(old_BR),
        entropy_BR=draw.uniform(0.1, 2.0, MASK_BR.shape),
        advantage_B=np.array([1.3, -0.9, 0.4, -1.6, 0.7, -0.2]),
    )


def token_advantages(at: Point, seed: int = 1) -> Point:
    """The same point with an advantage of its own at every token."""
    draw = np.random.default_rng(seed)
    return replace(at, advantage_BR=draw.normal(size=at.mask_BR.shape))


def full(x_BR, fill=7.0) -> jax.Array:
    """Put the prompt's columns in front, filled with junk."""
    x_BR = np.asarray(x_BR)
    front_BL = np.full((len(x_BR), PROMPT), fill, x_BR.dtype)
    return jnp.asarray(np.concatenate([front_BL, x_BR], axis=1), dtype=_kind(x_BR))


def _kind(x):
    return bool if x.dtype == bool else jnp.float32


def policy_batch(at: Point, mask_BT=None, correction_BT=None) -> PolicyBatch:
    """The point as our update sees it."""
    advantage_BR = at.advantage_BR
    if advantage_BR is None:
        advantage_BR = np.broadcast_to(at.advantage_B[:, None], at.mask_BR.shape)
    return PolicyBatch(
        tokens_BT=jnp.ones(full(at.logp_BR).shape, jnp.int32),
        attend_BT=full(at.mask_BR, True),
        mask_BT=full(at.mask_BR, False) if mask_BT is None else mask_BT,
        group_B=jnp.asarray(at.group_B),
        advantage_BT=full(advantage_BR),
        logp_old_BT=full(at.old_BR),
        logp_ref_BT=full(at.ref_BR),
        correction_BT=correction_BT,
    )


def our_policy(objective, at: Point, **fields) -> tuple[float, np.ndarray]:
    """(loss, gradient over the response's columns) of one whole batch."""
    batch = policy_batch(at, **fields)
    weight_BT = objective.aggregate(batch.mask_BT, batch.group_B)
    entropy_BT = None if objective.entropy is None else full(at.entropy_BR)

    def loss(logp_BT):
        return policy_loss(objective, logp_BT, batch, weight_BT, entropy_BT=entropy_BT)[0]

    value, gradient_BT = jax.value_and_grad(loss)(full(at.logp_BR))
    gradient_BT = np.asarray(gradient_BT)
    assert not gradient_BT[:, :PROMPT].any(), "the prompt has no gradient"
    return float(value), gradient_BT[:, PROMPT:]


def agree(ours, theirs, rtol: float = 1e-5) -> None:
    """Loss and gradient equal within rtol of the largest entry."""
    for a, b in zip(ours, theirs, strict=True):
        scale = np.max(np.abs(b))
        assert scale > 0, "0 compares nothing"
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale)
