"""The cut: which rows go where, back again, and without traffic between devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.train.microbatch import check_micro_rows, map_rows, merge_rows, split_rows


def test_rows_are_taken_with_a_stride_and_come_back():
    batch = {"id_B": jnp.arange(12), "x_BT": jnp.arange(36).reshape(12, 3)}
    parts = split_rows(batch, 4)
    np.testing.assert_array_equal(parts["id_B"], [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]])
    assert parts["x_BT"].shape == (3, 4, 3)
    jax.tree.map(np.testing.assert_array_equal, merge_rows(parts), batch)


def test_cutting_moves_nothing_between_devices():
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    batch = shard_rows(mesh, {"x_BT": np.arange(32 * 3.0).reshape(32, 3)})

    @jax.jit
    def cut_and_back(batch):
        parts = split_rows(batch, 16, mesh)
        return parts, merge_rows(jax.tree.map(lambda x: 2 * x, parts), mesh)

    program = cut_and_back.lower(batch).compile().as_text()
    traffic = ("all-to-all", "all-gather", "collective-permute", "all-reduce", "dynamic-slice")
    assert [word for word in traffic if word in program] == []
    parts, back = cut_and_back(batch)
    assert {s.data.shape for s in parts["x_BT"].addressable_shards} == {(2, 2, 3)}
    np.testing.assert_array_equal(back["x_BT"], 2 * np.asarray(batch["x_BT"]))


@pytest.mark.parametrize(("micro_rows", "taken"), [(None, 6), (1, 1), (2, 2), (5, 3), (7, 6)])
def test_map_rows_equals_the_whole(micro_rows, taken):
    seen = []
    batch = (jnp.arange(12.0).reshape(6, 2), jnp.arange(6))

    def fn(part):
        x_BT, id_B = part
        seen.append(len(id_B))
        return {"sum_B": x_BT.sum(1) + id_B, "none": None}

    out = map_rows(fn, batch, micro_rows=micro_rows)
    assert seen[-1] == taken
    np.testing.assert_array_equal(out["sum_B"], fn(batch)["sum_B"])


def test_check_names_sizes_that_fit():
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    assert check_micro_rows(16, None, mesh) == 16
    assert check_micro_rows(16, 4, mesh) == 4
    with pytest.raises(ConfigError, match=r"micro_rows=5; nearest: \[2, 4, 8\]"):
        check_micro_rows(16, 5)
    with pytest.raises(ConfigError, match=r"micro_rows=2 does not divide by mesh data\*fsdp=4"):
        check_micro_rows(16, 2, mesh)
