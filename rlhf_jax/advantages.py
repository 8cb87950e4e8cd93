"""Advantage estimators, one value a token, from token rewards.

Two layers. The array functions (`gae_advantages`, and `group_normalise`, … of `ops/groups.py`) are
formulas to call on their own. The estimators (`gae`, `group_norm`, …) take (scored, reward_BT),
where `reward_BT` is the shaped token reward, and give advantage_BT, 0 outside the mask.

In a group estimator the outcome of a row is Σ_t reward_t: its score, minus its summed KL when the
KL is placed in the reward. Groups are told by `group_B`, ids in [0, B): the position of the row's
prompt in the batch. A row that counts no token, or that no reward function could score, is left
out of its group's statistics and gets 0. A group whose outcomes are all equal teaches nothing, and
neither does a group of one: exactly 0.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.errors import ConfigError
from rlhf_jax.ops.groups import (
    group_centred,
    group_leave_one_out,
    group_leave_one_out_normalised,
    group_normalise,
    group_normalise_entries,
    mixed_group,
)
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.types import Scored


def gae_advantages(
    reward_BT: Array,
    value_BT: Array,
    mask_BT: Array,
    *,
    gamma: float,
    lam: float | Array,
    last_value_B: Array | None = None,
) -> Array:
    """δ_t = r_t + γ·V_{t+1} − V_t,   Â_t = Σ_l (γλ)^l δ_{t+l}   (1506.02438, eqs. 11, 16)

    t + 1 is the next counted token: masked columns between (observations of a tool) take no
    discount and no value. After the last counted token V is `last_value_B`, else 0; what a padded
    column holds is never read. V + Â is the λ-return, the mixture of n-step returns with weights
    (1 − λ)λ^{n−1}; at λ = 1 it is the Monte-Carlo return, and V cancels from it.

    Args:
        reward_BT: [B, T].
        value_BT: [B, T] V of the prefix before token t.
        mask_BT: [B, T] bool.
        gamma: γ in [0, 1].
        lam: λ in [0, 1], one number or one a row, [B].
        last_value_B: [B] value after the last token, for rows that were cut short.

    Returns:
        advantage_BT; the critic's target is V_t + Â_t.
    """
    chex.assert_equal_shape([reward_BT, value_BT, mask_BT])
    # whole numbers would cut the values down to whole ones
    reward_BT = reward_BT.astype(jnp.promote_types(reward_BT.dtype, jnp.float32))

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
    return gae_advantages(reward_BT, jnp.zeros(reward_BT.shape), mask_BT, gamma=gamma, lam=1.0)


def scored_rows(scored: Scored) -> Array:
    """True on rows that count a token and that a reward function, outcome or step, could score."""
    judged_B = jnp.any(scored.valid_BC, axis=1)
    if scored.step_end_BT is not None:
        judged_B = judged_B | jnp.any(scored.step_end_BT & scored.mask_BT, axis=1)
    return judged_B & jnp.any(scored.mask_BT, axis=1)


# --- credit over time --------------------------------------------------------------------------


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
    _need(scored, "gae_continued", "last_value_B")
    last_value_B = jnp.where(scored.truncated_B, scored.last_value_B, 0)
    return gae_advantages(
        reward_BT, scored.value_BT, scored.mask_BT, gamma=gamma, lam=lam, last_value_B=last_value_B
    )


def gae_adaptive(
    scored: Scored,
    reward_BT: Array,
    *,
    gamma: float = 1.0,
    alpha: float = 0.05,
    lam: float | None = None,
) -> Array:
    """`gae` with λ_i = 1 − 1/(α·l_i), l_i the row's counted tokens, at least 0 (2504.05118)

    A fixed λ = .95 leaves .95^100 = .006 of a final reward at the first of 100 tokens; here the
    horizon grows with the row. l ≤ 1/α gives λ = 0.

    Args:
        scored, reward_BT, gamma: as in `gae`.
        alpha: α > 0.
        lam: a fixed λ in its place (the critic's targets take 1); None: by the length.
    """
    if lam is None:
        length_B = jnp.sum(scored.mask_BT, axis=1, dtype=reward_BT.dtype)
        lam = jnp.maximum(1.0 - 1.0 / (alpha * jnp.maximum(length_B, 1.0)), 0.0)
    return gae_advantages(reward_BT, scored.value_BT, scored.mask_BT, gamma=gamma, lam=lam)


def reward_to_go(scored: Scored, reward_BT: Array, *, gamma: float = 1.0) -> Array:
    """Â_t = Σ_{l≥0} γ^l r_{t+l}, no baseline (REINFORCE++, 2501.03262); γ in [0, 1]."""
    return discounted_returns(reward_BT, scored.mask_BT, gamma=gamma)


def greedy_baseline(scored: Scored, reward_BT: Array) -> Array:
    """ReMax's Â_t = Σ_{s≥t} r_s − r(x, greedy y)   (2310.10505)

    The baseline, `scored.baseline_B`, is the unshaped score of the prompt's greedy response: it
    does not depend on what was sampled, so the estimate stays unbiased with one sample a prompt.
    A KL in the reward enters as reward to go, without a baseline of its own (verl does the same).
    """
    _need(scored, "greedy_baseline", "baseline_B")
    return_BT = discounted_returns(reward_BT, scored.mask_BT, gamma=1.0)
    counted_BT = scored.mask_BT & scored_rows(scored)[:, None]
    return jnp.where(counted_BT, return_BT - scored.baseline_B[:, None], 0)


# --- comparison within a group -----------------------------------------------------------------


def group_norm(scored: Scored, reward_BT: Array, *, ddof: int = 0, eps: float = 1e-6) -> Array:
    """GRPO's Â_i = (R_i − mean)/(std + eps) at every token of the row (2402.03300).

    The paper names neither ddof nor eps. ddof 0: the group is the whole population that is
    normalised, so the advantages of a group have root mean square 1 whatever its size, and a
    learning rate carries over from G = 4 to G = 64 (ddof 1, as in TRL and verl, gives
    √((G − 1)/G)). eps 1e-6: one rounding step of a score near 1 stays below .06 while scores that
    differ by .001 are scaled to within .2 %. Near-equal scores are scaled to 1 like any others:
    [.80, .79, .81, .80] gives [0, −1.41, 1.41, 0].
    """
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(
        group_normalise(score_B, scored.group_B, ddof=ddof, eps=eps, valid_B=valid_B), scored
    )


def group_norm_each(
    scored: Scored,
    reward_BT: Array,
    *,
    ddof: int = 0,
    eps: float = 1e-6,
    weights: tuple[float, ...] | None = None,
) -> Array:
    """Â_i = Σ_c w_c·(score_ic − mean_c)/(std_c + eps): normalise each function, then sum (GDPO).

    (2601.05242; the batch normalisation that follows there is `whiten`.) `group_norm` sums and then
    normalises: a function with a wide range drowns the others, and two that cancel leave nothing.
    Only rows to which a function applies enter its statistics. The functions' own scores are read,
    not `reward_BT`.

    Args:
        scored, reward_BT, ddof, eps: as in `group_norm`.
        weights: w_c, one a reward function; None: all 1. `score_BC` bears its weight already, but
            of a z-score only the weight's sign is left.

    Raises:
        ConfigError: not as many weights as reward functions.
    """
    columns = scored.score_BC.shape[1]
    weights = (1.0,) * columns if weights is None else weights
    if len(weights) != columns:
        raise ConfigError(f"group_norm_each: {len(weights)} weights, {columns} reward functions")
    counted_B, total_B = jnp.any(scored.mask_BT, axis=1), jnp.zeros_like(scored.score_BC[:, 0])
    for c, weight in enumerate(weights):
        normal_B = group_normalise(
            scored.score_BC[:, c],
            scored.group_B,
            ddof=ddof,
            eps=eps,
            valid_B=scored.valid_BC[:, c] & counted_B,
        )
        total_B = total_B + weight * normal_B
    return _to_tokens(total_B, scored)


def process_norm(scored: Scored, reward_BT: Array, *, ddof: int = 0, eps: float = 1e-6) -> Array:
    """Â_t = Σ_{steps ending at or after t} (r_step − mean)/(std + eps)   (2402.03300, 4.1.3)

    Process supervision: the step rewards of all rows of a group are normalised as one set; a token
    gets the sum over its own and the later steps of its row. Tokens after the last step get 0.
    Reads `step_score_BT` at the counted columns of `step_end_BT`, not `reward_BT`.

    Args:
        scored, reward_BT, ddof, eps: as in `group_norm`.
    """
    _need(scored, "process_norm", "step_score_BT", "step_end_BT")
    step_BT = scored.step_end_BT & scored.mask_BT
    normal_BT = group_normalise_entries(
        scored.step_score_BT, step_BT, scored.group_B, ddof=ddof, eps=eps
    )
    later_BT = jnp.cumsum(normal_BT[:, ::-1], axis=1)[:, ::-1]
    return jnp.where(scored.mask_BT, later_BT, 0)


def group_centre(scored: Scored, reward_BT: Array) -> Array:
    """Dr. GRPO's Â_i = R_i − mean(group) at every token of the row (2503.20783).

    Up to the factor (k − 1)/k RLOO's advantage.
    """
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(group_centred(score_B, scored.group_B, valid_B=valid_B), scored)


def leave_one_out(scored: Scored, reward_BT: Array) -> Array:
    """RLOO's Â_i = R_i − mean of the group's others, at every token of the row (2402.14740)."""
    score_B, valid_B = _outcome(scored, reward_BT)
    return _to_tokens(group_leave_one_out(score_B, scored.group_B, valid_B=valid_B), scored)


def leave_one_out_norm(
    scored: Scored, reward_BT: Array, *, ddof: int = 0, eps: float = 1e-6
) -> Array:
    """(R_i − mean of the others)/(std of the others + eps), not divided where that std is 0.

    Arguments as in `group_norm`; see `ops.groups.group_leave_one_out_normalised`.
    """
    score_B, valid_B = _outcome(scored, reward_BT)
    normal_B = group_leave_one_out_normalised(
        score_B, scored.group_B, ddof=ddof, eps=eps, valid_B=valid_B
    )
    return _to_tokens(normal_B, scored)


def _need(scored, name, *fields):
    missing = [field for field in fields if getattr(scored, field) is None]
    if missing:
        raise ConfigError(f"advantage={name} reads Scored.{missing[0]}, which is None")


def _outcome(scored, reward_BT):
    return masked_sum(reward_BT, scored.mask_BT, axis=1), scored_rows(scored)


def _to_tokens(advantage_B, scored):
    return jnp.where(scored.mask_BT, advantage_B[:, None], 0)


# Estimators that read a critic's values.
VALUE_BASELINES = frozenset({gae, gae_continued, gae_adaptive})
# Estimators that compare rows of one prompt: a single sample a prompt gives them nothing.
GROUP_BASELINES = frozenset(
    {group_norm, group_norm_each, process_norm, group_centre, leave_one_out, leave_one_out_norm}
)
# Estimators that read the functions' scores themselves and not the shaped reward.
SCORE_BASELINES = frozenset({group_norm_each, process_norm})
# Estimators that read the score of a greedy response, and those that read step rewards.
GREEDY_BASELINES = frozenset({greedy_baseline})
STEP_BASELINES = frozenset({process_norm})

__all__ = [
    "GREEDY_BASELINES",
    "GROUP_BASELINES",
    "SCORE_BASELINES",
    "STEP_BASELINES",
    "VALUE_BASELINES",
    "discounted_returns",
    "gae",
    "gae_adaptive",
    "gae_advantages",
    "gae_continued",
    "greedy_baseline",
    "group_centre",
    "group_centred",
    "group_leave_one_out",
    "group_leave_one_out_normalised",
    "group_norm",
    "group_norm_each",
    "group_normalise",
    "group_normalise_entries",
    "leave_one_out",
    "leave_one_out_norm",
    "mixed_group",
    "process_norm",
    "reward_to_go",
    "scored_rows",
]
