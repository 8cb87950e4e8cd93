"""An algorithm as a value: a record of its parts, and the two functions that read it.

`estimate` turns scores into frozen labels (advantages, returns, corrections, the final mask);
`policy_loss` turns fresh log-probs and those labels into a number to differentiate. Both are
pure and may be jitted with the objective as an argument: its numbers are traced, its functions
are static.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.advantages import (
    GREEDY_BASELINES,
    GROUP_BASELINES,
    STEP_BASELINES,
    mixed_group,
    scored_rows,
)
from rlhf_jax.algorithms.checks import check_batch, check_parts, check_scored
from rlhf_jax.algorithms.measures import label_metrics, sampled_logp, score_metrics, token_metrics
from rlhf_jax.bind import Bound, bind
from rlhf_jax.losses.aggregate import token_mean, weighted_sum
from rlhf_jax.losses.kl import KL, kl_tokens
from rlhf_jax.losses.reweighted import needs_advantage
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.losses.value import ValueTerm
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.ops.shaping import place_at_last, subtract_kl
from rlhf_jax.ops.totals import Share
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import PolicyBatch, Scored, pytree, replace

_CALLED_WITH = {
    "advantage": ("scored", "reward_BT"),
    "whiten": ("advantage_BT", "mask_BT"),
    "ratio": ("logp_BT", "logp_old_BT", "mask_BT"),
    "surrogate": ("logp_BT", "logp_old_BT", "ratio_BT", "advantage_BT", "mask_BT"),
    "aggregate": ("mask_BT", "group_B"),
    "correction": ("logp_old_BT", "logp_sampler_BT", "mask_BT"),
    "select": ("scored",),
    "shape_score": ("scored", "score_B"),
    "whiten_reward": ("reward_BT", "mask_BT"),
    "keep_group": ("score_B", "group_B", "valid_B"),
}


@pytree
class PolicyObjective:
    """What a policy-gradient algorithm is made of. Numbers are leaves; off is None.

    advantage: (scored, reward_BT) -> advantage_BT
    whiten: (advantage_BT, mask_BT) -> advantage_BT, over the whole batch, after the estimator
    ratio: (logp_BT, logp_old_BT, mask_BT) -> ratio_BT
    surrogate: (logp_BT, logp_old_BT, ratio_BT, advantage_BT, mask_BT) -> loss_BT
    aggregate: (mask_BT, group_B) -> weight_BT
    reward_kl: charged to the token reward, before the advantage; k1 (others warn)
    loss_kl: added to the token loss; k2 or k3 (k1 warns: its expected gradient there is 0)
    entropy: coefficient of the entropy bonus, added to the token objective
    correction: (logp_old_BT, logp_sampler_BT, mask_BT) -> (weight_BT, mask_BT)
    select: each (scored) -> (weight_BT, mask_BT), which tokens teach, e.g. none of a cut row's
    shape_score: each (scored, score_B) -> score_B, in order, e.g. an over-length penalty
    whiten_reward: (reward_BT, mask_BT) -> reward_BT, after shaping and KL, before the advantage
    keep_group: (score_B, group_B, valid_B) -> keep_B, judged on the score before shaping
    value: the critic's loss; None means that no critic is built

    A plain module-level function is wrapped by `bind`, and a single one by a tuple where several
    may stand.

    Raises:
        ConfigError: what `settle` and `check_calls` raise, or parts that contradict each other.

    Warns:
        ConfigWarning: a KL estimator stands where its gradient is not that of a KL.
    """

    advantage: Bound
    whiten: Bound | None = None
    ratio: Bound = bind(token_ratio)
    surrogate: Bound = bind(clipped, low=0.2, high=0.2)
    aggregate: Bound = bind(token_mean)
    reward_kl: KL | None = None
    loss_kl: KL | None = None
    entropy: float | None = None
    correction: Bound | None = None
    select: tuple[Bound, ...] = ()
    shape_score: tuple[Bound, ...] = ()
    whiten_reward: Bound | None = None
    keep_group: Bound | None = None
    value: ValueTerm | None = None

    def __post_init__(self):
        settle(self)
        check_parts(self)
        check_calls(self, **_CALLED_WITH)

    @property
    def needs_reference(self) -> bool:
        """The loss or the reward reads log-probs of a reference policy."""
        return self.reward_kl is not None or self.loss_kl is not None

    @property
    def needs_critic(self) -> bool:
        """A critic must be built, scored and updated."""
        return self.value is not None

    @property
    def needs_group(self) -> bool:
        """Rows of one prompt are compared, so fewer than two samples a prompt teach nothing."""
        return self.advantage.fn in GROUP_BASELINES or self.keep_group is not None

    @property
    def needs_greedy(self) -> bool:
        """A greedy response a prompt must be drawn and scored: `Scored.baseline_B` (ReMax)."""
        return self.advantage.fn in GREEDY_BASELINES

    @property
    def needs_steps(self) -> bool:
        """Step rewards must be there: `Scored.step_score_BT` and `step_end_BT`."""
        return self.advantage.fn in STEP_BASELINES

    @property
    def needs_old(self) -> bool:
        """The trainer's own log-probs of the sampled tokens are compared with the sampler's."""
        return self.correction is not None

    @property
    def idle_rows_teach(self) -> bool:
        """A row whose advantage is 0 on every token may still have a gradient: the loss has a KL,
        an entropy bonus or a critic, or its surrogate is not known to vanish with the advantage."""
        terms = (self.loss_kl, self.entropy, self.value)
        return any(x is not None for x in terms) or not needs_advantage(self.surrogate)


@pytree
class Estimate:
    """Frozen labels of one rollout: the fields of `PolicyBatch` that come from scores.

    `mask_BT` is the final mask, after filters and corrections: the aggregate's weight is taken
    from it. `metrics` are scalars over the whole rollout.
    """

    advantage_BT: Array
    mask_BT: Array
    return_BT: Array | None
    correction_BT: Array | None
    metrics: dict[str, Array]


def total_score(scored: Scored) -> Array:
    """Σ_c score_BC over the functions that apply to the row; 0 where none does."""
    return masked_sum(scored.score_BC, scored.valid_BC, axis=1)


def estimate(objective: PolicyObjective, scored: Scored) -> Estimate:
    """Scores to advantages: shape, filter, place, charge KL, estimate, whiten, correct.

    1. Each row's score is the sum over the reward functions that apply to it. A row that none
       could score, or that counts no token, leaves the batch: its mask becomes empty, and it
       enters no baseline, no denominator and no loss.
    2. `keep_group` judges that score, before shaping, and empties the mask of the rows it drops.
       The fraction of groups whose scores are all equal is reported either way.
    3. `shape_score` is applied in order; the result lands on the last counted token, step rewards
       on theirs; `reward_kl` is charged at every counted token, on the log-probs of the policy that
       sampled (`logp_old_BT`, or the sampler's own `logp_full_BT` where the trainer has not
       scored). Then `whiten_reward`.
    4. `advantage`, then `whiten` over all counted tokens of the batch.
    5. Critic targets: V + Â before whitening, with λ = `value.lam` if given, else the advantage's.
    6. `correction` weighs tokens by the sampler–trainer gap, and `select` by what they are; either
       may mask them. Weights multiply.

    Args:
        objective: the algorithm.
        scored: everything about one rollout; what the objective reads must not be None.

    Raises:
        ConfigError: `scored` lacks what a part of the objective reads.
    """
    check_scored(objective, scored)
    score_B, rows_B = total_score(scored), scored_rows(scored)
    mixed_B = mixed_group(score_B, scored.group_B, rows_B)
    keep_B = rows_B
    if objective.keep_group is not None:
        keep_B = keep_B & objective.keep_group(score_B, scored.group_B, rows_B)
    kept = replace(scored, mask_BT=scored.mask_BT & keep_B[:, None])

    reward_BT = _rewards(objective, kept, score_B)
    seen_BT = reward_BT
    if objective.whiten_reward is not None:
        seen_BT = objective.whiten_reward(reward_BT, kept.mask_BT)
    advantage_BT = jnp.where(kept.mask_BT, objective.advantage(kept, seen_BT), 0)
    return_BT = _returns(objective, kept, seen_BT, advantage_BT)
    if objective.whiten is not None:
        advantage_BT = objective.whiten(advantage_BT, kept.mask_BT)
    correction_BT, mask_BT = _settle(objective, kept)
    metrics = score_metrics(scored, score_B, rows_B, mixed_B, keep_B)
    metrics |= label_metrics(kept, reward_BT, return_BT, correction_BT, mask_BT)
    labels = Estimate(
        advantage_BT=jnp.where(mask_BT, advantage_BT, 0),
        mask_BT=mask_BT,
        return_BT=None if return_BT is None else jnp.where(mask_BT, return_BT, 0),
        correction_BT=correction_BT,
        metrics=metrics,
    )
    return lax.stop_gradient(labels)


def _rewards(objective, kept, score_B):
    """Token rewards: shaped score and step scores placed, KL charged."""
    for shape in objective.shape_score:
        score_B = shape(kept, score_B)
    reward_BT = place_at_last(score_B, kept.mask_BT)
    if kept.step_end_BT is not None:
        step_BT = kept.step_end_BT & kept.mask_BT
        reward_BT = reward_BT + jnp.where(step_BT, kept.step_score_BT, 0)
    if objective.reward_kl is not None:
        kl_BT = objective.reward_kl.estimator(sampled_logp(kept), kept.logp_ref_BT)
        reward_BT = subtract_kl(reward_BT, kl_BT, objective.reward_kl.coef, kept.mask_BT)
    return reward_BT


def _settle(objective, kept):
    """(weight_BT or None, the final mask): correction and selections together."""
    weight_BT, mask_BT = None, kept.mask_BT
    if objective.correction is not None:
        weight_BT, mask_BT = objective.correction(kept.logp_old_BT, kept.logp_sampler_BT, mask_BT)
    for select in objective.select:
        more_BT, mask_BT = select(replace(kept, mask_BT=mask_BT))
        weight_BT = more_BT if weight_BT is None else weight_BT * more_BT
    return weight_BT, mask_BT


def _returns(objective, scored, reward_BT, advantage_BT):
    if objective.value is None:
        return None
    if objective.value.lam is not None:
        advantage_BT = objective.advantage.replace(lam=objective.value.lam)(scored, reward_BT)
    return jnp.where(scored.mask_BT, scored.value_BT + advantage_BT, 0)


def policy_loss(
    objective: PolicyObjective,
    logp_BT: Array,
    batch: PolicyBatch,
    weight_BT: Array,
    *,
    entropy_BT: Array | None = None,
    value_BT: Array | None = None,
) -> tuple[Array, dict]:
    """This micro-batch's part of the loss: Σ_bt w_bt·(c_bt·ℓ_bt + β·kl_bt − η·H_bt + κ·v_bt).

    ℓ the surrogate, c the weight of corrections and selections (on the surrogate alone), kl the
    `loss_kl` estimate, H the entropy, v the critic's loss. `weight_BT` was taken once from the
    whole batch, so the losses and gradients of micro-batches are added, never averaged.

    Metrics add the same way, with `ops.totals.add_metrics`, and are read with `metric_values`:
    a `Share` ("loss", "policy_loss", "kl_loss", "value_loss") is a part of the whole batch's
    weighted sum and is added; a `Total` (everything per token) holds a sum and the number of
    tokens in it, both added, divided once at the end; a `Peak` ("ratio_max") takes the larger.

    Args:
        objective: the algorithm.
        logp_BT: [B, T] log π of the batch's tokens, with gradient.
        batch: frozen labels; `logp_old_BT` None means π_old = π, ratio exactly 1.
        weight_BT: [B, T] from `objective.aggregate`, this micro-batch's rows of it.
        entropy_BT: [B, T], needed if `objective.entropy` is not None, else only reported.
        value_BT: [B, T] critic values, aligned with the tokens, needed if `objective.value` is set.

    Raises:
        ConfigError: something that the objective reads is None.
    """
    check_batch(objective, batch, entropy_BT, value_BT)
    mask_BT = batch.mask_BT
    logp_BT = jnp.where(mask_BT, logp_BT.astype(jnp.float32), 0)
    old_BT = lax.stop_gradient(logp_BT)
    if batch.logp_old_BT is not None:
        old_BT = jnp.where(mask_BT, batch.logp_old_BT, 0)
    ratio_BT = objective.ratio(logp_BT, old_BT, mask_BT)
    loss_BT = objective.surrogate(logp_BT, old_BT, ratio_BT, batch.advantage_BT, mask_BT)
    if batch.correction_BT is not None:
        loss_BT = loss_BT * jnp.where(mask_BT, batch.correction_BT, 1)
    policy = loss = weighted_sum(loss_BT, weight_BT)
    metrics = {"policy_loss": Share(part=policy)}
    if objective.loss_kl is not None:
        ref_BT = jnp.where(mask_BT, batch.logp_ref_BT, 0)
        kl_BT = kl_tokens(objective.loss_kl, logp_BT, old_BT, ref_BT, mask_BT)
        penalty = objective.loss_kl.coef * weighted_sum(kl_BT, weight_BT)
        loss, metrics["kl_loss"] = loss + penalty, Share(part=penalty)
    if objective.entropy is not None:
        loss = loss - objective.entropy * weighted_sum(entropy_BT, weight_BT)
    if objective.value is not None:
        term = objective.value
        value_loss_BT = term.loss(value_BT, batch.value_old_BT, batch.return_BT, mask_BT)
        value_loss = weighted_sum(value_loss_BT, weight_BT)
        loss, metrics["value_loss"] = loss + term.coef * value_loss, Share(part=value_loss)
    metrics["loss"] = Share(part=loss)
    metrics |= token_metrics(objective, logp_BT, old_BT, ratio_BT, batch, entropy_BT)
    return loss, lax.stop_gradient(metrics)
