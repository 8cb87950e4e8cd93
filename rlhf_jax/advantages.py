"""Advantage estimators, one value a token, from token rewards.

Two layers. The array functions (`gae_advantages`, `group_normalise`, …) are formulas to call on
their own. The estimators (`gae`, `group_norm`, …) take (scored, reward_BT), where `reward_BT` is
the shaped token reward, and give advantage_BT, 0 outside the mask.

Groups are told by `group_B`, ids in [0, B): the position of the row's prompt in the batch.
Statistics are segment sums with B segments, so rows of a group may lie anywhere, groups may
differ in size, and shapes stay static. A group whose scores are all equal gives exactly 0 (a
float32 mean leaves a residue that a small standard deviation would blow up), and so does a group
of one.

In a group estimator the outcome of a row is Σ_t reward_t: its score, minus its summed KL when the
KL is placed in the reward. A row that counts no token, or that no reward function could score, is
left out of its group's statistics and gets 0.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.types import Scored


def gae_advantages(
    reward_BT: Array,
    value_BT: Array,
    mask_BT: Array,
    *,
    gamma: float,
    lam: float,
    last_value_B: Array | None = None,
) -> Array:
    """δ_t = r_t + γ·V_{t+1} − V_t,   Â_t = Σ_l (γλ)^l δ_{t+l}   (1506.02438, eqs. 11, 16)

    t + 1 is the next counted token: masked columns between (observations of a tool) take no
    discount and no value. After the last counted token V is `last_value_B`, else 0; what a padded
    column holds is never read.

    Args:
        reward_BT: [B, T].
        value_BT: [B, T] V of the prefix before token t.
        mask_BT: [B, T] bool.
        gamma: γ in [0, 1].
        lam: λ in [0, 1].
        last_value_B: [B] value after the last token, for rows that were cut short.

    Returns:
        advantage_BT; the critic's target is V_t + Â_t.
    """
    chex.assert_equal_shape([reward_BT, value_BT, mask_BT])

    def back(carry, column):
        next_value_B, advantage_B = carry
        reward_B, value_B, mask_B = column
        delta_B = reward_B + gamma * next_value_B - value_B
        here_B = delta_B + gamma * lam * advantage_B
        carry = (
            jnp.where(mask_B, value_B, next_value_B),
            jnp.where(mask_B, here_B, advantage_B),
        )
        return carry, jnp.where(mask_B, here_B, 0)

    zero_B = jnp.zeros_like(reward_BT[:, 0])
    start = (zero_B if last_value_B is None else last_value_B.astype(zero_B.dtype), zero_B)
    columns = (reward_BT.T, value_BT.T.astype(zero_B.dtype), mask_BT.T)
    _, advantage_TB = lax.scan(back, start, columns, reverse=True)
    return advantage_TB.T


def discounted_returns(reward_BT: Array, mask_BT: Array, *, gamma: float) -> Array:
    """G_t = Σ_{l≥0} γ^l r_{t+l} over the counted tokens: GAE with no values and λ = 1."""
    return gae_advantages(reward_BT, jnp.zeros_like(reward_BT), mask_BT, gamma=gamma, lam=1.0)


def group_normalise(
    score_B: Array, group_B: Array, *, ddof: int, eps: float, valid_B: Array | None = None
) -> Array:
    """(r_i − mean(group)) / (std(group) + eps); a group of equal scores, or of one, gives 0.

    (2402.03300, section 4.1.2, "outcome supervision".)

    Args:
        score_B: [B].
        group_B: [B] int, ids in [0, B).
        ddof: 0 population, 1 sample standard deviation.
        eps: ≥ 0, added to the standard deviation.
        valid_B: [B] bool; False is left out of the statistics and gets 0.
    """
    centred_B, valid_B = _centred(score_B, group_B, valid_B)
    squares_B = _per_group(centred_B**2, group_B)
    count_B = _per_group(valid_B.astype(score_B.dtype), group_B)
    std_B = jnp.sqrt(squares_B / jnp.maximum(count_B - ddof, 1.0))
    # Where the deviations are exactly 0 (equal group, invalid row) divide by 1, not by 0.
    return centred_B / jnp.where(std_B > 0, std_B + eps, 1.0)


def group_centred(score_B: Array, group_B: Array, *, valid_B: Array | None = None) -> Array:
    """r_i − mean(group); arguments and rules as in `group_normalise` (2503.20783, section 3.2)."""
    return _centred(score_B, group_B, valid_B)[0]


def group_leave_one_out(score_B: Array, group_B: Array, *, valid_B: Array | None = None) -> Array:
    """r_i − mean of the others = k/(k − 1)·(r_i − mean(group))   (2402.14740, eq. 6)

    Arguments and rules as in `group_normalise`; a group of one has no others and gives 0.
    """
    centred_B, valid_B = _centred(score_B, group_B, valid_B)
    count_B = _per_group(valid_B.astype(score_B.dtype), group_B)
    return centred_B * count_B / jnp.maximum(count_B - 1.0, 1.0)


def mixed_group(score_B: Array, group_B: Array, valid_B: Array | None = None) -> Array:
    """True on rows whose group holds at least two different scores (2503.14476, eq. 11)."""
    valid_B = jnp.ones(score_B.shape, bool) if valid_B is None else valid_B
    rows = score_B.shape[0]
    high_B = jax.ops.segment_max(jnp.where(valid_B, score_B, -jnp.inf), group_B, rows)
    low_B = jax.ops.segment_min(jnp.where(valid_B, score_B, jnp.inf), group_B, rows)
    return (high_B > low_B)[group_B]


def _centred(score_B, group_B, valid_B):
    chex.assert_rank([score_B, group_B], 1)
    valid_B = jnp.ones(score_B.shape, bool) if valid_B is None else valid_B
    count_B = _per_group(valid_B.astype(score_B.dtype), group_B)
    mean_B = _per_group(jnp.where(valid_B, score_B, 0), group_B) / jnp.maximum(count_B, 1.0)
    counts_B = valid_B & mixed_group(score_B, group_B, valid_B)
    return jnp.where(counts_B, score_B - mean_B, 0), valid_B


def _per_group(x_B, group_B):
    """Each row's group sum."""
    return jax.ops.segment_sum(x_B, group_B, num_segments=x_B.shape[0])[group_B]


def scored_rows(scored: Scored) -> Array:
    """True on rows that count a token and that at least one reward function could score."""
    return jnp.any(scored.valid_BC, axis=1) & jnp.any(scored.mask_BT, axis=1)


def gae(scored: Scored, reward_BT: Array, *, gamma: float = 1.0, lam: float = 0.95) -> Array:
    """Generalised advantage estimation over `scored.value_BT`; see `gae_advantages`.

    The end of a row is terminal, cut short or not: its score is the outcome of what was written.
    γ = 1 and λ = .95 are the values of the language-model papers (1909.08593).
    """
    return gae_advantages(reward_BT, scored.value_BT, scored.mask_BT, gamma=gamma, lam=lam)


def gae_continued(
    scored: Scored, reward_BT: Array, *, gamma: float = 1.0, lam: float = 0.95
) -> Array:
    """`gae`, but a row cut short goes on: V after its last token (`last_value_B`) is added.

    For scores that judge the text so far and not an outcome (a penalty, a process reward); with
    an outcome score it would count that outcome twice.
    """
    last_value_B = jnp.where(scored.truncated_B, scored.last_value_B, 0)
    return gae_advantages(
        reward_BT, scored.value_BT, scored.mask_BT, gamma=gamma, lam=lam, last_value_B=last_value_B
    )


def reward_to_go(scored: Scored, reward_BT: Array, *, gamma: float = 1.0) -> Array:
    """Â_t = Σ_{l≥0} γ^l r_{t+l}, no baseline (REINFORCE++, 2501.03262); γ in [0, 1]."""
    return discounted_returns(reward_BT, scored.mask_BT, gamma=gamma)


def group_norm(scored: Scored, reward_BT: Array, *, ddof: int = 0, eps: float = 1e-6) -> Array:
    """GRPO's Â_i = (R_i − mean)/(std + eps) at every token of the row (2402.03300).

    The paper names neither ddof nor eps. ddof 0: the group is the whole population that is
    normalised, so the advantages of a group have root mean square 1 whatever its size, and a
    learning rate carries over from G = 4 to G = 64 (ddof 1, as in TRL and verl, gives
    √((G − 1)/G)). eps 1e-6: one rounding step of a score near 1 stays below .06 while scores that
    differ by .001 are scaled to within .2 %.
    """
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(
        group_normalise(score_B, scored.group_B, ddof=ddof, eps=eps, valid_B=valid_B), scored
    )


def group_centre(scored: Scored, reward_BT: Array) -> Array:
    """Dr. GRPO's Â_i = R_i − mean(group) at every token of the row (2503.20783)."""
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(group_centred(score_B, scored.group_B, valid_B=valid_B), scored)


def leave_one_out(scored: Scored, reward_BT: Array) -> Array:
    """RLOO's Â_i = R_i − mean of the group's others, at every token of the row (2402.14740)."""
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(group_leave_one_out(score_B, scored.group_B, valid_B=valid_B), scored)


def _outcome(scored, reward_BT):
    return masked_sum(reward_BT, scored.mask_BT, axis=1), scored_rows(scored)


def _to_tokens(advantage_B, scored):
    return jnp.where(scored.mask_BT, advantage_B[:, None], 0)


# Estimators that read a critic's values.
VALUE_BASELINES = frozenset({gae, gae_continued})
# Estimators that compare rows of one prompt: a single sample a prompt gives them nothing.
GROUP_BASELINES = frozenset({group_norm, group_centre, leave_one_out})
