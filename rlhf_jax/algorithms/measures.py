"""What is measured on the way: scalars over a rollout, and per-token totals of an update."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.losses.kl import k1, k3
from rlhf_jax.ops.masked import masked_count, masked_mean, masked_sum, masked_var
from rlhf_jax.ops.totals import Peak, Total, total
from rlhf_jax.types import PolicyBatch, Scored


def sampled_logp(scored: Scored) -> Array | None:
    """Log-probs of the policy that sampled: the trainer's, else the sampler's full softmax."""
    return scored.logp_full_BT if scored.logp_old_BT is None else scored.logp_old_BT


def clipped_tokens(
    objective, logp_BT: Array, old_BT: Array, advantage_BT: Array, mask_BT: Array
) -> tuple[Array, Array]:
    """Counted tokens that the surrogate gives no gradient though Â ≠ 0, below and above ratio 1.

    Asked of the surrogate itself, so it holds for every form of clip. With `clipped` a token is
    low only if Â < 0 and r < 1 − ε_low, high only if Â > 0 and r > 1 + ε_high.
    """

    def loss(logp_BT):
        ratio_BT = objective.ratio(logp_BT, old_BT, mask_BT)
        loss_BT = objective.surrogate(logp_BT, old_BT, ratio_BT, advantage_BT, mask_BT)
        return jnp.sum(loss_BT), ratio_BT

    gradient_BT, ratio_BT = jax.grad(loss, has_aux=True)(lax.stop_gradient(logp_BT))
    dead_BT = mask_BT & (gradient_BT == 0) & (advantage_BT != 0)
    return dead_BT & (ratio_BT < 1), dead_BT & (ratio_BT > 1)


def score_metrics(
    scored: Scored, score_B: Array, rows_B: Array, mixed_B: Array, keep_B: Array
) -> dict[str, Array]:
    """What the reward functions and the filters did, over all rows of the rollout.

    `score` is before shaping; `groups_equal` and `groups_kept` are fractions of the groups.
    `length_better` and `length_worse` are mean lengths of the rows above and below the mean score
    of their group, of right and wrong answers where those are scored; NaN where there is none.
    """
    length_B = jnp.sum(scored.mask_BT, axis=1, dtype=jnp.float32)
    # One entry a group: a row counts 1/(rows of its group).
    counts_B = rows_B.astype(jnp.float32)
    size_B = jax.ops.segment_sum(counts_B, scored.group_B, rows_B.shape[0])[scored.group_B]
    one_B = jnp.where(rows_B, 1.0 / jnp.maximum(size_B, 1.0), 0.0)
    groups = jnp.maximum(jnp.sum(one_B), 1.0)
    # a group of equal scores has no better row, though rounding may put its mean beside them
    part_B = one_B * jnp.where(rows_B, score_B, 0)
    center_B = jax.ops.segment_sum(part_B, scored.group_B, rows_B.shape[0])[scored.group_B]
    above_B, below_B = (
        rows_B & mixed_B & far_B for far_B in (score_B > center_B, score_B < center_B)
    )
    return {
        "score": masked_mean(score_B, rows_B),
        "score_std": jnp.sqrt(masked_var(score_B, rows_B)),
        "length": jnp.mean(length_B),
        "length_better": _mean_of(length_B, above_B),
        "length_worse": _mean_of(length_B, below_B),
        "truncated": jnp.mean(scored.truncated_B.astype(jnp.float32)),
        "unscored": 1.0 - jnp.mean(rows_B.astype(jnp.float32)),
        "groups_equal": jnp.sum(jnp.where(mixed_B, 0.0, one_B)) / groups,
        "groups_kept": jnp.sum(jnp.where(keep_B, one_B, 0.0)) / groups,
    }


def _mean_of(x_B: Array, rows_B: Array) -> Array:
    return jnp.where(jnp.any(rows_B), masked_mean(x_B, rows_B), jnp.nan)


def label_metrics(
    scored: Scored,
    reward_BT: Array,
    return_BT: Array | None,
    correction_BT: Array | None,
    final_BT: Array,
) -> dict[str, Array]:
    """What the labels look like, over the rows and tokens that were kept.

    `reward` is a row's sum after shaping and KL; `kl_response` the mean over rows of the summed
    k1, nats per response; `sampler_gap` the mean |log π_old − log π| of trainer and sampler;
    `unused` the fraction of tokens that corrections and selections weigh 0 or dropped from the
    final mask.
    """
    mask_BT = scored.mask_BT
    row_B = jnp.any(mask_BT, axis=1)
    metrics = {"reward": masked_mean(masked_sum(reward_BT, mask_BT, axis=1), row_B)}
    sampled_BT = sampled_logp(scored)
    if scored.logp_ref_BT is not None and sampled_BT is not None:
        kl_B = masked_sum(k1(sampled_BT, scored.logp_ref_BT), mask_BT, axis=1)
        metrics["kl_response"] = masked_mean(kl_B, row_B)
    if scored.logp_old_BT is not None and scored.logp_full_BT is not None:
        gap_BT = jnp.abs(scored.logp_old_BT - scored.logp_full_BT)
        metrics["sampler_gap"] = masked_mean(gap_BT, mask_BT & ~jnp.isnan(gap_BT))
    if correction_BT is not None:
        metrics["correction"] = masked_mean(correction_BT, mask_BT)
        used_BT = final_BT.astype(bool) & (correction_BT > 0)
        metrics["unused"] = masked_mean((~used_BT).astype(jnp.float32), mask_BT)
        if scored.logp_sampler_BT is not None:
            lost_BT = mask_BT & jnp.isnan(scored.logp_sampler_BT)
            metrics["sampler_nan"] = jnp.sum(lost_BT) / masked_count(mask_BT)
    if return_BT is not None:
        # 1 − Var[R − V]/Var[R]: how much of the targets the critic already knows
        spread = masked_var(return_BT, mask_BT)
        left = masked_var(return_BT - scored.value_BT, mask_BT)
        metrics["value_explained"] = jnp.where(
            spread > 0, 1.0 - left / jnp.maximum(spread, 1e-20), 0
        )
    return metrics


def token_metrics(
    objective,
    logp_BT: Array,
    old_BT: Array,
    ratio_BT: Array,
    batch: PolicyBatch,
    entropy_BT: Array | None,
) -> dict[str, Total | Peak]:
    """Additive per-token metrics of one micro-batch; log-probs already 0 outside the mask."""
    mask_BT = batch.mask_BT
    low_BT, high_BT = clipped_tokens(objective, logp_BT, old_BT, batch.advantage_BT, mask_BT)
    metrics = {
        "clip_low": total(low_BT.astype(jnp.float32), mask_BT),
        "clip_high": total(high_BT.astype(jnp.float32), mask_BT),
        "ratio": total(ratio_BT, mask_BT),
        "ratio_max": Peak(peak=jnp.max(jnp.where(mask_BT, ratio_BT, 0))),
        # π_old drew the tokens, so k3 with π in the place of the reference
        "kl_old": total(k3(old_BT, logp_BT), mask_BT),
    }
    if batch.logp_ref_BT is not None:
        ref_BT = jnp.where(mask_BT, batch.logp_ref_BT, 0)
        metrics["kl_k1"] = total(k1(logp_BT, ref_BT), mask_BT)
        metrics["kl_k3"] = total(k3(logp_BT, ref_BT), mask_BT)
    if entropy_BT is not None:
        metrics["entropy"] = total(entropy_BT, mask_BT)
    if batch.logp_full_BT is not None:
        gap_BT = jnp.abs(old_BT - batch.logp_full_BT)
        known_BT = mask_BT & ~jnp.isnan(gap_BT)
        metrics["sampler_gap"] = total(gap_BT, known_BT)
        metrics["sampler_gap_max"] = Peak(peak=jnp.max(jnp.where(known_BT, gap_BT, 0)))
    return metrics
