"""The train state: made sharded, owns its buffers, carries the adaptive coefficient."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.kl import KL, adaptive_coef, k1
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import sharding_tree
from rlhf_jax.train.state import (
    abstract_state,
    control_reward_kl,
    init_params,
    init_state,
    objective_now,
    refresh_reference,
)
from rlhf_jax.types import replace

MODEL = Model(
    DecoderConfig(
        vocab_size=16, num_layers=1, d_model=8, num_heads=2, num_kv_heads=2, head_dim=4, d_ff=8
    )
)


def test_sharded_init_draws_what_one_device_draws():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    sharded = init_params(MODEL, jax.random.key(3), mesh=mesh)
    plain = init_params(MODEL, jax.random.key(3))
    other = init_params(MODEL, jax.random.key(4))
    for x, y in zip(*map(jax.tree.leaves, (sharded, plain)), strict=True):
        # the drawn bits are equal; the scaling may be fused otherwise
        np.testing.assert_allclose(x, y, rtol=1e-6)
    assert not np.array_equal(plain["embed"]["w_VD"], other["embed"]["w_VD"])
    gate = sharded["layers"]["mlp"]["gate_NDF"]
    assert {s.data.shape for s in gate.addressable_shards} == {(1, 4, 4)}
    state = init_state(sharded, optax.adam(1e-3), with_reference=True, mesh=mesh)
    for x, want in zip(*map(jax.tree.leaves, (state, sharding_tree(mesh, state))), strict=True):
        assert x.sharding == want
    like = abstract_state(state)
    assert like.policy["embed"]["w_VD"].sharding == state.policy["embed"]["w_VD"].sharding


def params():
    return {"norm_out": {"scale_D": jnp.arange(4.0)}}


def test_policy_reference_and_caller_share_no_buffer():
    given = params()
    state = init_state(given, optax.sgd(1.0), with_reference=True)
    step = jax.jit(
        lambda s: replace(s, policy=jax.tree.map(jnp.negative, s.policy)), donate_argnums=0
    )
    new = step(state)
    np.testing.assert_array_equal(given["norm_out"]["scale_D"], np.arange(4.0))
    np.testing.assert_array_equal(new.reference["norm_out"]["scale_D"], np.arange(4.0))
    new = refresh_reference(new)
    newer = step(new)  # donates: the refreshed reference must be a copy of its own
    np.testing.assert_array_equal(newer.reference["norm_out"]["scale_D"], -np.arange(4.0))
    np.testing.assert_array_equal(newer.policy["norm_out"]["scale_D"], np.arange(4.0))


def test_a_reference_may_follow_as_a_moving_average():
    state = init_state(params(), optax.sgd(1.0), with_reference=True)
    state = replace(state, policy={"norm_out": {"scale_D": jnp.full(4, 10.0)}})
    want = np.arange(4.0)
    for _ in range(2):
        state = refresh_reference(state, 0.25)
        want = 0.25 * 10.0 + 0.75 * want
        np.testing.assert_allclose(state.reference["norm_out"]["scale_D"], want, rtol=1e-6)
    np.testing.assert_array_equal(state.policy["norm_out"]["scale_D"], 10.0)
    copied = refresh_reference(state, 1.0)
    np.testing.assert_array_equal(copied.reference["norm_out"]["scale_D"], 10.0)


def plain_advantage(scored, reward_BT):
    return reward_BT


def test_adaptive_coefficient_lives_in_the_state():
    controller = bind(adaptive_coef, target=6.0, horizon=100.0, batch=10)
    objective = PolicyObjective(
        advantage=bind(plain_advantage),
        reward_kl=KL(estimator=bind(k1), coef=0.2, controller=controller),
    )
    state = init_state(params(), optax.sgd(1.0), reward_kl_coef=objective.reward_kl.coef)
    # KL twice the target: the error is clipped at .2, β grows by 1 + .2·10/100
    # the numbers of a skipped step must not spoil β for all that follow
    state = control_reward_kl(state, objective, jnp.float32(jnp.nan))
    state = control_reward_kl(state, objective, jnp.float32(12.0))
    assert float(state.reward_kl_coef) == pytest.approx(0.2 * 1.02)
    assert float(objective_now(objective, state).reward_kl.coef) == pytest.approx(0.2 * 1.02)
    fixed = init_state(params(), optax.sgd(1.0))
    assert objective_now(objective, fixed) is objective
    assert control_reward_kl(fixed, objective, jnp.float32(12.0)) is fixed
