"""What a reward model is trained by, as a value, and the function that reads it."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.bind import Bound, bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.bradley_terry import (
    best_of,
    centring,
    ordered_pairs,
    pair_accuracy,
    ranked,
)
from rlhf_jax.ops.masked import masked_sum
from rlhf_jax.ops.totals import Share, total
from rlhf_jax.parts import check_calls, settle
from rlhf_jax.types import RankedBatch, pytree

_NO_MARGIN = frozenset({best_of})


@pytree
class RewardObjective:
    """Parts of a reward model's loss. Numbers are leaves; off is None.

    loss: (score_BS, rank_BS, valid_BS) -> loss_B; with margins as fourth argument where the data
        has them
    centre: coefficient ≥ 0 of `bradley_terry.centring`, .01 in 2312.09244

    Raises:
        ConfigError: what `settle` and `check_calls` raise.
    """

    loss: Bound = bind(ranked)
    centre: float | None = None

    def __post_init__(self):
        settle(self)
        check_calls(self, loss=("score_BS", "rank_BS", "valid_BS"))


def reward_loss(
    objective: RewardObjective, score_BS: Array, batch: RankedBatch, weight_B: Array
) -> tuple[Array, dict]:
    """Σ_b w_b·(ℓ_b + centre·c_b), to be added over parts of a batch.

    Args:
        objective: the parts.
        score_BS: the reward model's; of completions that do not exist anything.
        batch: ranks, validity and margins.
        weight_B: `bradley_terry.prompt_weight` of the whole batch.

    Returns:
        the loss, and metrics as additive records: `loss`, `accuracy` (share of ordered pairs in
        the right order, strictly), `lead` (mean of r_w − r_l), `score` (mean), and `centring`.

    Raises:
        ConfigError: the batch has margins that the loss does not read.
    """
    ranks = (batch.rank_BS, batch.valid_BS)
    margins = () if batch.margin_BSS is None else (batch.margin_BSS,)
    if margins and objective.loss.fn in _NO_MARGIN:
        raise ConfigError(f"the rankings have margins, and loss={objective.loss} reads none")
    loss_B = objective.loss(score_BS, *ranks, *margins)
    score_BS = jnp.where(batch.valid_BS, score_BS, 0)
    metrics = {
        "accuracy": pair_accuracy(score_BS, *ranks),
        "lead": total(score_BS[:, :, None] - score_BS[:, None, :], ordered_pairs(*ranks)),
        "score": total(score_BS, batch.valid_BS),
    }
    if objective.centre is not None:
        centring_B = centring(score_BS, *ranks)
        metrics["centring"] = Share(part=_weighted(centring_B, weight_B))
        loss_B = loss_B + objective.centre * centring_B
    loss = _weighted(loss_B, weight_B)
    return loss, lax.stop_gradient({"loss": Share(part=loss), **metrics})


def _weighted(loss_B: Array, weight_B: Array) -> Array:
    return masked_sum(loss_B * weight_B, weight_B > 0)
