"""A reward model's update: the cut and the mesh change nothing; ties and bad numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import random_params

from rlhf_jax.algorithms.reward_model import RewardObjective
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.reward import forward_scores
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.metrics import bad_rows, update_numbers
from rlhf_jax.train.reward_model import make_reward_score, make_reward_update
from rlhf_jax.train.state import init_state
from rlhf_jax.types import RankedBatch, replace

B, S, T = 8, 3, 7
MODEL = Model(
    DecoderConfig(
        vocab_size=64, num_layers=1, d_model=16, num_heads=4, num_kv_heads=4, head_dim=4, d_ff=16
    )
)
OBJECTIVE = RewardObjective(centre=0.1)
# the step is the gradient, which a trace without momentum keeps unrounded
SGD = optax.sgd(1.0, momentum=0.0)


@pytest.fixture(scope="module")
def params():
    head = {"w_D": jnp.linspace(-1.0, 1.0, 16), "b": jnp.float32(0.1)}
    return {"trunk": random_params(MODEL, 0, scale=0.3), "head": head}


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(0)
    length_BS1 = draw.integers(2, T + 1, (B, S, 1))
    valid_BS = np.ones((B, S), bool)
    valid_BS[3, 1], valid_BS[5, 1:] = False, False  # two are left; one is left
    rank_BS = np.argsort(draw.normal(size=(B, S)), axis=1).astype(np.float32)
    rank_BS[6] = 1.0  # nothing to choose
    attend_BST = (np.arange(T) < length_BS1) & valid_BS[:, :, None]
    attend_BST[0] = attend_BST[0, :, ::-1]  # padded on the left
    return RankedBatch(
        tokens_BST=draw.integers(0, 64, (B, S, T)),
        attend_BST=attend_BST,
        rank_BS=rank_BS,
        valid_BS=valid_BS,
        margin_BSS=draw.uniform(0, 0.5, (B, S, S)).astype(np.float32),
    )


def gradient_of(params, batch, micro_rows=None, mesh=None):
    if mesh is not None:
        params, batch = shard(mesh, params), shard_rows(mesh, batch)
    state = init_state(params, SGD, mesh=mesh)
    update = make_reward_update(MODEL, SGD, micro_rows=micro_rows, mesh=mesh)
    state, metrics = update(state, OBJECTIVE, batch)
    return jax.device_get(state.opt_state[0].trace), update_numbers([metrics])


@pytest.fixture(scope="module")
def whole(params, batch):
    return gradient_of(params, batch)


def test_equals_a_loop_over_pairs(params, batch, whole):
    flat = [jnp.asarray(x).reshape(B * S, T) for x in (batch.tokens_BST, batch.attend_BST)]

    def loss(params):
        score_BS = forward_scores(MODEL, params, *flat).reshape(B, S)
        prompts = []
        for b in range(B):
            rows = score_BS[b]
            terms = []
            for i in range(S):
                for j in range(S):
                    both = batch.valid_BS[b, i] and batch.valid_BS[b, j]
                    if both and batch.rank_BS[b, i] < batch.rank_BS[b, j]:
                        lead = rows[i] - rows[j] - batch.margin_BSS[b, i, j]
                        terms.append(jnp.log1p(jnp.exp(-lead)) + 0.1 * (rows[i] + rows[j]) ** 2)
            if terms:
                prompts.append(sum(terms) / len(terms))
        assert len(prompts) == 6
        return sum(prompts) / len(prompts)

    expected, gradient = jax.value_and_grad(loss)(params)
    assert whole[1]["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert_close(whole[0], gradient)


def assert_close(tree, wanted):
    """To 1e-5 of each array's largest entry."""

    def leaf(path, x, y):
        error, size = np.abs(x - y).max(), np.abs(y).max()
        assert size > 0 and error <= 1e-5 * size, (jax.tree_util.keystr(path), error / size)

    jax.tree_util.tree_map_with_path(leaf, tree, wanted)


def test_the_cut_changes_nothing(params, batch, whole):
    gradient, numbers = gradient_of(params, batch, micro_rows=2)
    assert_close(gradient, whole[0])
    assert numbers == pytest.approx(whole[1], rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)])
def test_eight_devices_equal_one(params, batch, whole, shape):
    mesh = make_mesh(MeshConfig(**dict(zip(("data", "fsdp", "tensor"), shape, strict=True))))
    with jax.set_mesh(mesh):
        gradient, numbers = gradient_of(params, batch, micro_rows=8, mesh=mesh)
    assert_close(gradient, whole[0])
    assert numbers == pytest.approx(whole[1], rel=1e-5)


def test_scores_in_pieces(params, batch):
    score_BS = make_reward_score(MODEL, micro_rows=2)(params, batch.tokens_BST, batch.attend_BST)
    flat = [jnp.asarray(x).reshape(B * S, T) for x in (batch.tokens_BST, batch.attend_BST)]
    expected = forward_scores(MODEL, params, *flat).reshape(B, S)
    np.testing.assert_allclose(score_BS, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_of_ties_is_no_step_and_bad_numbers_are_blamed(params, batch):
    tx = optax.adam(0.1)
    update = make_reward_update(MODEL, tx)
    tied = replace(batch, rank_BS=np.zeros((B, S), np.float32))
    state, metrics = update(init_state(params, tx), OBJECTIVE, tied)
    assert state.updates == 0 and not metrics["skipped"]
    broken = {**params, "head": {**params["head"], "b": jnp.float32(np.nan)}}
    state, metrics = update(init_state(broken, tx), OBJECTIVE, batch)
    assert state.updates == 0 and bad_rows([metrics]) == {0: list(range(B))}
    jax.tree.map(np.testing.assert_array_equal, state.policy, broken)
