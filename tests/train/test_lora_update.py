"""Updates of adapters: any mesh and any cut give the same, the base stays, the moments are few."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import random_params

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import LoraConfig, adapter_shapes
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.state import Frozen, init_state, policy_of, reference_of, refresh_reference
from rlhf_jax.train.steps import make_sft_update
from rlhf_jax.types import SFTBatch

MODEL = Model(
    DecoderConfig(
        vocab_size=16, num_layers=2, d_model=8, num_heads=4, num_kv_heads=1, head_dim=4, d_ff=16
    )
)
LORA = LoraConfig(rank=2, alpha=4.0)
SGD = optax.sgd(0.5, momentum=0.0)  # without momentum its trace is the gradient


def batch():
    draw = np.random.default_rng(3)
    tokens_BT = draw.integers(0, 16, (8, 6)).astype(np.int32)
    attend_BT = np.arange(6)[None] < draw.integers(3, 7, (8, 1))
    mask_BT = attend_BT & (np.arange(6) > 0)[None]
    return SFTBatch(tokens_BT=tokens_BT, attend_BT=attend_BT, mask_BT=mask_BT)


def parts(mesh=None):
    """(adapters that change something, the frozen base), on a mesh if there is one."""
    draw = np.random.default_rng(1)
    base = random_params(MODEL, 0, scale=0.2)
    shapes = adapter_shapes(LORA, base)
    adapters = jax.tree.map(lambda s: jnp.asarray(0.2 * draw.normal(size=s.shape), s.dtype), shapes)
    if mesh is not None:
        base, adapters = shard(mesh, base), shard(mesh, adapters)
    return adapters, Frozen(policy=base, scale=LORA.scale)


def stepped(mesh=None, micro_rows=None, tx=SGD):
    adapters, base = parts(mesh)
    state = init_state(adapters, tx, base=base, with_reference=True, mesh=mesh)
    update = make_sft_update(MODEL, tx, micro_rows=micro_rows, mesh=mesh)
    rows = batch() if mesh is None else shard_rows(mesh, batch())
    state, metrics = update(state, rows)
    found = jax.device_get((state.policy, state.opt_state, metrics["loss"].value()))
    state, _ = update(state, rows)
    assert update._cache_size() == 1
    return state, found


@pytest.fixture(scope="module")
def alone():
    return stepped()


@pytest.mark.parametrize("micro_rows", [None, 4])
@pytest.mark.parametrize("mesh", [dict(data=2, fsdp=2, tensor=2), dict(data=1, fsdp=2, tensor=4)])
def test_eight_devices_equal_one(alone, mesh, micro_rows):
    mesh = make_mesh(MeshConfig(**mesh))
    with jax.set_mesh(mesh):
        state, found = stepped(mesh, micro_rows)
    for x, want in zip(*map(jax.tree.leaves, (found, alone[1])), strict=True):
        assert np.abs(x - want).max() <= 1e-5 * np.abs(want).max()
    q = state.policy["layers"]["attn"]["q_NDHK"]
    assert {s.data.shape for s in q["a_NDU"].addressable_shards} == {(2, 4, 2)}
    split = 4 // mesh.shape["tensor"]
    assert {s.data.shape for s in q["b_NUHK"].addressable_shards} == {(2, 2, split, 4)}
    k = state.policy["layers"]["attn"]["k_NDJK"]["b_NUJK"]  # one head: on every device
    assert {s.data.shape for s in k.addressable_shards} == {(2, 2, 1, 4)}


def test_micro_batches_change_nothing(alone):
    found = stepped(micro_rows=2)[1]
    for x, want in zip(*map(jax.tree.leaves, (found, alone[1])), strict=True):
        assert np.abs(x - want).max() <= 1e-5 * np.abs(want).max()


def test_the_base_is_neither_written_nor_donated_nor_copied(alone):
    adapters, base = parts()
    state = init_state(adapters, SGD, base=base, with_reference=True)
    new, _ = make_sft_update(MODEL, SGD)(state, batch())
    for x, y, want in zip(
        *map(jax.tree.leaves, (new.base, base, random_params(MODEL, 0, scale=0.2))), strict=True
    ):
        assert x is y
        np.testing.assert_array_equal(x, want)
    for x, y in zip(*map(jax.tree.leaves, (new.policy, adapters)), strict=True):
        assert not np.array_equal(x, y)
    # the reference is the policy of the start: adapters of its own on the same base
    jax.tree.map(np.testing.assert_array_equal, new.reference, adapters)
    shared = reference_of(new)["layers"]["attn"]["q_NDHK"].w
    assert shared is policy_of(new)["layers"]["attn"]["q_NDHK"].w


def test_optimizer_state_is_of_adapters_alone():
    adapters, base = parts()
    tx = make_optimizer(OptimConfig(learning_rate=1e-3, weight_decay=0.1), 10)
    state = init_state(adapters, tx, base=base)
    size = sum(x.nbytes for x in jax.tree.leaves(adapters))
    # two moments of each adapter; the counts of Adam and of the schedule, and the rate
    assert sum(x.nbytes for x in jax.tree.leaves(state.opt_state)) == 2 * size + 3 * 4
    assert size < 0.5 * sum(x.nbytes for x in jax.tree.leaves(base.policy))


def test_a_reference_of_adapters_is_renewed_whole():
    adapters, base = parts()
    state = init_state(adapters, SGD, base=base, with_reference=True)
    state, _ = make_sft_update(MODEL, SGD)(state, batch())
    renewed = refresh_reference(state)
    jax.tree.map(np.testing.assert_array_equal, renewed.reference, state.policy)
    with pytest.raises(ConfigError, match="renewed whole"):
        refresh_reference(state, 0.5)
