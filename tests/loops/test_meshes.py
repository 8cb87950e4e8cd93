"""One whole online step on eight devices equals the step on one, however the mesh divides them."""

from functools import partial

import jax
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file
from toy import online_config, write_policy

from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.loops import online
from rlhf_jax.loops import setup as loop_setup
from rlhf_jax.loops.collect import judge
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.run import load_policy
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.train.metrics import update_numbers
from rlhf_jax.train.state import init_state
from rlhf_jax.train.steps import make_update
from rlhf_jax.types import replace

VOCAB = 259  # prime to 2, 4 and 8: padded on every mesh with a tensor axis
MESHES = [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)]


def letter_sums(prompts, completions, rows):
    return [float(sum(map(ord, text)) % 7) for text in completions]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The policy, and another model as reference and critic: no KL and no gradient is 0."""
    root = tmp_path_factory.mktemp("models")
    return [write_policy(root / str(seed), seed=seed, num_layers=2) for seed in (0, 1)]


def without_padding(tree):
    """Host copies on the real vocabulary; the padded columns must be exactly 0."""

    def leaf(path, x):
        x = np.asarray(x)
        if "w_VD" in jax.tree_util.keystr(path[-1:]):
            assert not x[VOCAB:].any()
            return x[:VOCAB]
        return x

    return jax.tree_util.tree_map_with_path(leaf, tree)


def one_step(folders, out, monkeypatch, mesh=None):
    """Sample, judge, score, label, update by plain SGD; everything that came of it, on the host."""
    if mesh is None:
        monkeypatch.setattr(loop_setup, "make_mesh", partial(make_mesh, devices=jax.devices()[:1]))
    cfg = online_config(
        folders[0],
        out,
        objective=replace(ppo(kl_coef=0.1), loss_kl=KL(estimator=bind(k3), coef=0.1)),
        rewards=(bind(letter_sums),),
        num_prompts=8,
        num_samples=2,
        micro_rows=8,
        mesh=MeshConfig() if mesh is None else MeshConfig(**mesh),
    )
    setup = online.set_up(cfg, online.read_inputs(cfg))
    model, functions, tokenizer = setup.model, setup.functions, setup.inputs.tokenizer
    tx = optax.sgd(0.3, momentum=0.0)  # without momentum its trace is the gradient
    with jax.set_mesh(setup.mesh):
        other = load_policy(folders[1], cfg, setup.mesh)[1]
        head = {"w_D": np.linspace(-0.1, 0.1, model.config.d_model, dtype=np.float32)}
        state = init_state(
            setup.start.trained,
            tx,
            critic={"trunk": other, "head": {**head, "b": np.float32(0.2)}},
            critic_tx=tx,
            mesh=setup.mesh,
        )
        state = replace(state, reference=jax.tree.map(jax.numpy.copy, other))
        prompts = setup.inputs.prompts.batches(cfg.num_prompts, cfg.seed)[0]
        rollout = functions.sample(state.policy, prompts, step_key(0, 0, "sample"))
        judged = judge(cfg, tokenizer, prompts, rollout)
        scores = {"score_BC": judged.score_BC, "valid_BC": judged.valid_BC}
        values = functions.score(state.policy, state.reference, state.critic.params, rollout)
        batch, _ = functions.label(cfg.objective, rollout, shard_rows(setup.mesh, scores), values)
        update = make_update(
            model,
            tx,
            temperature=cfg.sampling.trainer_temperature,
            micro_rows=cfg.micro_rows,
            critic_model=model,
            critic_tx=tx,
            mesh=setup.mesh,
        )
        state, metrics = update(state, cfg.objective, batch)
    return setup.mesh, {
        "tokens": np.asarray(rollout.tokens_BT),
        "completions": judged.completions,
        "loss": {k: v for k, v in update_numbers([metrics]).items() if k.endswith("loss")},
        "gradient": without_padding((state.opt_state[0].trace, state.critic.opt_state[0].trace)),
        "params": without_padding((state.policy, state.critic.params)),
        "sharding": state.policy["layers"]["attn"]["k_NDJK"].sharding.spec,
    }


def assert_close(tree, wanted):
    """To 1e-5 of each array's largest entry."""

    def leaf(path, x, y):
        error, size = np.abs(x - y).max(), np.abs(y).max()
        assert size > 0 and error <= 1e-5 * size, (jax.tree_util.keystr(path), error / size)

    jax.tree_util.tree_map_with_path(leaf, tree, wanted)


@pytest.fixture(scope="module")
def on_one(folders, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        return one_step(folders, tmp_path_factory.mktemp("runs"), patch)[1]


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_a_step_on_eight_devices_equals_one(shape, folders, on_one, tmp_path, monkeypatch):
    axes = dict(zip(("data", "fsdp", "tensor"), shape, strict=True))
    mesh, got = one_step(folders, tmp_path, monkeypatch, axes)
    assert mesh.devices.size == 8 and tuple(mesh.shape.values()) == shape
    np.testing.assert_array_equal(got["tokens"], on_one["tokens"])
    assert got["completions"] == on_one["completions"]
    assert got["loss"].keys() == {"loss", "policy_loss", "kl_loss", "value_loss"}
    # absolute for policy_loss: whitened advantages at ratio 1 cancel to a rounding residue
    for name, loss in on_one["loss"].items():
        np.testing.assert_allclose(got["loss"][name], loss, rtol=1e-5, atol=1e-6, err_msg=name)
    assert_close(got["gradient"], on_one["gradient"])
    assert_close(got["params"], on_one["params"])
    # four key/value heads: split where they divide, whole on every device of a tensor axis of 8
    split = "tensor" in jax.tree.leaves(tuple(got["sharding"]))
    assert split == (shape[2] in (2, 4))


@pytest.mark.usefixtures("no_curves")
def test_a_sharded_run_is_saved_resumed_and_exported(folders, tmp_path):
    """To the bit, on a mesh that uses every axis; the padded vocabulary is stripped."""
    mesh = MeshConfig(data=2, fsdp=2, tensor=2)
    runs = {
        name: online_config(folders[0], tmp_path / name, mesh=mesh, num_steps=steps)
        for name, steps in (("straight", 2), ("parts", 1))
    }
    online.run(runs["straight"])
    online.run(runs["parts"])
    online.run(replace(runs["parts"], num_steps=2))
    straight, parts = (load_file(tmp_path / name / "policy/model.safetensors") for name in runs)
    before = load_file(folders[0] / "model.safetensors")
    assert straight.keys() == parts.keys() == before.keys()
    for name, x in straight.items():
        np.testing.assert_array_equal(x, parts[name], err_msg=name)
        assert x.shape == before[name].shape and (x != before[name]).any()
