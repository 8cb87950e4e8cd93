"""A preference algorithm over single completions, each desirable or not; the contract of pairs.

    labels = unpaired_labels(objective, batch.desirable_B, logp_B=..., ..., logp_ref_other_B=...)
    # ... cut (batch, labels) by rows, and for every part:
    loss, metrics = unpaired_loss(objective, logp_B, logp_ref_B, desirable_B, labels)

`unpaired_labels` sees the whole batch, once, before it is cut. `needs_other` (KTO): it wants
`logp_other_B` and `logp_ref_other_B`, the mismatched pairs under the present policy and the
reference. `needs_statistic` without it (BCO): `logp_B` and `logp_ref_B`. One pass without gradient.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.algorithms.checks import check_statistic
from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.preference_unpaired import bco_unpaired, class_shift, kto, mismatched_kl
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.ops.totals import Share, total
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import pytree

# Losses with a fourth argument, and the statistic that it is.
_STATISTIC = {kto: mismatched_kl, bco_unpaired: class_shift}
_READS_OTHER = frozenset({mismatched_kl})


@pytree
class UnpairedObjective:
    """What an unpaired preference algorithm is made of. Numbers are leaves; off is None.

    loss: (logp_B, logp_ref_B, desirable_B) -> loss_B, or with the statistic as fourth argument
    statistic: (ratio_B, other_ratio_B, desirable_B, weight_B) -> [B]

    A plain module-level function is wrapped by `bind`.

    Raises:
        ConfigError: what `settle` and `check_calls` raise, a loss without the statistic that it
            reads, or a statistic that it does not read.
    """

    loss: Bound
    statistic: Bound | None = None

    def __post_init__(self):
        settle(self)
        check_statistic(self, _STATISTIC)
        sums = ("logp_B", "logp_ref_B", "desirable_B")
        check_calls(
            self,
            loss=sums if self.statistic is None else (*sums, "statistic_B"),
            statistic=("ratio_B", "other_ratio_B", "desirable_B", "weight_B"),
        )

    @property
    def needs_statistic(self) -> bool:
        """`unpaired_labels` needs the present policy's log-probs of the whole batch."""
        return self.statistic is not None

    @property
    def needs_other(self) -> bool:
        """The batch must hold mismatched pairs (a row's prompt with another row's completion)."""
        return self.statistic is not None and self.statistic.fn in _READS_OTHER


@pytree
class UnpairedLabels:
    """Frozen before the batch is cut; every array leads with B."""

    weight_B: Array
    statistic_B: Array | None = None


def unpaired_labels(
    objective: UnpairedObjective,
    desirable_B: Array,
    *,
    logp_B: Array | None = None,
    logp_ref_B: Array | None = None,
    logp_other_B: Array | None = None,
    logp_ref_other_B: Array | None = None,
) -> UnpairedLabels:
    """What the parts of a batch need to know of the whole: 1/B a row, and the statistic.

    Args:
        objective: the algorithm.
        desirable_B: [B] bool, all rows of the update.
        logp_B, logp_ref_B: [B] Σ log π and Σ log π_ref, under the policy that the gradient is taken
            at; read if `needs_statistic` and not `needs_other`.
        logp_other_B, logp_ref_other_B: [B] the same of the mismatched pairs; read if `needs_other`.

    Raises:
        ConfigError: what the statistic reads is None, or `needs_other` in a batch of one row.
    """
    desirable_B = jnp.asarray(desirable_B).astype(bool)
    rows = desirable_B.shape[0]
    weight_B = jnp.full(rows, 1.0 / rows, jnp.float32)
    statistic_B = None
    if objective.needs_other:
        if rows < 2:
            raise ConfigError(
                f"loss={objective.loss} mismatches the rows of a batch, which needs 2 or more; "
                "use larger batches, or apo_zero_unpaired"
            )
        other_B = _difference(logp_other_B, logp_ref_other_B, "logp_other_B and logp_ref_other_B")
        statistic_B = objective.statistic(None, other_B, desirable_B, weight_B)
    elif objective.needs_statistic:
        ratio_B = _difference(logp_B, logp_ref_B, "logp_B and logp_ref_B")
        statistic_B = objective.statistic(ratio_B, None, desirable_B, weight_B)
    return lax.stop_gradient(UnpairedLabels(weight_B=weight_B, statistic_B=statistic_B))


def unpaired_loss(
    objective: UnpairedObjective,
    logp_B: Array,
    logp_ref_B: Array,
    desirable_B: Array,
    labels: UnpairedLabels,
) -> tuple[Array, dict]:
    """This part's share of the loss: Σ_b w_b·ℓ_b, w = 1/B of the whole batch.

    Metrics add over parts. `Share`: "loss". `Total`: "reward_desirable", "reward_undesirable"
    (β·log-ratio), "logp_desirable", "logp_undesirable" (nats a response), each over the rows of its
    class: a class without rows has the count 0 and is absent from a report, not NaN. "statistic" is
    z₀ or δ in nats.

    Args:
        objective: the algorithm.
        logp_B: [b] Σ over counted tokens of log π, with gradient.
        logp_ref_B: [b], no gradient.
        desirable_B: [b] bool.
        labels: this part's rows of `unpaired_labels` of the whole batch.

    Raises:
        ConfigError: the loss reads a statistic and the labels hold none.
    """
    desirable_B = jnp.asarray(desirable_B).astype(bool)  # ~1 of a whole number is −2, and true
    logp_B = logp_B.astype(jnp.float32)
    logp_ref_B = lax.stop_gradient(logp_ref_B.astype(jnp.float32))
    inputs = (logp_B, logp_ref_B, desirable_B)
    all_B = jnp.ones_like(desirable_B)
    metrics = {}
    if objective.needs_statistic:
        if labels.statistic_B is None:
            raise ConfigError("loss reads labels.statistic_B, which is None")
        inputs = (*inputs, labels.statistic_B)
        metrics["statistic"] = total(labels.statistic_B, all_B)
    loss = masked_sum(labels.weight_B * objective.loss(*inputs), all_B)
    metrics["loss"] = Share(part=loss)
    reward_B = objective.loss.kw.get("beta", 1.0) * (logp_B - logp_ref_B)
    for name, class_B in (("desirable", desirable_B), ("undesirable", ~desirable_B)):
        metrics[f"reward_{name}"] = total(reward_B, class_B)
        metrics[f"logp_{name}"] = total(logp_B, class_B)
    return loss, lax.stop_gradient(metrics)


def _difference(logp_B, logp_ref_B, fields):
    if logp_B is None or logp_ref_B is None:
        raise ConfigError(f"statistic reads {fields}; one is None")
    return logp_B.astype(jnp.float32) - logp_ref_B.astype(jnp.float32)
