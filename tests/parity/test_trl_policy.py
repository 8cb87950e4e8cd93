"""Policy losses and their gradients against TRL's GRPO, GSPO-token, GMPO and RLOO trainers."""

from dataclasses import replace as at_other

import numpy as np
import pytest
from parity import trl_side
from parity.points import NO_TOOLS_BR, agree, our_policy, point, token_advantages
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.experimental.gspo_token.grpo_trainer import GRPOTrainer as GSPOTokenTrainer

from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import sequence_sum, token_mean
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.losses.reweighted import off_policy_masked
from rlhf_jax.losses.surrogate import clipped, dual_clipped, token_ratio
from rlhf_jax.types import replace

GRPO = grpo(beta=None)
TOKEN_MEAN = replace(GRPO, aggregate=bind(token_mean))
NARROW = dict(epsilon_low=0.1, epsilon_high=0.05)  # sequence ratios lie nearer to 1
SEQUENCE = dict(NARROW, importance_sampling_level="sequence")
UNBIASED_KL = KL(estimator=bind(k3), coef=0.3, ratio=bind(token_ratio))
DRIFT = bind(off_policy_masked, inner=bind(clipped, low=0.2, high=0.2), threshold=0.05)

LOSSES = {
    "grpo": (GRPO, dict(loss_type="grpo")),
    "grpo_kl": (grpo(beta=0.3), dict(loss_type="grpo", beta=0.3)),
    "unbiased_kl": (
        replace(GRPO, loss_kl=UNBIASED_KL),
        dict(loss_type="grpo", beta=0.3, use_bias_correction_kl=True),
    ),
    "bnpo": (replace(grpo(beta=0.3), aggregate=bind(token_mean)), dict(loss_type="bnpo", beta=0.3)),
    "dr_grpo": (dr_grpo(length=16), dict(loss_type="dr_grpo")),
    "dapo": (dapo(low=0.2, high=0.28), dict(loss_type="dapo", epsilon_high=0.28)),
    "two_sided": (
        replace(GRPO, surrogate=bind(dual_clipped, low=0.2, high=0.2, cap=1.3)),
        dict(loss_type="grpo", delta=1.3),
    ),
    "sapo": (
        sapo(tau_positive=1.5, tau_negative=2.5),
        dict(loss_type="sapo", sapo_temperature_pos=1.5, sapo_temperature_neg=2.5),
    ),
    # TRL's epsilon_high is the cap itself here, ours the paper's ε above 1.
    "cispo": (cispo(high=0.2), dict(loss_type="cispo", epsilon_high=1.2)),
    "gspo": (gspo(low=0.1, high=0.05), SEQUENCE),
    "gspo_kl": (
        replace(gspo(low=0.1, high=0.05), loss_kl=KL(estimator=bind(k3), coef=0.3)),
        dict(SEQUENCE, beta=0.3),
    ),
    "gspo_token_mean": (
        replace(gspo(low=0.1, high=0.05), aggregate=bind(token_mean)),
        dict(SEQUENCE, loss_type="dapo"),
    ),
    # Length-unbiased sequence policy optimisation: GSPO's rows weighed by their lengths.
    "luspo": (
        replace(gspo(low=0.1, high=0.05), aggregate=bind(sequence_sum)),
        dict(SEQUENCE, loss_type="luspo"),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_equal_trls(name):
    objective, settings = LOSSES[name]
    agree(our_policy(objective, point()), trl_side.policy_loss(point(), **settings))


def test_the_point_lies_on_both_sides_of_every_clip():
    """Else the comparisons above would not see a wrong bound."""
    at = point()
    ratio_BR = np.exp(at.logp_BR - at.old_BR)
    up_BR = np.broadcast_to(at.advantage_B[:, None] > 0, ratio_BR.shape)
    for low, high in ((0.8, 1.2), (0.8, 1.28), (0.0, 1.3)):
        for sign in (up_BR, ~up_BR):
            inside = ratio_BR[sign & at.mask_BR]
            assert (inside > high).any() and (inside < high).any() and (inside > low).any()
    assert (ratio_BR[~up_BR & at.mask_BR] < 0.8).any()
    log_B = np.log(ratio_BR * at.mask_BR + ~at.mask_BR).sum(1) / at.mask_BR.sum(1)
    assert (log_B > 0.05).any() and (log_B < -0.11).any()


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_gspo_with_an_advantage_a_token_equals_trls_gspo_token(loss_type):
    """Our sequence ratio is GSPO-token's: each entry has the gradient of its own log-prob."""
    at = token_advantages(point())
    objective = gspo(low=0.1, high=0.05)
    if loss_type == "dapo":
        objective = replace(objective, aggregate=bind(token_mean))
    theirs = trl_side.policy_loss(
        at,
        GSPOTokenTrainer,
        loss_type=loss_type,
        **dict(NARROW, importance_sampling_level="sequence_token"),
    )
    agree(our_policy(objective, at), theirs)


@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_gmpo_equals_trls(beta):
    """The mean over responses of −s_i·Â_i, s_i of clipped log-ratios; the KL is a row mean."""
    loss_kl = KL(estimator=bind(k3), coef=beta) if beta else None
    objective = replace(gmpo(low=0.3, high=0.2), loss_kl=loss_kl)
    theirs = trl_side.policy_loss(
        point(), GMPOTrainer, beta=beta, epsilon_low=0.3, epsilon_high=0.2
    )
    agree(our_policy(objective, point()), theirs)


def test_off_policy_mask_equals_trls_without_a_sampler():
    objective = replace(GRPO, surrogate=DRIFT)
    at = point()
    theirs = trl_side.policy_loss(at, sampled=False, off_policy_mask_threshold=0.05)
    agree(our_policy(objective, at), theirs)
    unmasked = trl_side.policy_loss(at, sampled=False)
    assert abs(unmasked[0] - theirs[0]) > 0.01, "the mask did nothing"
    # With a sampler TRL measures the drift from its log-probs, ours from the trainer's old ones.
    agree(
        our_policy(objective, at_other(at, old_BR=at.sampler_BR)),
        trl_side.policy_loss(at_other(at, old_BR=at.sampler_BR), off_policy_mask_threshold=0.05),
    )


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_entropy_bonus_of_trl_is_a_token_mean_whatever_the_loss(loss_type):
    """Ours weighs tokens as the loss does; the two agree where the loss is a token mean."""
    objective = replace(TOKEN_MEAN if loss_type == "dapo" else GRPO, entropy=0.1)
    at = point()
    entropy_mean = at.entropy_BR[at.mask_BR].mean()
    row_mean = ((at.entropy_BR * at.mask_BR).sum(1) / at.mask_BR.sum(1)).mean()
    theirs, _ = trl_side.policy_loss(
        at, loss_type=loss_type, _entropy_bonus_enabled=True, entropy_coef=0.1
    )
    plain, _ = trl_side.policy_loss(at, loss_type=loss_type)
    ours, _ = our_policy(objective, at)
    np.testing.assert_allclose(theirs, plain - 0.1 * entropy_mean, rtol=1e-5)
    ours_mean = entropy_mean if loss_type == "dapo" else row_mean
    np.testing.assert_allclose(ours, plain - 0.1 * ours_mean, rtol=1e-5)
    assert abs(entropy_mean - row_mean) > 0.01


def test_an_empty_row_counts_in_trls_mean_over_rows_and_not_in_ours():
    """A row that was filtered away is here as if it had not been drawn: B′ = 5 of 6 rows."""
    mask_BR = point().mask_BR.copy()
    mask_BR[2] = False
    at = at_other(point(), mask_BR=mask_BR)
    ours, theirs = our_policy(GRPO, at), trl_side.policy_loss(at)
    agree((ours[0] * 5 / 6, ours[1] * 5 / 6), theirs)


def test_trls_bnpo_depends_on_micro_batches_and_ours_does_not():
    """TRL averages each micro-batch's token mean; DAPO's and our weights come from the whole."""
    at = point()
    parts = [
        trl_side.policy_loss(at.rows(rows), loss_type="bnpo", current_gradient_accumulation_steps=2)
        for rows in (slice(0, 3), slice(3, 6))
    ]
    theirs = (parts[0][0] + parts[1][0], np.concatenate([parts[0][1], parts[1][1]]))
    ours = our_policy(TOKEN_MEAN, at)
    agree(ours, trl_side.policy_loss(at, loss_type="dapo"))
    np.testing.assert_allclose([ours[0], theirs[0]], [-0.127810, -0.086627], rtol=1e-5)


def test_rloo_has_trls_gradient_and_counts_its_value_once_a_token():
    """One response is one action; our per-token values sum to |y|·ℓ, TRL's row counts once."""
    at = at_other(point(spread=0.1), mask_BR=NO_TOOLS_BR)
    ours, theirs = our_policy(rloo(), at), trl_side.rloo_loss(at, epsilon_low=9.0, epsilon_high=9.0)
    agree(ours[1:], theirs[1:])
    log_B = ((at.logp_BR - at.old_BR) * at.mask_BR).sum(1)
    value_B = -np.exp(log_B) * at.advantage_B
    np.testing.assert_allclose(theirs[0], value_B.mean(), rtol=1e-5)
    np.testing.assert_allclose(ours[0], (value_B * at.mask_BR.sum(1)).mean(), rtol=1e-5)


def test_rloo_of_trl_clips_the_response_ratio_and_ours_does_with_clipped():
    """The paper has no clip; TRL's is `clipped` on the product ratio."""
    at = at_other(point(), mask_BR=NO_TOOLS_BR)
    theirs = trl_side.rloo_loss(at, epsilon_low=0.2, epsilon_high=0.2)
    objective = replace(rloo(), surrogate=bind(clipped, low=0.2, high=0.2))
    agree(our_policy(objective, at)[1:], theirs[1:])
    assert np.any((our_policy(rloo(), at)[1] != 0) & (theirs[1] == 0)), "nothing was clipped"
