"""Checkpoints: bit for bit, on another mesh, damaged, killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.train.checkpoint import CheckpointConfig, Checkpointer
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.state import abstract_state, init_state
from rlhf_jax.types import replace

HOST = {"seed": 3, "position": 17, "config": "ab12", "best": 0.1}


def tiny_state(mesh=None, seed=0):
    draw = np.random.default_rng(seed).normal
    policy = {
        "embed": {"w_VD": jnp.asarray(draw(size=(16, 8)), jnp.float32)},
        "layers": {
            "attn": {"k_NDJK": jnp.asarray(draw(size=(2, 8, 2, 2)), jnp.bfloat16)},
            "norm_mlp": {"scale_ND": jnp.asarray(draw(size=(2, 8)), jnp.float32)},
        },
    }
    tx = make_optimizer(OptimConfig(weight_decay=0.1), 10)
    state = init_state(policy, tx, with_reference=True, reward_kl_coef=0.3, mesh=mesh)
    moments = jax.tree.map(lambda x: x + jnp.asarray(seed / 3, x.dtype), state.opt_state)
    return replace(state, opt_state=moments)


def assert_same_bits(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.fixture
def saver(tmp_path):
    return Checkpointer(tmp_path / "checkpoints", CheckpointConfig(every=5, keep=2))


def test_there_and_back(saver):
    assert saver.restore_latest(tiny_state()) is None
    state = tiny_state(seed=1)
    path = saver.save(5, state, HOST)
    assert path.name == "step_00000005"
    restored, host = saver.restore_latest(abstract_state(tiny_state()))
    assert_same_bits(restored, state)
    assert host == HOST
    assert not list(saver.folder.glob(".*"))


def test_onto_another_mesh(saver):
    wide = tiny_state(make_mesh(MeshConfig(data=2, fsdp=4)), seed=1)
    saver.save(5, wide, HOST)
    other = make_mesh(MeshConfig(data=1, fsdp=2, tensor=2), jax.devices()[:4])
    like = tiny_state(other)
    restored, _ = saver.restore_latest(like)
    assert_same_bits(restored, wide)
    for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(like), strict=True):
        assert x.sharding == y.sharding


def test_keeps_the_newest(saver):
    for step in (5, 10, 15):
        saver.save(step, {"x": jnp.full(3, step)}, {})
    assert saver.steps() == [10, 15]
    saver.save(15, {"x": jnp.full(3, -1)}, {"again": True})  # the same step replaces itself
    assert saver.steps() == [10, 15]
    restored, host = saver.restore_latest({"x": jnp.zeros(3, jnp.int32)})
    assert host == {"again": True}
    np.testing.assert_array_equal(restored["x"], -1)


def test_due():
    saver = Checkpointer("unused", CheckpointConfig(every=5))
    assert [step for step in range(12) if saver.due(step)] == [5, 10]


def largest_file(path):
    return max((p for p in (path / "state").rglob("*") if p.is_file()), key=os.path.getsize)


def flip_a_bit(path):
    file = largest_file(path)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def truncate(path):
    file = largest_file(path)
    file.write_bytes(file.read_bytes()[:-7])


def lose_a_file(path):
    largest_file(path).unlink()


def empty_the_digests(path):
    (path / "digests.json").write_text("")


def edit_the_host_record(path):
    (path / "host.json").write_text((path / "host.json").read_text().replace("10", "11"))


def forget_a_digest(path):
    file = path / "digests.json"
    lines = file.read_text().splitlines()
    del lines[2]
    file.write_text("\n".join(lines))


@pytest.mark.parametrize(
    "harm, says",
    [
        (flip_a_bit, "state/.* has changed"),
        (truncate, "state/.* has changed"),
        (lose_a_file, "state/.* is missing"),
        (empty_the_digests, "digests.json cannot be read"),
        (edit_the_host_record, "host.json has changed"),
        (forget_a_digest, "digests.json has changed"),
    ],
)
def test_damage_to_the_newest_falls_back_to_the_one_before(saver, harm, says):
    for step in (5, 10):
        saver.save(step, {"x": jnp.arange(1000.0) + step}, {"step": step})
    harm(saver.path(10))
    with pytest.warns(UserWarning, match=f"step_00000010 is damaged .{says}"):
        restored, host = saver.restore_latest({"x": jnp.zeros(1000)})
    assert host == {"step": 5}
    np.testing.assert_array_equal(restored["x"], np.arange(1000.0) + 5)
    saver.save(10, restored, {"step": 10})  # the damaged one is replaced, and now it holds
    assert saver.restore_latest({"x": jnp.zeros(1000)})[1] == {"step": 10}


def test_all_damaged_is_an_error_not_a_fresh_start(saver):
    saver.save(5, {"x": jnp.zeros(3)}, {})
    lose_a_file(saver.path(5))
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ConfigError, match=r"all 1 checkpoints .* are damaged"),
    ):
        saver.restore_latest({"x": jnp.zeros(3)})


@pytest.mark.parametrize(
    "like, says",
    [
        ({"x": jnp.zeros(4)}, r"x is \[\[3\], 'float32'\] there and \[\[4\], 'float32'\] here"),
        ({"x": jnp.zeros(3, jnp.bfloat16)}, "x is .*float32.*bfloat16"),
        ({"x": jnp.zeros(3), "y": jnp.zeros(1)}, "y is absent there"),
        ({}, r"x is .* there and absent here"),
    ],
)
def test_another_layout_is_refused(saver, like, says):
    saver.save(5, {"x": jnp.zeros(3)}, {})
    with pytest.raises(ConfigError, match=says):
        saver.restore_latest(like)


def test_leftovers_of_a_kill_are_not_checkpoints(saver):
    saver.save(5, {"x": jnp.zeros(3)}, {"step": 5})
    for name in (".writing_00000010", ".dropped_step_00000001"):
        (saver.folder / name / "state").mkdir(parents=True)
    assert saver.restore_latest({"x": jnp.zeros(3)})[1] == {"step": 5}
    saver.save(10, {"x": jnp.ones(3)}, {"step": 10})
    assert not list(saver.folder.glob(".*"))


SAVES_FOR_EVER = """
import sys, jax.numpy as jnp
from rlhf_jax.train.checkpoint import CheckpointConfig, Checkpointer
saver = Checkpointer(sys.argv[1], CheckpointConfig(keep=2))
for step in range(1, 10**6):
    saver.save(step, {"x": jnp.full(200_000, step)}, {"step": step})
"""


@pytest.mark.parametrize("delay", [0.0, 0.013])
def test_kill_at_any_moment(tmp_path, delay):
    saver = Checkpointer(tmp_path, CheckpointConfig())
    like = {"x": jnp.zeros(200_000, jnp.int32)}
    child = subprocess.Popen(
        [sys.executable, "-c", SAVES_FOR_EVER, str(tmp_path)], cwd=Path(__file__).parents[2]
    )
    deadline = time.monotonic() + 60
    while len(saver.steps()) < 2 and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.01)
    time.sleep(delay)
    child.send_signal(signal.SIGKILL)
    child.wait()
    restored, host = saver.restore_latest(like)
    assert host["step"] == saver.steps()[-1] >= 1
    np.testing.assert_array_equal(restored["x"], host["step"])


@pytest.mark.parametrize("bad", [{"every": 0}, {"keep": 0}, {"every": float("nan")}])
def test_bad_config(bad):
    with pytest.raises(ConfigError, match=f"checkpoint.{next(iter(bad))}"):
        CheckpointConfig(**bad)
