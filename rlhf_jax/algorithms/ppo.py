"""PPO with a critic and a KL charged to the reward (1707.06347 as used in 1909.08593)."""

from __future__ import annotations

from rlhf_jax.advantages import gae
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.algorithms.shaping import clip_score, missing_end_score
from rlhf_jax.bind import Bound, bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import token_mean
from rlhf_jax.losses.kl import KL, adaptive_coef, k1
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.losses.value import ValueTerm, clipped_squared, squared
from rlhf_jax.ops.masked import whiten

_WHITEN = bind(whiten)  # over all counted tokens of the rollout


def ppo(
    *,
    kl_coef: float | None = 0.05,
    kl_target: float | None = None,
    kl_horizon: float = 1e4,
    kl_batch: int | None = None,
    gamma: float = 1.0,
    lam: float = 0.95,
    clip: float = 0.2,
    value_clip: float | None = 0.2,
    value_coef: float = 0.1,
    missing_end: float | None = None,
    score_limit: float | None = None,
    whiten_reward: Bound | None = None,
    whiten_advantage: Bound | None = _WHITEN,
) -> PolicyObjective:
    """L = −min(r_t Â_t, clip(r_t, 1 ± ε) Â_t) + c₁·V-loss, token mean; Â from GAE, whitened.

    (1707.06347, eqs. 7, 9, 11.) r_t = score at the end − β·k1_t, on the log-probs of the policy
    that sampled; k1 in the reward has the true gradient of KL(π ‖ π_ref). Numbers are those of
    lm-human-preferences (1909.08593) unless said; 2403.17031 repeats them. The details of
    "N implementation details of RLHF with PPO" that are maths, each with its default here:

        17  KL a token, in the reward       β .05, of 2403.17031 for summarisation (.15 there)
        20  adaptive β                      off: a fixed β is what later work reports; the paper's
                                            is kl_coef=.15, kl_target=6.0
        14  fixed score without an end      off: it needs a score to which −1 is a low one
            score clip                      off: it hides a reward model that has gone wild
        18  whiten rewards (mean kept)      off: lowers the win rate a little in 2403.17031; on by
                                            whiten_reward=bind(whiten, shift_mean=False)
        18  whiten advantages               on, population variance, 1e-8 in it
        15  γ 1, λ .95                      a response is one short episode
        19  value clip ±.2                  on; None is the plain ½(V − R)²
            c₁ .1                           the critic has an optimizer of its own here
        16  batch, minibatch, micro-batch   of the loop, not of this record

    Targets V_old + Â are frozen before any update. Â of a row cut short ends at its last token
    (`advantages.gae`); `gae_continued` bootstraps there instead.

    Args:
        kl_coef: β ≥ 0; None builds no reference. With `kl_target` its first value.
        kl_target: nats per response that an adaptive β steers to; None: β is fixed.
        kl_horizon: episodes over which it adapts, > 0.
        kl_batch: rows of one rollout, by which it adapts; needed with `kl_target`.
        gamma, lam: of GAE, in [0, 1].
        clip: ε ≥ 0 of the policy.
        value_clip: c ≥ 0 of the critic; None: no clip.
        value_coef: c₁ ≥ 0.
        missing_end: score of a row without an end token (−1 in the papers); None: its own.
        score_limit: c > 0 of a clip of the score to ±c; None: none.
        whiten_reward: (reward_BT, mask_BT) -> reward_BT, or None.
        whiten_advantage: likewise for the advantages.

    Raises:
        ConfigError: `kl_target` without `kl_coef` or without `kl_batch`.
    """
    if kl_target is not None and (kl_coef is None or kl_batch is None):
        raise ConfigError("ppo(kl_target=...) adapts kl_coef by kl_batch rows: give both")
    shape_score = ()
    if missing_end is not None:
        shape_score += (bind(missing_end_score, score=missing_end),)
    if score_limit is not None:
        shape_score += (bind(clip_score, limit=score_limit),)
    controller = None
    if kl_target is not None:
        controller = bind(adaptive_coef, target=kl_target, horizon=kl_horizon, batch=kl_batch)
    reward_kl = None
    if kl_coef is not None:
        reward_kl = KL(estimator=bind(k1), coef=kl_coef, controller=controller)
    value_loss = bind(squared) if value_clip is None else bind(clipped_squared, clip=value_clip)
    return PolicyObjective(
        advantage=bind(gae, gamma=gamma, lam=lam),
        whiten=whiten_advantage,
        ratio=bind(token_ratio),
        surrogate=bind(clipped, low=clip, high=clip),
        aggregate=bind(token_mean),
        shape_score=shape_score,
        reward_kl=reward_kl,
        whiten_reward=whiten_reward,
        value=ValueTerm(loss=value_loss, coef=value_coef),
    )
