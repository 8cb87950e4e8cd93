"""Scores to advantages, and sampler corrections, against TRL's rollout of GRPO and RLOO."""

from dataclasses import replace as at_other

import jax.numpy as jnp
import numpy as np
import pytest
from parity.points import GROUP, NO_TOOLS_BR, PROMPT, agree, full, our_policy, point
from parity.trl_rollout import rollout
from parity.trl_side import GRPOTrainer, RLOOTrainer, policy_loss

from rlhf_jax.advantages import group_norm_each
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.objective import estimate
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.select import drop_truncated, top_entropy
from rlhf_jax.algorithms.shaping import clip_score, standardise_score
from rlhf_jax.bind import bind
from rlhf_jax.losses.correction import (
    masked_importance,
    truncated_importance,
    whole_response,
)
from rlhf_jax.ops.masked import whiten
from rlhf_jax.types import Scored, replace

SCORE_BC = np.array([[0.2, 1.0], [0.9, -0.5], [0.1, 0.3], [1.5, 0.7], [0.4, 0.4], [-0.8, 2.0]])
SOME_BC = np.array(
    [[0.2, np.nan], [np.nan, np.nan], [0.1, 0.3], [1.5, 0.7], [np.nan, 0.4], [-0.8, 2.0]]
)
WEIGHTS = (0.7, 1.9)


def scored_rows(at, score_BC, weights=WEIGHTS) -> Scored:
    valid_BC = ~np.isnan(score_BC)
    return Scored(
        score_BC=jnp.asarray(np.where(valid_BC, score_BC * weights, 9.0), jnp.float32),
        valid_BC=jnp.asarray(valid_BC),
        group_B=jnp.asarray(at.group_B),
        mask_BT=full(at.mask_BR, False),
        truncated_B=jnp.zeros(len(score_BC), bool),
        logp_old_BT=full(at.old_BR),
        logp_ref_BT=full(at.ref_BR),
        logp_sampler_BT=full(at.sampler_BR),
        entropy_BT=full(at.entropy_BR),
    )


def our_advantages(objective, at, score_BC, weights=WEIGHTS):
    """One a row, read at the first counted token."""
    labels = estimate(objective, scored_rows(at, score_BC, weights))
    first_B = np.asarray(full(at.mask_BR, False)).argmax(axis=1)
    return np.asarray(labels.advantage_BT)[np.arange(len(score_BC)), first_B]


def their_advantages(trainer, at, score_BC, weights=WEIGHTS, **settings):
    return rollout(trainer, at, score_BC, weights=weights, **settings)["advantages"].numpy()


@pytest.mark.parametrize("score_BC", [SCORE_BC, SOME_BC], ids=["all", "some_do_not_apply"])
@pytest.mark.parametrize(
    ("objective", "scale"),
    [(grpo(ddof=1, eps=1e-4), "group"), (dr_grpo(length=16), "none")],
    ids=["grpo", "dr_grpo"],
)
def test_group_advantages_equal_trls(objective, scale, score_BC):
    ours = our_advantages(objective, point(), score_BC)
    theirs = their_advantages(GRPOTrainer, point(), score_BC, scale_rewards=scale)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(theirs).max() > 0.5


def test_our_population_deviation_is_larger_than_trls_by_the_known_factor():
    """ddof 0 and eps 1e-6 here, ddof 1 and eps 1e-4 in TRL: √(G/(G − 1)) apart."""
    ours = our_advantages(grpo(), point(), SCORE_BC)
    theirs = their_advantages(GRPOTrainer, point(), SCORE_BC)
    np.testing.assert_allclose(ours, theirs * np.sqrt(GROUP / (GROUP - 1)), rtol=5e-4)
    np.testing.assert_allclose(ours[0] / theirs[0], 1.224745, rtol=5e-4)


def test_equal_scores_give_exactly_zero_here_and_a_residue_in_trl():
    """The float32 mean of three 2.98 is 2.97999…; over a deviation of 0 and eps 1e-4 it counts."""
    score_BC = np.array([[2.98]] * 3 + [[0.0], [1.0], [2.0]])
    ours = our_advantages(grpo(ddof=1, eps=1e-4), point(), score_BC, weights=(1.0,))
    theirs = their_advantages(GRPOTrainer, point(), score_BC, weights=(1.0,))
    assert not ours[:3].any()
    assert np.all(np.abs(theirs[:3]) > 1e-3)
    np.testing.assert_allclose(ours[3:], theirs[3:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("score_BC", [SCORE_BC, SOME_BC], ids=["all", "some_do_not_apply"])
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_leave_one_out_advantages_equal_trls(beta, score_BC):
    """The KL of the whole sequence stands inside the reward, before the baseline."""
    at = at_other(point(), mask_BR=NO_TOOLS_BR)  # TRL's RLOO knows no tool tokens
    ours = our_advantages(rloo(kl_coef=beta or None), at, score_BC)
    theirs = their_advantages(RLOOTrainer, at, score_BC, beta=beta)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert np.abs(theirs).max() > 0.5


def test_score_clipped_before_kl_and_baseline_equals_trls():
    at = at_other(point(), mask_BR=NO_TOOLS_BR)
    objective = replace(rloo(kl_coef=0.3), shape_score=bind(clip_score, limit=0.8))
    ours = our_advantages(objective, at, SCORE_BC)
    theirs = their_advantages(RLOOTrainer, at, SCORE_BC, beta=0.3, reward_clip_range=(-0.8, 0.8))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (np.abs(SCORE_BC @ WEIGHTS) > 0.8).any()


def test_scores_over_the_batchs_deviation_equal_trls_but_for_ddof_and_eps():
    """TRL's scale_rewards="batch" is our standardised score with the group's mean taken off; the
    deviation of N = 6 scores is TRL's with ddof 1 and eps 1e-4, ours with ddof 0 and 1e-8."""
    objective = replace(dr_grpo(length=16), shape_score=bind(standardise_score))
    ours = our_advantages(objective, point(), SCORE_BC)
    theirs = their_advantages(GRPOTrainer, point(), SCORE_BC, scale_rewards="batch")
    total_B = SCORE_BC @ WEIGHTS
    np.testing.assert_allclose(
        ours * total_B.std(), theirs * (total_B.std(ddof=1) + 1e-4), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(ours / theirs, np.sqrt(6 / 5), rtol=5e-4)


def test_a_row_that_nothing_could_score_leaves_our_batch_and_stays_in_trls():
    """Its advantage is 0 in both; TRL still divides by its tokens and its row."""
    at = point()
    labels = estimate(grpo(beta=None), scored_rows(at, SOME_BC))
    theirs = rollout(GRPOTrainer, at, SOME_BC, weights=WEIGHTS)
    assert theirs["advantages"][1] == 0
    assert not np.asarray(labels.mask_BT)[1].any()
    assert int(theirs["num_items_in_batch"]) == at.mask_BR.sum()
    assert int(labels.mask_BT.sum()) == at.mask_BR.sum() - at.mask_BR[1].sum()


def test_each_reward_normalised_and_summed_equals_trls_before_the_batch():
    """GDPO (2601.05242). The normalisation over the batch that follows counts rows in TRL, with
    ddof 1 and eps 1e-4; our `whiten` counts tokens: a mean over tokens is what the loss takes."""
    each = bind(group_norm_each, ddof=1, eps=1e-4, weights=WEIGHTS)
    objective = replace(grpo(beta=None), advantage=each)
    summed_B = our_advantages(objective, point(), SCORE_BC, weights=(1.0, 1.0))
    theirs_B = their_advantages(
        GRPOTrainer, point(), SCORE_BC, multi_objective_aggregation="normalize_then_sum"
    )
    by_rows_B = (summed_B - summed_B.mean()) / (summed_B.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(by_rows_B, theirs_B, rtol=1e-5, atol=1e-6)
    ours_B = our_advantages(
        replace(objective, whiten=bind(whiten)), point(), SCORE_BC, weights=(1.0, 1.0)
    )
    tokens_B = point().mask_BR.sum(1)
    mean = np.average(summed_B, weights=tokens_B)
    deviation = np.sqrt(np.average((summed_B - mean) ** 2, weights=tokens_B))
    np.testing.assert_allclose(ours_B, (summed_B - mean) / deviation, rtol=1e-5, atol=1e-6)
    assert np.abs(ours_B - theirs_B).max() > 0.1


CORRECTIONS = {
    "token_truncate": bind(truncated_importance, cap=1.3),
    "sequence_truncate": bind(truncated_importance, cap=1.3, over=whole_response),
    "token_mask": bind(masked_importance, least=0.7, most=1.3),
    "sequence_mask": bind(masked_importance, least=0.7, most=1.3, over=whole_response),
}


@pytest.mark.parametrize("mode", CORRECTIONS)
def test_sampler_corrections_equal_trls_in_weights_loss_and_gradient(mode):
    at = point()
    sampler_BR = at.sampler_BR.copy()
    sampler_BR[0, 1] = np.nan  # the sampler gave no number: weight as if it agreed
    at = at_other(at, sampler_BR=sampler_BR)
    theirs = rollout(
        GRPOTrainer,
        at,
        SCORE_BC,
        use_vllm=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=None if mode.endswith("truncate") else 0.7,
        vllm_importance_sampling_clip_max=1.3,
    )
    objective = replace(grpo(beta=0.3), correction=CORRECTIONS[mode])
    labels = estimate(objective, scored_rows(at, SCORE_BC))
    ratio_BR = np.broadcast_to(theirs["importance_sampling_ratio"].numpy(), at.mask_BR.shape)
    ours_BR = np.asarray(labels.correction_BT)[:, PROMPT:]
    np.testing.assert_allclose(ours_BR[at.mask_BR], ratio_BR[at.mask_BR], rtol=1e-5)
    assert len(np.unique(ratio_BR[at.mask_BR].round(6))) > 2
    agree(
        our_policy(objective, at, correction_BT=labels.correction_BT),
        policy_loss(at, ratio_BR=ratio_BR, beta=0.3, use_vllm=True),
    )


@pytest.mark.parametrize("share", [0.2, 0.5])
def test_learning_from_the_most_uncertain_tokens_equals_trls(share):
    """The quantile runs over the counted tokens; dropped ones stay in the denominators."""
    at, objective = point(), replace(grpo(beta=0.3), select=bind(top_entropy, share=share))
    labels = estimate(objective, scored_rows(at, SCORE_BC))
    agree(
        our_policy(objective, at, correction_BT=labels.correction_BT),
        policy_loss(at, top_entropy_quantile=share, beta=0.3),
    )


def test_rows_cut_short_leave_both_masks_and_stay_in_both_baselines():
    at = at_other(point(), mask_BR=NO_TOOLS_BR)
    scored = scored_rows(at, SCORE_BC)
    cut_B = at.mask_BR.all(axis=1)  # the rollout ends every shorter row with an end token
    objective = replace(grpo(ddof=1, eps=1e-4), select=bind(drop_truncated))
    labels = estimate(objective, replace(scored, truncated_B=jnp.asarray(cut_B)))
    theirs = rollout(GRPOTrainer, at, SCORE_BC, weights=WEIGHTS, mask_truncated_completions=True)
    np.testing.assert_array_equal(
        np.asarray(labels.mask_BT)[:, PROMPT:], theirs["completion_mask"].numpy().astype(bool)
    )
    assert 0 < cut_B.sum() < len(cut_B)
    np.testing.assert_allclose(
        our_advantages(objective, at, SCORE_BC), theirs["advantages"].numpy(), rtol=1e-5
    )
