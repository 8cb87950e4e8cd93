"""What a reward model is trained by: the parts, their weights, and what is reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.algorithms.reward_model import RewardObjective, reward_loss
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.bradley_terry import best_of, prompt_weight, ranked
from rlhf_jax.ops.totals import add_metrics
from rlhf_jax.types import RankedBatch, replace, take_rows

# three completions; two and one that does not exist; all tied
RANK_BS = np.array([[0, 1, 2], [1, 0, 0], [5, 5, 5]], np.float32)
VALID_BS = np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1]], bool)
SCORE_BS = jnp.array([[1.0, -0.5, 0.25], [0.5, 0.5, np.nan], [3.0, 2.0, 1.0]])
BATCH = RankedBatch(
    tokens_BST=np.zeros((3, 3, 1), int),
    attend_BST=np.ones((3, 3, 1), bool),
    rank_BS=RANK_BS,
    valid_BS=VALID_BS,
)


def log_sigmoid(x):
    return -np.log1p(np.exp(-x))


def loss_of(objective, score_BS=SCORE_BS, batch=BATCH):
    weight_B = prompt_weight(batch.rank_BS, batch.valid_BS)
    return reward_loss(objective, score_BS, batch, weight_B)


def test_the_mean_over_prompts_with_something_to_compare():
    first = -np.mean([log_sigmoid(1.5), log_sigmoid(0.75), log_sigmoid(-0.75)])
    second = np.log(2)
    loss, metrics = loss_of(RewardObjective())
    assert loss == pytest.approx((first + second) / 2, rel=1e-6)
    values = {name: float(record.value()) for name, record in metrics.items()}
    assert values == {
        "loss": pytest.approx(float(loss)),
        "accuracy": 0.5,  # of four pairs two; equal scores are not right
        "lead": pytest.approx((1.5 + 0.75 - 0.75 + 0) / 4),
        "score": pytest.approx((1 - 0.5 + 0.25 + 0.5 + 0.5 + 3 + 2 + 1) / 8),
    }


def test_margin_and_centring_of_a_pair():
    """1 and −.5: .201413; with margin 1 .474077; with centring .01 on top .01·(.5)²: .203913."""
    scores = jnp.array([[1.0, -0.5]])
    pair = replace(BATCH, rank_BS=np.array([[0.0, 1.0]]), valid_BS=np.ones((1, 2), bool))
    with_margin = replace(pair, margin_BSS=np.ones((1, 2, 2), np.float32))
    centred = RewardObjective(centre=0.01)
    assert loss_of(RewardObjective(), scores, pair)[0] == pytest.approx(0.201413, abs=1e-6)
    assert loss_of(RewardObjective(), scores, with_margin)[0] == pytest.approx(0.474077, abs=1e-6)
    loss, metrics = loss_of(centred, scores, pair)
    assert loss == pytest.approx(0.2039133, abs=1e-6)
    assert float(metrics["centring"].value()) == pytest.approx(0.25)


def test_parts_add_up():
    objective = RewardObjective(centre=0.1)
    weight_B = prompt_weight(RANK_BS, VALID_BS)
    whole, metrics = reward_loss(objective, SCORE_BS, BATCH, weight_B)
    parts = [
        reward_loss(objective, SCORE_BS[rows], take_rows(BATCH, rows), weight_B[rows])
        for rows in (np.array([2, 0]), np.array([1]))
    ]
    assert whole == pytest.approx(float(sum(loss for loss, _ in parts)), rel=1e-6)
    added = add_metrics(parts[0][1], parts[1][1])
    for name, record in metrics.items():
        assert float(record.value()) == pytest.approx(float(added[name].value()), rel=1e-6)


def test_what_ties_or_is_missing_gets_no_gradient():
    d_BS = jax.grad(lambda x: loss_of(RewardObjective(centre=0.1), x)[0])(SCORE_BS)
    assert np.isfinite(d_BS).all()
    assert not np.asarray(d_BS)[2].any() and d_BS[1, 2] == 0
    assert np.asarray(d_BS)[:2][VALID_BS[:2]].all()


def test_an_objective_is_a_value():
    assert RewardObjective() == RewardObjective(loss=ranked) == RewardObjective(loss=bind(ranked))
    assert jax.tree.leaves(RewardObjective()) == []
    assert jax.tree.leaves(RewardObjective(centre=0.01)) == [0.01]
    for centre in (-0.01, float("nan")):
        with pytest.raises(ConfigError, match="centre="):
            RewardObjective(centre=centre)


def test_margins_that_nobody_would_read():
    batch = replace(BATCH, margin_BSS=np.ones((3, 3, 3), np.float32))
    with pytest.raises(ConfigError, match="rankings have margins, and loss=best_of"):
        loss_of(RewardObjective(loss=best_of), batch=batch)
