"""A whole PPO step, and its pieces, against TRL's trainer (which TRL has up to 1.12)."""

from dataclasses import replace as at_other

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.points import PROMPT, full, point
from parity.trl_ppo import Critic, ppo_step

from rlhf_jax.advantages import gae_advantages
from rlhf_jax.algorithms.objective import estimate, policy_loss
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.shaping import missing_end_penalty
from rlhf_jax.bind import bind
from rlhf_jax.losses.kl import k1
from rlhf_jax.losses.surrogate import clipped, token_ratio
from rlhf_jax.losses.value import clipped_squared
from rlhf_jax.ops.masked import masked_mean, whiten
from rlhf_jax.ops.shaping import place_at_last, subtract_kl
from rlhf_jax.types import PolicyBatch, Scored, replace

# TRL logs the variance of one ratio.
pytestmark = pytest.mark.filterwarnings(r"ignore:var\(\):UserWarning")
NUMBERS = dict(kl_coef=0.05, gamma=0.95, lam=0.9)
RAGGED_BR = np.arange(6) < np.array([6, 4, 2, 1, 3, 5])[:, None]


def critic(seed=2) -> Critic:
    draw = np.random.default_rng(seed)
    old_BR = draw.normal(size=RAGGED_BR.shape)
    new_BR = old_BR + draw.normal(scale=0.3, size=RAGGED_BR.shape)
    return Critic(old_BR=old_BR, new_BR=new_BR, score_B=draw.normal(size=6))


def sample_whiten(x_BT, mask_BT, *, shift_mean=True):
    """Our `whiten` with TRL's sample variance, N − 1 where everyone else has N."""
    count = jnp.sum(mask_BT)
    mean = 0.0 if shift_mean else masked_mean(x_BT, mask_BT)
    scaled_BT = whiten(x_BT, mask_BT) * jnp.sqrt((count - 1) / count) + mean
    return jnp.where(mask_BT, scaled_BT, 0)


def our_step(objective, at, values: Critic, cut_B=None):
    """Scores to gradients by `estimate` and `policy_loss`."""
    mask_BT = full(at.mask_BR, False)
    scored = Scored(
        score_BC=jnp.asarray(values.score_B, jnp.float32)[:, None],
        valid_BC=jnp.ones((6, 1), bool),
        group_B=jnp.arange(6),
        mask_BT=mask_BT,
        truncated_B=jnp.zeros(6, bool) if cut_B is None else jnp.asarray(cut_B),
        logp_old_BT=full(at.old_BR),
        logp_ref_BT=full(at.ref_BR),
        value_BT=full(values.old_BR),
    )
    labels = estimate(objective, scored)
    batch = PolicyBatch(
        tokens_BT=jnp.ones(mask_BT.shape, jnp.int32),
        attend_BT=jnp.ones(mask_BT.shape, bool),
        mask_BT=labels.mask_BT,
        group_B=scored.group_B,
        advantage_BT=labels.advantage_BT,
        logp_old_BT=scored.logp_old_BT,
        value_old_BT=scored.value_BT,
        return_BT=labels.return_BT,
    )
    weight_BT = objective.aggregate(batch.mask_BT, batch.group_B)

    def loss(logp_BT, value_BT):
        return policy_loss(objective, logp_BT, batch, weight_BT, value_BT=value_BT)

    grad = jax.grad(loss, argnums=(0, 1), has_aux=True)
    gradients, metrics = grad(full(at.logp_BR), full(values.new_BR))
    return dict(
        policy_loss=float(metrics["policy_loss"].part),
        value_loss=float(metrics["value_loss"].part),
        kl=float(labels.metrics["kl_response"]),
        gradients=tuple(np.asarray(g)[:, PROMPT:] for g in gradients),
    )


def their_step(at, values, monkeypatch, **settings):
    clips = dict(cliprange=0.2, cliprange_value=0.2, vf_coef=0.1)
    return ppo_step(at, values, monkeypatch, **clips, **NUMBERS, **settings)


def same(ours, theirs):
    for name in ("policy_loss", "value_loss", "kl"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-5, err_msg=name)
    for a, b in zip(ours["gradients"], theirs["gradients"], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())
        assert np.abs(b).max() > 1e-3


PPO = ppo(clip=0.2, value_clip=0.2, value_coef=0.1, **NUMBERS)
AS_TRL = replace(PPO, whiten=bind(sample_whiten))
CUT_B = np.array([1, 0, 0, 1, 0, 0], bool)
STEPS = {
    "plain": (AS_TRL, {}),
    "no_end_costs": (
        replace(AS_TRL, shape_score=bind(missing_end_penalty, penalty=0.7)),
        dict(missing_eos_penalty=0.7),
    ),
    "white_rewards": (
        replace(AS_TRL, whiten_reward=bind(sample_whiten, shift_mean=False)),
        dict(whiten_rewards=True),
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_equals_trls_but_for_the_sample_variance_of_its_whitening(name, monkeypatch):
    """KL in the reward, GAE, whitening, both clipped losses, at rows that fill the width."""
    objective, settings = STEPS[name]
    at = at_other(point(), mask_BR=np.ones((6, 6), bool))
    theirs = their_step(at, critic(), monkeypatch, cut_B=CUT_B, **settings)
    same(our_step(objective, at, critic(), CUT_B), theirs)
    if name == "plain":
        # N = 36 tokens: √(36/35) = 1.014185
        ratio = our_step(PPO, at, critic(), CUT_B)["policy_loss"] / theirs["policy_loss"]
        np.testing.assert_allclose(ratio, 1.014185, rtol=1e-5)


def test_trl_gives_an_ended_row_one_step_more(monkeypatch):
    """Of a row that ended TRL counts, for values, one column after its end token: the score stands
    there, a discount and a value later, and the critic learns it too. The same formulas at that
    mask give TRL's losses; at ours they differ."""
    at, values = at_other(point(), mask_BR=RAGGED_BR), critic()
    theirs, ours = their_step(at, values, monkeypatch), our_step(PPO, at, values)
    mask_BR = jnp.asarray(RAGGED_BR)
    longer_BR = jnp.pad(mask_BR, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
    old_BR, new_BR, score_B = (jnp.asarray(x, jnp.float32) for x in vars(values).values())
    logp_BR, old_logp_BR = (jnp.asarray(x, jnp.float32) for x in (at.logp_BR, at.old_BR))
    kl_BR = jnp.where(mask_BR, k1(old_logp_BR, jnp.asarray(at.ref_BR, jnp.float32)), 0)
    reward_BR = subtract_kl(place_at_last(score_B, longer_BR), kl_BR, NUMBERS["kl_coef"], longer_BR)
    advantage_BR = gae_advantages(
        reward_BR, old_BR, longer_BR, gamma=NUMBERS["gamma"], lam=NUMBERS["lam"]
    )
    white_BR = sample_whiten(advantage_BR, mask_BR)
    policy_BR = clipped(
        logp_BR,
        old_logp_BR,
        token_ratio(logp_BR, old_logp_BR, mask_BR),
        white_BR,
        mask_BR,
        low=0.2,
        high=0.2,
    )
    value_BR = clipped_squared(new_BR, old_BR, old_BR + advantage_BR, longer_BR, clip=0.2)
    rebuilt = [masked_mean(policy_BR, mask_BR), masked_mean(value_BR, longer_BR)]
    np.testing.assert_allclose(rebuilt, [theirs["policy_loss"], theirs["value_loss"]], rtol=1e-5)
    np.testing.assert_allclose(rebuilt, [0.132295, 0.791628], rtol=1e-5)
    np.testing.assert_allclose(
        [ours["policy_loss"], ours["value_loss"]], [0.136763, 0.912342], rtol=1e-5
    )
    np.testing.assert_allclose(ours["kl"], theirs["kl"], rtol=1e-5)
