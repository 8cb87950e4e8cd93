"""Scores of the models: equal to plain logits, whatever the cut; None where nothing is asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.heads import scalar
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.scoring import make_score
from rlhf_jax.types import Rollout

B, T, TAU = 8, 7, 0.6
MODEL = Model(
    DecoderConfig(
        vocab_size=30,
        vocab_padded=32,
        num_layers=1,
        d_model=16,
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        d_ff=16,
    )
)


@pytest.fixture(scope="module")
def rollout():
    draw = np.random.default_rng(0)
    length_B = np.array([4, 1, 0, 4, 2, 3, 4, 4])
    mask_BT = (np.arange(T) >= 3) & (np.arange(T) < 3 + length_B[:, None])
    attend_BT = mask_BT | ((np.arange(T) < 3) & (np.arange(T) >= np.arange(B)[:, None] % 3))
    zero_BT = jnp.zeros((B, T))
    return Rollout(
        tokens_BT=jnp.asarray(draw.integers(0, 30, (B, T))),
        attend_BT=jnp.asarray(attend_BT),
        mask_BT=jnp.asarray(mask_BT),
        logp_sampler_BT=zero_BT,
        logp_full_BT=zero_BT,
        entropy_BT=zero_BT,
        group_B=jnp.arange(B) // 2,
        truncated_B=jnp.zeros(B, bool),
    )


@pytest.fixture(scope="module")
def models():
    policy, reference, trunk = (random_params(MODEL, seed) for seed in range(3))
    head = {"w_D": jnp.linspace(-1.0, 1.0, 16), "b": jnp.float32(0.3)}
    return policy, reference, {"trunk": trunk, "head": head}


def plain_logp(params, rollout):
    hidden_BTD = MODEL.hidden(params, rollout.tokens_BT, rollout.attend_BT)
    logp_BTV = np.asarray(jax.nn.log_softmax(MODEL.logits(params, hidden_BTD) / TAU))
    tokens_BT = np.asarray(rollout.tokens_BT)
    out = np.zeros((B, T))
    for b in range(B):
        for t in range(1, T):
            out[b, t] = logp_BTV[b, t - 1, tokens_BT[b, t]]
    return out


@pytest.mark.parametrize("micro_rows", [None, 2])
def test_scores_equal_plain_logits(micro_rows, models, rollout):
    policy, reference, critic = models
    score = make_score(MODEL, temperature=TAU, micro_rows=micro_rows, critic_model=MODEL)
    scores = score(policy, reference, critic, rollout)
    mask_BT = np.asarray(rollout.mask_BT)
    for name, params in (("logp_old_BT", policy), ("logp_ref_BT", reference)):
        expected = plain_logp(params, rollout)
        np.testing.assert_allclose(scores[name][mask_BT], expected[mask_BT], rtol=1e-5, atol=1e-5)

    hidden_BTD = MODEL.hidden(critic["trunk"], rollout.tokens_BT, rollout.attend_BT)
    read_BT = np.asarray(scalar(critic["head"], hidden_BTD))
    assert float(np.ptp(read_BT)) > 0.1
    # V before token t is what the head reads at t − 1; V of the whole row what it reads at the end
    np.testing.assert_allclose(scores["value_BT"][:, 1:], read_BT[:, :-1], rtol=1e-5, atol=1e-5)
    last = [read_BT[b, np.flatnonzero(m)[-1]] if m.any() else 0.0 for b, m in enumerate(mask_BT)]
    np.testing.assert_allclose(scores["last_value_B"], last, rtol=1e-5, atol=1e-5)


def test_only_what_is_asked(models, rollout):
    score = make_score(MODEL, temperature=TAU)
    scores = score(None, models[1], None, rollout)
    assert scores["logp_ref_BT"].shape == (B, T)
    absent = {name for name, array in scores.items() if array is None}
    assert absent == {"last_value_B", "logp_old_BT", "value_BT"}


def test_sharded_equals_one_device(models, rollout):
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    expected = make_score(MODEL, temperature=TAU)(models[0], None, None, rollout)
    score = make_score(MODEL, temperature=TAU, micro_rows=4, mesh=mesh)
    scores = score(shard(mesh, models[0]), None, None, shard_rows(mesh, rollout))
    np.testing.assert_allclose(scores["logp_old_BT"], expected["logp_old_BT"], rtol=1e-5, atol=1e-5)
    assert {s.data.shape for s in scores["logp_old_BT"].addressable_shards} == {(2, T)}
