"""Prompts run once for packed responses: the same numbers and the same step as row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import random_params

from rlhf_jax.advantages import gae
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.losses.surrogate import clipped
from rlhf_jax.losses.value import ValueTerm, clipped_squared
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import LoraConfig, adapter_shapes
from rlhf_jax.models.rope import Rope
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.layout import Sizes, lay_out
from rlhf_jax.train.metrics import update_numbers
from rlhf_jax.train.scoring import make_score
from rlhf_jax.train.state import Frozen, init_state
from rlhf_jax.train.steps import make_update
from rlhf_jax.types import PolicyBatch, Rollout, replace

P, G, L, R, TAU = 4, 4, 5, 6, 0.7
B, T = P * G, L + R
SGD = optax.sgd(1.0, momentum=0.9)  # the momentum of the first step is the gradient
SHAPE = dict(vocab_size=64, num_layers=2, d_model=16, num_heads=8, num_kv_heads=4, head_dim=4)
PLAIN = DecoderConfig(**SHAPE, d_ff=16)
EVERY_OPTION = DecoderConfig(
    **SHAPE, d_ff=24, norm="rms+1", norm_outputs=True, qk_norm=True, qkv_bias=True,
    attn_softcap=2.0, logit_softcap=3.0, window=3, local_layers=(True, False),
    rope_local=Rope(theta=50.0), tie_embeddings=False,
)  # fmt: skip
LEARNED_POSITIONS = DecoderConfig(
    **SHAPE, d_ff=24, norm="layer", gated=False, activation="gelu_new", rope=None, max_positions=T
)
WITH_CRITIC = PolicyObjective(
    advantage=bind(gae, gamma=1.0, lam=0.95),
    surrogate=bind(clipped, low=0.2, high=0.3),
    loss_kl=KL(estimator=bind(k3), coef=0.1),
    entropy=0.01,
    value=ValueTerm(loss=bind(clipped_squared, clip=0.5), coef=0.5),
)


def rollout():
    """Ragged prompts and responses, rows of one prompt apart, one row empty, one with a gap."""
    draw = np.random.default_rng(0)
    group_B = np.tile(np.arange(P), G)
    prompt_PL = draw.integers(0, 64, (P, L))
    real_PL = np.arange(L) >= np.array([0, 2, 4, 1])[:, None]
    length_B = draw.integers(1, R + 1, B)
    length_B[3] = 0
    attend_BR = np.arange(R) < length_B[:, None]
    mask_BR = attend_BR.copy()
    length_B[5] = R
    attend_BR[5], mask_BR[5] = True, np.array([1, 1, 0, 0, 1, 1], bool)
    zero_BT = np.zeros((B, T), np.float32)
    return Rollout(
        tokens_BT=np.concatenate([prompt_PL[group_B], draw.integers(0, 64, (B, R))], axis=1),
        attend_BT=np.concatenate([real_PL[group_B], attend_BR], axis=1),
        mask_BT=np.concatenate([np.zeros((B, L), bool), mask_BR], axis=1),
        logp_sampler_BT=zero_BT,
        logp_full_BT=zero_BT,
        entropy_BT=zero_BT,
        group_B=group_B,
        truncated_B=np.zeros(B, bool),
    )


def batch(**changes):
    drawn, draw = rollout(), np.random.default_rng(1)
    normal = lambda: draw.normal(size=(B, T)).astype(np.float32)  # noqa: E731
    old_BT = -4.0 + 0.3 * normal()
    labels = PolicyBatch(
        tokens_BT=drawn.tokens_BT,
        attend_BT=drawn.attend_BT,
        mask_BT=drawn.mask_BT,
        group_B=drawn.group_B,
        advantage_BT=normal(),
        logp_old_BT=old_BT,
        logp_ref_BT=old_BT + 0.2 * normal(),
        logp_full_BT=old_BT + 0.01 * normal(),
        correction_BT=np.abs(normal()),
        value_old_BT=normal(),
        return_BT=normal(),
    )
    return replace(labels, **changes)


def layout_of(rows, micro_rows=3, shards=1):
    sizes = Sizes.of(B, P, G, R, micro_rows=micro_rows, shards=shards)
    return lay_out(np.asarray(rows.mask_BT), rows.group_B, sizes, prompt_columns=L)


def critic_params(model):
    head = {"w_D": jnp.linspace(-1.0, 1.0, 16), "b": jnp.float32(0.1)}
    return {"trunk": random_params(model, 2, 0.2), "head": head}


def stepped(model, objective, rows, layout=None, *, lora=False, mesh=None):
    """The state after one update and its numbers."""
    policy, base, critic = random_params(model, 1, 0.2), None, None
    place = (lambda x: x) if mesh is None else (lambda x: shard(mesh, x))
    policy = place(policy)
    if lora:
        draw = np.random.default_rng(4)
        shapes = adapter_shapes(LoraConfig(rank=2, alpha=4.0), policy)
        adapters = jax.tree.map(
            lambda s: jnp.asarray(0.2 * draw.normal(size=s.shape), s.dtype), shapes
        )
        base, policy = Frozen(policy=policy, scale=2.0), place(adapters)
    if objective.needs_critic:
        critic = place(critic_params(model))
    state = init_state(policy, SGD, critic=critic, critic_tx=SGD, base=base, mesh=mesh)
    update = make_update(model, SGD, temperature=TAU, critic_model=model, critic_tx=SGD, mesh=mesh)
    rows = rows if mesh is None else shard_rows(mesh, rows)
    state, metrics = update(state, objective, rows, layout)
    return state, update_numbers([metrics])


def assert_same_step(got, want, *, but=()):
    (state, numbers), (expected, whole) = got, want
    trained = lambda s: (s.policy, s.critic and s.critic.params)  # noqa: E731
    momenta = lambda s: (s.opt_state, s.critic and s.critic.opt_state)  # noqa: E731
    for part in (momenta, trained):
        pairs = zip(jax.tree.leaves(part(state)), jax.tree.leaves(part(expected)), strict=True)
        for a, b in pairs:
            scale = float(jnp.abs(b).max())
            assert scale > 1e-7, "nothing to compare"
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale)
    assert numbers.keys() == whole.keys()
    for name in numbers.keys() - set(but):
        np.testing.assert_allclose(numbers[name], whole[name], rtol=3e-5, atol=1e-6, err_msg=name)


CASES = {
    "critic, kl and entropy": (PLAIN, WITH_CRITIC, {}),
    "sequence ratio": (PLAIN, gspo(), {"logp_old_BT": None}),
    "clipped sequence ratio": (PLAIN, gmpo(), {}),
    "windows and caps": (EVERY_OPTION, grpo(beta=0.04), {}),
    "learned positions": (LEARNED_POSITIONS, grpo(beta=0.04), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_packed_steps_equal_steps_row_by_row(case):
    config, objective, changes = CASES[case]
    rows = batch(**changes)
    want = stepped(Model(config), objective, rows)
    assert_same_step(stepped(Model(config), objective, rows, layout_of(rows)), want)


def test_adapters_take_the_same_step():
    rows, model, objective = batch(), Model(PLAIN, remat="full"), grpo(beta=0.04)
    want = stepped(model, objective, rows, lora=True)
    assert_same_step(stepped(model, objective, rows, layout_of(rows), lora=True), want)


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)], ids=str)
def test_eight_devices_take_the_step_of_one(shape):
    rows, model = batch(), Model(PLAIN)
    want = stepped(model, WITH_CRITIC, rows)
    mesh = make_mesh(MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2]))
    layout = layout_of(rows, micro_rows=8, shards=shape[0] * shape[1])
    with jax.set_mesh(mesh):
        assert_same_step(stepped(model, WITH_CRITIC, rows, layout, mesh=mesh), want)


@pytest.mark.parametrize("micro_rows", [1, 3, None])
def test_packed_scores_equal_scores_row_by_row(micro_rows):
    model, drawn = Model(EVERY_OPTION), rollout()
    policy, reference = (random_params(model, seed, 0.2) for seed in range(2))
    score = make_score(model, temperature=TAU, critic_model=model)
    arguments = (policy, reference, critic_params(model), drawn)
    want, got = score(*arguments), score(*arguments, layout_of(drawn, micro_rows))
    assert got.keys() == want.keys()
    for name, x in got.items():
        where = drawn.mask_BT if x.ndim == 2 else drawn.mask_BT.any(axis=1)
        np.testing.assert_allclose(x[where], want[name][where], rtol=1e-5, atol=2e-6, err_msg=name)


def test_any_draw_runs_the_same_program_and_a_row_left_out_is_as_if_masked():
    model, rows = Model(PLAIN), batch()
    objective = replace(grpo(), loss_kl=None)
    idle_B = np.arange(B) % P < 2  # two of the four prompts
    rows = replace(rows, advantage_BT=np.where(idle_B[:, None], 0, rows.advantage_BT))
    want = stepped(model, objective, rows)
    sizes = Sizes.of(B, P, G, R, micro_rows=2, shards=1)
    busy_BT = rows.mask_BT & ~idle_B[:, None]
    layout = lay_out(busy_BT, rows.group_B, sizes, prompt_columns=L)
    assert np.count_nonzero(layout.steps_E) == 1 < len(layout.steps_E)
    got = stepped(model, objective, rows, layout)
    # per-token metrics are of what was run
    tokens = ("entropy", "clip_low", "clip_high", "ratio", "ratio_max", "kl_old")
    more = ("kl_k1", "kl_k3", "sampler_gap", "sampler_gap_max")
    assert_same_step(got, want, but=(*tokens, *more, "loss", "policy_loss"))

    state = init_state(random_params(model, 1, 0.2), SGD)
    update = make_update(model, SGD, temperature=TAU)
    for some in (rows, replace(rows, mask_BT=busy_BT), replace(rows, mask_BT=rows.mask_BT & False)):
        layout = lay_out(some.mask_BT, rows.group_B, sizes, prompt_columns=L)
        state, metrics = update(state, objective, rows, layout)
        assert not metrics["skipped"]
    assert update._cache_size() == 1
