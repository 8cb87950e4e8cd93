"""A preference algorithm as a value, for pairs; and the two functions that read it.

    length_BS = batch.mask_BST.sum(-1)
    labels = pair_labels(objective, length_BS, weight_B=..., logp_BS=..., logp_ref_BS=...)
    # ... cut (batch, labels) by rows, and for every part:
    loss, metrics = preference_loss(objective, logp_BS, length_BS, labels, logp_ref_BS=...)

`pair_labels` sees the whole batch, once, before it is cut; every array in it leads with B. The
losses, gradients and metrics of parts are added (`ops.totals`), and nothing depends on the cut.
Where `objective.needs_statistic`, it wants the present policy's `logp_BS` of the whole batch: one
forward pass without gradient. Both are pure and may be jitted with the objective as an argument.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.algorithms.checks import check_statistic
from rlhf_jax.bind import Bound, bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.nll import NLL
from rlhf_jax.losses.preference import log_ratio
from rlhf_jax.losses.preference_anchored import bco, reward_shift
from rlhf_jax.losses.preference_free import cpo, mean_logp, orpo, simpo, total_logp
from rlhf_jax.losses.preference_transport import aot, aot_unpaired, matched_leads, matched_sides
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.ops.totals import Share, total
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import pytree

# What reads no reference. Any other function is taken to read one.
_FREE = frozenset({simpo, cpo, orpo, total_logp, mean_logp})
# Losses with a fourth argument, and the statistic that it is.
_STATISTIC = {bco: reward_shift, aot: matched_leads, aot_unpaired: matched_sides}
# Statistics that compare sorted values: a pair of two ranks has no weight of its own.
_SORTED = frozenset({matched_leads, matched_sides})


@pytree
class PreferenceObjective:
    """What a paired preference algorithm is made of. Numbers are leaves; off is None.

    loss: (logp_BS, logp_ref_BS, length_BS) -> loss_B, or with the statistic as fourth argument
    reward: (logp_BS, logp_ref_BS, length_BS) -> reward_BS, nats; what is reported as the implicit
        reward, times the loss's `beta`, and what decides the accuracy; enters no loss
    statistic: (logp_BS, logp_ref_BS, length_BS, weight_B) -> array that leads with B
    weigh: (logp_BS, length_BS) -> factor_B of the preference loss, without gradient
    nll: the negative log-likelihood of the preferred side, added

    A plain module-level function is wrapped by `bind`.

    Raises:
        ConfigError: what `settle` and `check_calls` raise, a loss without the statistic that it
            reads, or a statistic that it does not read.
    """

    loss: Bound
    reward: Bound = bind(log_ratio)
    statistic: Bound | None = None
    weigh: Bound | None = None
    nll: NLL | None = None

    def __post_init__(self):
        settle(self)
        check_statistic(self, _STATISTIC)
        sums, weight = ("logp_BS", "logp_ref_BS", "length_BS"), ("weight_B",)
        check_calls(
            self,
            loss=sums if self.statistic is None else (*sums, "statistic"),
            reward=sums,
            statistic=(*sums, *weight),
            weigh=("logp_BS", "length_BS"),
        )

    @property
    def needs_reference(self) -> bool:
        """The loss or the reported reward reads log-probs of a reference policy."""
        return self.loss.fn not in _FREE or self.reward.fn not in _FREE

    @property
    def needs_statistic(self) -> bool:
        """`pair_labels` needs the present policy's log-probs of the whole batch."""
        return self.statistic is not None


@pytree
class PairLabels:
    """Frozen before the batch is cut; every array leads with B."""

    weight_B: Array
    nll_weight_B: Array | None = None
    statistic: Array | None = None


def pair_labels(
    objective: PreferenceObjective,
    length_BS: Array,
    *,
    weight_B: Array | None = None,
    logp_BS: Array | None = None,
    logp_ref_BS: Array | None = None,
) -> PairLabels:
    """What the parts of a batch need to know of the whole: weights, and the statistic.

    The loss is the weighted mean Σ w·ℓ / Σ w over the pairs, 1/B each where none are given: the
    scale of the weights does not matter, and a pair of weight 0 is as if it were not there.

    Args:
        objective: the algorithm.
        length_BS: [B, 2] counted tokens, all rows of the update.
        weight_B: [B] ≥ 0; None: every pair weighs the same.
        logp_BS: [B, 2] Σ log π under the policy that the gradient is taken at; read only if
            `objective.needs_statistic`.
        logp_ref_BS: [B, 2], likewise.

    Raises:
        ConfigError: the statistic's log-probs are None, or weights are given to a loss that sorts.
    """
    if weight_B is None:
        weight_B = jnp.ones(length_BS.shape[0], jnp.float32)
    elif objective.needs_statistic and objective.statistic.fn in _SORTED:
        raise ConfigError(
            f"loss={objective.loss} compares ranks over the batch: all pairs weigh the same; "
            "drop the weights"
        )
    # by the largest first: neither does a sum overflow nor is a small one taken for nothing
    largest = jnp.max(weight_B, initial=0.0)
    weight_B = weight_B / jnp.where(largest > 0, largest, 1.0)
    weight_B = weight_B / jnp.maximum(jnp.sum(weight_B), 1.0)
    nll_weight_B = None
    if objective.nll is not None:
        nll_weight_B = objective.nll.reduce(length_BS[:, 0], weight_B)
    statistic = None
    if objective.needs_statistic:
        _need("statistic", "logp_BS", logp_BS)
        _need("statistic", "logp_ref_BS", logp_ref_BS)
        logp_BS, logp_ref_BS = _counted(weight_B, logp_BS), _counted(weight_B, logp_ref_BS)
        statistic = objective.statistic(logp_BS, logp_ref_BS, length_BS, weight_B)
    labels = PairLabels(weight_B=weight_B, nll_weight_B=nll_weight_B, statistic=statistic)
    return lax.stop_gradient(labels)


def preference_loss(
    objective: PreferenceObjective,
    logp_BS: Array,
    length_BS: Array,
    labels: PairLabels,
    *,
    logp_ref_BS: Array | None = None,
) -> tuple[Array, dict]:
    """This part's share of the loss: Σ_b w_b·f_b·ℓ_b + α·Σ_b v_b·(−log π(y_w)).

    ℓ the preference loss, f `weigh`, v the weight of the NLL term and α its coefficient. The
    weights were taken from the whole batch, so the losses and gradients of parts are added.

    Metrics add the same way. `Share`: "loss", "preference_loss", "nll_loss". `Total` over pairs:
    "margin", "reward_chosen", "reward_rejected" (β·implicit reward), "accuracy" (strictly greater:
    a tie is wrong, so it is 0 at the reference), "logp_chosen", "logp_rejected" (nats a response).

    Args:
        objective: the algorithm.
        logp_BS: [b, 2] Σ over counted tokens of log π, with gradient; side 0 is preferred.
        length_BS: [b, 2] counted tokens.
        labels: this part's rows of `pair_labels` of the whole batch.
        logp_ref_BS: [b, 2], no gradient; needed if `objective.needs_reference`.

    Raises:
        ConfigError: something that the objective reads is None.
    """
    if objective.needs_reference:
        _need("loss", "logp_ref_BS", logp_ref_BS)
    if objective.needs_statistic:
        _need("loss", "labels.statistic", labels.statistic)
    weight_B = labels.weight_B
    logp_BS = _counted(weight_B, logp_BS)
    if logp_ref_BS is not None:
        logp_ref_BS = lax.stop_gradient(_counted(weight_B, logp_ref_BS))
    inputs = (logp_BS, logp_ref_BS, length_BS)
    loss_B = objective.loss(*inputs, *([labels.statistic] if objective.needs_statistic else []))
    if objective.weigh is not None:
        loss_B = loss_B * objective.weigh(logp_BS, length_BS)
    preference = loss = masked_sum(weight_B * loss_B, weight_B != 0)
    metrics = {"preference_loss": Share(part=preference)}
    if objective.nll is not None:
        nll = -jnp.sum(labels.nll_weight_B * logp_BS[:, 0])
        loss, metrics["nll_loss"] = loss + objective.nll.coef * nll, Share(part=nll)
    metrics["loss"] = Share(part=loss)
    metrics |= _pair_metrics(objective, inputs, weight_B != 0)
    return loss, lax.stop_gradient(metrics)


def _pair_metrics(objective, inputs, counted_B):
    logp_BS = inputs[0]
    reward_BS = objective.loss.kw.get("beta", 1.0) * objective.reward(*inputs)
    chosen_B, rejected_B = reward_BS[:, 0], reward_BS[:, 1]
    return {
        "reward_chosen": total(chosen_B, counted_B),
        "reward_rejected": total(rejected_B, counted_B),
        "margin": total(chosen_B - rejected_B, counted_B),
        "accuracy": total((chosen_B > rejected_B).astype(jnp.float32), counted_B),
        "logp_chosen": total(logp_BS[:, 0], counted_B),
        "logp_rejected": total(logp_BS[:, 1], counted_B),
    }


def _counted(weight_B, x_BS):
    """Select before computing: what a pair of weight 0 holds changes nothing, no gradient."""
    return jnp.where(weight_B[:, None] != 0, x_BS.astype(jnp.float32), 0)


def _need(part, field, array):
    if array is None:
        raise ConfigError(f"{part} reads {field}, which is None")
