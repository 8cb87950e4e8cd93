"""Preference algorithms and the gradients of their logits against TRL's trainers."""

from dataclasses import replace as at_other

import jax.numpy as jnp
import numpy as np
import pytest
from parity import trl_pairs
from parity.pairs import our_pairs, our_rows, pairs
from parity.points import agree

from rlhf_jax.algorithms import aot, apo, bco, dpo, dpo_relatives, ipo
from rlhf_jax.algorithms.cpo import cpo
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.orpo import orpo
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.bind import bind
from rlhf_jax.losses.nll import token_mean
from rlhf_jax.types import replace

BETA = 0.3
SAME = {
    "sigmoid": dpo.dpo(beta=BETA),
    "sigmoid_norm": dpo.dpo_averaged(beta=BETA),
    "robust": dpo.robust_dpo(beta=BETA, smoothing=0.1),
    "hinge": dpo_relatives.slic(beta=BETA),
    "exo_pair": dpo_relatives.exo(beta=BETA, soft=0.1),
    "discopop": dpo_relatives.discopop(beta=BETA),
    "nca_pair": dpo_relatives.nca(beta=BETA),
    "sppo_hard": dpo_relatives.sppo_hard(beta=BETA),
    "ipo": ipo.ipo_averaged(beta=BETA),
    "apo_zero": apo.apo_zero(beta=BETA),
    "apo_down": apo.apo_down(beta=BETA),
    "aot": aot.aot(beta=BETA),
    "aot_unpaired": aot.aot_unpaired(beta=BETA),
}
SMOOTHING = {"robust": 0.1, "exo_pair": 0.1}


@pytest.mark.parametrize("name", SAME)
def test_paired_losses_equal_trls(name):
    theirs = trl_pairs.dpo_loss(
        pairs(), loss_types=[name], beta=BETA, label_smoothing=SMOOTHING.get(name, 0.0)
    )
    agree(our_pairs(SAME[name], pairs()), theirs)


def values(ours, theirs, expected):
    """Both numbers of a difference by choice, so that neither side moves unseen."""
    np.testing.assert_allclose([ours[0], theirs[0]], expected, rtol=1e-6, atol=2e-6)


def no_shift(logp_BS, logp_ref_BS, length_BS, weight_B):
    return jnp.zeros_like(weight_B)


def test_bco_pair_of_trl_leaves_out_the_shift():
    """δ, the centre of the rewards, is in the paper's equation 9; without it ours is TRL's."""
    theirs = trl_pairs.dpo_loss(pairs(), loss_types=["bco_pair"], beta=BETA)
    ours = bco.bco(beta=BETA)
    agree(our_pairs(replace(ours, statistic=bind(no_shift)), pairs()), theirs)
    values(our_pairs(ours, pairs()), theirs, [1.486635, 1.489202])


def test_ipo_of_trl_averages_over_tokens_and_the_papers_sums():
    theirs = trl_pairs.dpo_loss(pairs(), loss_types=["ipo"], beta=BETA)
    values(our_pairs(ipo.ipo(beta=BETA), pairs()), theirs, [6.015903, 3.021430])


def test_label_smoothing_is_ignored_by_trls_sigmoid_and_not_by_cdpo():
    theirs = trl_pairs.dpo_loss(pairs(), beta=BETA, label_smoothing=0.1)
    agree(our_pairs(dpo.dpo(beta=BETA), pairs()), theirs)
    ours = dpo.cdpo(beta=BETA, smoothing=0.1)
    values(our_pairs(ours, pairs()), theirs, [0.768714, 0.783051])
    # Where TRL does smooth, in CPO, it is cDPO's formula at a uniform reference.
    theirs = trl_pairs.cpo_loss(pairs(), beta=BETA, label_smoothing=0.1, cpo_alpha=0.0)
    agree(our_pairs(ours, at_other(pairs(), logp_ref_BS=np.zeros((4, 2)))), theirs)


def test_rpo_equals_trls_sum_of_losses_at_its_divisor():
    """TRL's `sft` term divides by all preferred tokens of the batch, the paper by each answer's."""
    theirs = trl_pairs.dpo_loss(
        pairs(), loss_types=["sigmoid", "sft"], loss_weights=[1.0, 0.7], beta=BETA
    )
    agree(our_pairs(dpo.rpo(beta=BETA, coef=0.7, reduce=token_mean), pairs()), theirs)
    values(our_pairs(dpo.rpo(beta=BETA, coef=0.7), pairs()), theirs, [1.943065, 1.856117])


def test_wpo_of_trl_divides_by_the_policys_own_certainty_and_ours_does_not():
    """TRL: w = exp(mean of log π − log Σ_v π²) of both sides, the paper's aligned weight."""
    at = pairs()
    theirs = trl_pairs.dpo_loss(at, beta=BETA, use_weighting=True)
    logp_BSTV = at.logits_BSTV - np.log(np.exp(at.logits_BSTV).sum(-1, keepdims=True))
    certain_BSt = np.log((np.exp(logp_BSTV) ** 2).sum(-1))[:, :, :-1]
    picked_BSt = np.take_along_axis(logp_BSTV[:, :, :-1], at.tokens_BST[:, :, 1:, None], -1)[..., 0]
    mask_BSt = at.mask_BST[:, :, 1:]
    length_BS = mask_BSt.sum(-1)
    plain_B = np.exp(((picked_BSt * mask_BSt).sum(-1) / length_BS).sum(1))
    aligned_B = plain_B / np.exp(((certain_BSt * mask_BSt).sum(-1) / length_BS).sum(1))
    for objective, weight_B, expected in (
        (dpo.dpo(beta=BETA), aligned_B, theirs),
        (dpo.dpo(beta=BETA), plain_B, our_pairs(dpo.wpo(beta=BETA), at)),
    ):
        # Given weights are taken relative to their mean.
        loss, gradient = our_pairs(objective, at, weight_B=jnp.asarray(weight_B, jnp.float32))
        agree((loss * weight_B.mean(), gradient * weight_B.mean()), expected)
    values(our_pairs(dpo.wpo(beta=BETA), at), theirs, [0.022509, 0.230503])


# --- without a reference ------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_cpo_equals_trls(alpha):
    theirs = trl_pairs.cpo_loss(pairs(), beta=BETA, cpo_alpha=alpha)
    agree(our_pairs(cpo(beta=BETA, coef=alpha or None), pairs()), theirs)


def test_simpo_equals_trls_without_its_nll():
    settings = dict(loss_type="simpo", beta=2.0, simpo_gamma=0.6)
    theirs = trl_pairs.cpo_loss(pairs(), cpo_alpha=0.0, **settings)
    ours = our_pairs(simpo(beta=2.0, margin=0.6), pairs())
    agree(ours, theirs)
    # TRL's default coefficient is 1, the paper has no such term.
    values(ours, trl_pairs.cpo_loss(pairs(), **settings), [0.803287, 2.336240])


def test_orpo_equals_trls_but_for_the_prompt_in_its_nll():
    """TRL's NLL of the preferred row runs over the prompt too; ours over the completion alone."""
    theirs = trl_pairs.orpo_loss(pairs(), beta=BETA)
    ours = orpo(beta=BETA, reduce=token_mean)
    with_prompt = our_pairs(replace(ours, nll=None), pairs(), nll_over="attend_BST")
    agree(with_prompt, theirs)
    values(our_pairs(ours, pairs()), theirs, [1.704657, 1.792488])


# --- single completions ---------------------------------------------------------------------------

OTHER_LOGP_R = np.array([-4.0, -6.5, -3.0, -2.0, -7.0, -1.0, -2.5, -5.0])
OTHER_REF_R = np.array([-5.0, -6.0, -4.5, -2.2, -6.0, -3.0, -2.0, -5.5])


@pytest.mark.parametrize("ahead", [0.0, -3.0], ids=["kl_above_0", "kl_clamped_at_0"])
def test_kto_equals_trls(ahead):
    numbers = dict(beta=BETA, desirable_weight=1.3, undesirable_weight=0.6)
    theirs = trl_pairs.kto_loss(pairs(), OTHER_LOGP_R + ahead, OTHER_REF_R, **numbers)
    other_R = OTHER_LOGP_R + ahead - OTHER_REF_R
    agree(our_rows(kto(**numbers), pairs(), other_R=other_R), theirs)
    assert (other_R.mean() > 0) == (ahead == 0)


def test_apo_zero_unpaired_equals_trls():
    theirs = trl_pairs.kto_loss(
        pairs(),
        OTHER_LOGP_R,
        OTHER_REF_R,
        beta=BETA,
        loss_type="apo_zero_unpaired",
        calculate_KL=False,
    )
    agree(our_rows(apo.apo_zero_unpaired(beta=BETA), pairs()), theirs)


def test_bco_equals_trls_at_its_shift_which_pools_rows_and_lags():
    """TRL's δ is the mean reward of all rows of all batches so far; ours the middle of the two
    classes' means, of this batch alone."""
    points, objective = [pairs(seed=0), pairs(seed=3)], bco.bco_unpaired(beta=BETA)
    results = list(trl_pairs.bco_losses(points, beta=BETA))
    for at, (loss, gradient, delta) in zip(points, results, strict=True):
        agree(our_rows(objective, at, shift=delta / BETA), (loss, gradient))
    own = [our_rows(objective, at)[0] for at in points]
    np.testing.assert_allclose(own, [0.700033, 0.742157], rtol=2e-6)
    np.testing.assert_allclose([r[0] for r in results], [0.700496, 0.740511], rtol=2e-6)
