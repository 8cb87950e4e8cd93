"""The sharding table: every array of the state has a rule, and what does not fit is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import LoraConfig, adapter_shapes
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import (
    TABLE,
    batch_sharding,
    padded_vocab,
    path_name,
    row_shards,
    shard,
    shard_rows,
    sharding_tree,
    spec_for,
)
from rlhf_jax.types import replace


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))


@pytest.fixture(scope="module")
def model():
    return Model(
        DecoderConfig(
            vocab_size=64, num_layers=2, d_model=32, num_heads=8, num_kv_heads=4, head_dim=4,
            d_ff=64, tie_embeddings=False,
        )
    )  # fmt: skip


def test_every_rule_serves_and_the_optimizer_repeats_it(mesh, model):
    params = model.abstract()
    critic = {"head": {"w_D": jax.ShapeDtypeStruct((32,), jnp.float32)}}
    critic["head"]["b"] = jax.ShapeDtypeStruct((1,), jnp.float32)
    opt_state = jax.eval_shape(optax.adamw(1e-3).init, params)
    every_option = dict(norm_outputs=True, qk_norm=True, qkv_bias=True, out_bias=True)
    other = replace(model.config, **every_option, mlp_bias=True, norm="layer", rope=None)
    other = Model(other).abstract()
    adapters = adapter_shapes(LoraConfig(rank=3), params)
    tree = {"policy": params, "opt_state": opt_state, "critic": critic, "other": other}
    tree["adapters"] = adapters
    specs = {
        path_name(path): sharding.spec
        for path, sharding in jax.tree_util.tree_leaves_with_path(sharding_tree(mesh, tree))
    }
    assert specs["policy/layers/attn/o_NHKD"] == P(None, "tensor", None, "fsdp")
    for path in (path_name(p) for p, _ in jax.tree_util.tree_leaves_with_path(params)):
        for moment in ("mu", "nu"):
            assert specs[f"opt_state/0/{moment}/{path}"] == specs[f"policy/{path}"], path
    assert specs["opt_state/0/count"] == P()
    # an axis of an adapter is split as it is in the weight
    for path, _ in jax.tree_util.tree_leaves_with_path(adapters):
        *weight, part = path_name(path).split("/")
        whole = dict(
            zip(weight[-1].split("_")[1], specs["/".join(["policy", *weight])], strict=False)
        )
        found = dict(
            zip(part.split("_")[1], specs["/".join(["adapters", *weight, part])], strict=False)
        )
        assert found == {axis: whole.get(axis) for axis in found}, path
    idle = [rule for rule, _ in TABLE if not any(re.search(f"{rule}$", path) for path in specs)]
    assert idle == []


def test_parts_on_the_devices(mesh):
    down = np.arange(2 * 8 * 6, dtype=np.float32).reshape(2, 8, 6)
    tree = shard(mesh, {"layers": {"mlp": {"down_NFD": down}}})
    x = tree["layers"]["mlp"]["down_NFD"]
    assert {s.data.shape for s in x.addressable_shards} == {(2, 2, 3)}  # F over 4, D over 2
    np.testing.assert_array_equal(x, down)


def test_kv_heads_fewer_than_the_tensor_axis_are_replicated(mesh):
    path = "policy/layers/attn/k_NDJK"
    assert spec_for(path, (2, 32, 4, 4), mesh) == P(None, "fsdp", "tensor")
    assert spec_for(path, (2, 32, 2, 4), mesh) == P(None, "fsdp")
    bias = "policy/layers/attn/bias_v_NJK"
    assert spec_for(bias, (2, 4, 4), mesh) == P(None, "tensor")
    assert spec_for(bias, (2, 2, 4), mesh) == P()
    # the exception is for key/value heads alone: query heads must divide
    with pytest.raises(ConfigError, match=r"q_NDHK dimension 2=2 .*tensor=4"):
        spec_for("policy/layers/attn/q_NDHK", (2, 32, 2, 4), mesh)
    # and for their J dimension alone
    with pytest.raises(ConfigError, match=r"k_NDJK dimension 1=33"):
        spec_for(path, (2, 33, 4, 4), mesh)


def test_axes_of_one_device_are_not_named():
    mesh = make_mesh(MeshConfig(data=1, fsdp=8))
    assert spec_for("embed/w_VD", (64, 32), mesh) == P(None, "fsdp")
    assert spec_for("attn/q_NDHK", (2, 32, 3, 4), mesh) == P(None, "fsdp")
    assert batch_sharding(mesh).spec == P("fsdp")


def test_no_rule_is_an_error(mesh):
    with pytest.raises(ConfigError, match=r"no sharding rule matches policy/layers/attn/w_QX"):
        sharding_tree(mesh, {"policy": {"layers": {"attn": {"w_QX": jnp.zeros((2, 2))}}}})
    with pytest.raises(ConfigError, match="no sharding rule"):  # not the end of the path
        spec_for("embed/w_VD/extra", (8, 8), mesh)
    with pytest.raises(ConfigError, match="no sharding rule"):  # not a whole name
        spec_for("unembed/w_VD", (8, 8), mesh)


def test_a_dimension_that_does_not_divide_names_sizes_that_do(mesh):
    with pytest.raises(ConfigError, match=r"embed/w_VD dimension 0=62 .*tensor=4; nearest: \[1, 2"):
        spec_for("embed/w_VD", (62, 32), mesh)
    assert padded_vocab(62, 4) == 64
    assert padded_vocab(64, 4) == 64
    spec_for("embed/w_VD", (padded_vocab(62, 4), 32), mesh)


@pytest.mark.parametrize(
    "spec", [P("fsdp", "fsdp"), P(("fsdp", "tensor"), "tensor"), P("model"), P(None, None, None)]
)
def test_a_rule_that_cannot_be_is_refused(mesh, spec):
    with pytest.raises(ConfigError, match="the rule for w"):
        spec_for("w", (8, 8), mesh, table=(("w", spec),))


def test_the_first_rule_wins(mesh):
    table = ((r"head/w_DV", P("fsdp")), (r"w_DV", P("tensor")))
    assert spec_for("policy/head/w_DV", (8, 8), mesh, table=table) == P("fsdp")


def test_rows_are_split_over_data_and_fsdp():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    assert row_shards(mesh) == 4
    assert row_shards(None) == 1
    assert batch_sharding(mesh).spec == P(("data", "fsdp"))
    batch = shard_rows(mesh, {"tokens_BT": np.zeros((8, 3)), "group_B": np.zeros(8)})
    assert {s.data.shape for s in batch["tokens_BT"].addressable_shards} == {(2, 3)}
    with pytest.raises(ConfigError, match=r"rows of group_B=6 .*data\*fsdp=4; nearest: \[2, 3, 6"):
        shard_rows(mesh, {"group_B": np.zeros(6)})
