"""The reward model's loss and the gradient of its scores against TRL's reward trainer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity import trl_pairs
from parity.points import agree

from rlhf_jax.algorithms.reward_model import RewardObjective, reward_loss
from rlhf_jax.losses.bradley_terry import prompt_weight
from rlhf_jax.types import RankedBatch

SCORE_BS = np.array([[1.2, 0.3], [-0.5, 0.9], [2.0, -1.5], [0.1, 0.05]])
MARGIN_B = np.array([1.0, 2 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("margin_B", [None, MARGIN_B], ids=["plain", "margin"])
@pytest.mark.parametrize("centring", [None, 0.01, 0.5])
def test_pair_loss_equals_trls(margin_B, centring):
    margin_BSS = None
    if margin_B is not None:
        margin_BSS = jnp.zeros((4, 2, 2)).at[:, 0, 1].set(margin_B)
    batch = RankedBatch(
        tokens_BST=jnp.ones((4, 2, 3), int),
        attend_BST=jnp.ones((4, 2, 3), bool),
        rank_BS=jnp.tile(jnp.arange(2), (4, 1)),
        valid_BS=jnp.ones((4, 2), bool),
        margin_BSS=margin_BSS,
    )
    weight_B = prompt_weight(batch.rank_BS, batch.valid_BS)

    def loss(score_BS):
        return reward_loss(RewardObjective(centre=centring), score_BS, batch, weight_B)[0]

    value, gradient = jax.value_and_grad(loss)(jnp.asarray(SCORE_BS, jnp.float32))
    theirs = trl_pairs.reward_loss(SCORE_BS, margin_B=margin_B, centring=centring)
    agree((float(value), np.asarray(gradient)), theirs)
