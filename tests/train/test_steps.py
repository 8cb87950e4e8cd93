"""The update: the cut and the mesh change nothing; donation; a non-finite step; memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import random_params

from rlhf_jax.advantages import gae
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.losses.aggregate import (
    constant_length,
    sequence_mean,
    sequence_sum,
    token_mean,
    weighted_sum,
)
from rlhf_jax.losses.kl import KL, k3
from rlhf_jax.losses.surrogate import clipped
from rlhf_jax.losses.value import ValueTerm, clipped_squared
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.ops.totals import total
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.metrics import bad_rows, update_numbers
from rlhf_jax.train.microbatch import summed_gradients
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.state import init_state
from rlhf_jax.train.steps import make_sft_update, make_update
from rlhf_jax.types import PolicyBatch, SFTBatch, replace

B, T, PROMPT = 16, 10, 3
POLICY = Model(
    DecoderConfig(
        vocab_size=64,
        num_layers=2,
        d_model=32,
        num_heads=8,
        num_kv_heads=4,
        head_dim=4,
        d_ff=32,
        tie_embeddings=False,
    )
)
CRITIC = Model(
    DecoderConfig(
        vocab_size=64, num_layers=1, d_model=16, num_heads=8, num_kv_heads=8, head_dim=2, d_ff=16
    )
)
OBJECTIVE = PolicyObjective(
    advantage=bind(gae, gamma=1.0, lam=0.95),
    surrogate=bind(clipped, low=0.2, high=0.3),
    aggregate=bind(token_mean),
    loss_kl=KL(estimator=bind(k3), coef=0.1),
    entropy=0.01,
    value=ValueTerm(loss=bind(clipped_squared, clip=0.5), coef=0.5),
)


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(0)
    length_B = draw.integers(1, T - PROMPT + 1, B)
    length_B[3] = 0  # a row that counts no token
    column_T = np.arange(T)
    mask_BT = (column_T >= PROMPT) & (column_T < PROMPT + length_B[:, None])
    logp_BT = -4.0 + 0.3 * draw.normal(size=(B, T))
    return PolicyBatch(
        tokens_BT=jnp.asarray(draw.integers(0, 64, (B, T))),
        attend_BT=jnp.asarray(mask_BT | (column_T < PROMPT)),
        mask_BT=jnp.asarray(mask_BT),
        group_B=jnp.asarray(np.arange(B) // 4),
        advantage_BT=jnp.asarray(draw.normal(size=(B, T)), jnp.float32),
        logp_old_BT=jnp.asarray(logp_BT, jnp.float32),
        logp_ref_BT=jnp.asarray(logp_BT + 0.2 * draw.normal(size=(B, T)), jnp.float32),
        value_old_BT=jnp.asarray(draw.normal(size=(B, T)), jnp.float32),
        return_BT=jnp.asarray(draw.normal(size=(B, T)), jnp.float32),
    )


@pytest.fixture(scope="module")
def weights():
    # a head of zeros would send no gradient to its trunk
    head = {"w_D": jnp.linspace(-1.0, 1.0, 16), "b": jnp.float32(0.1)}
    return random_params(POLICY, 0), {"trunk": random_params(CRITIC, 1), "head": head}


# The step is the gradient (Adam would hide an error of scale), and the momentum, which starts at
# 0, keeps that gradient unrounded by its subtraction from a parameter.
SGD = optax.sgd(1.0, momentum=0.9)


def state_of(weights, mesh=None):
    policy, critic = weights if mesh is None else shard(mesh, weights)
    return init_state(policy, SGD, critic=critic, critic_tx=SGD, mesh=mesh)


def updater(micro_rows, mesh=None):
    return make_update(
        POLICY,
        SGD,
        temperature=0.7,
        micro_rows=micro_rows,
        critic_model=CRITIC,
        critic_tx=SGD,
        mesh=mesh,
    )


@pytest.fixture(scope="module")
def one_device(batch, weights):
    """The update of the whole batch at once on one device: what every cut and mesh must equal."""
    update = updater(None)
    state, metrics = update(state_of(weights), OBJECTIVE, batch)
    return update, state, metrics


def assert_same_step(state, expected):
    """Gradients agree relative to each array's largest entry, parameters after the step too."""
    got, want = (jax.tree_util.tree_leaves_with_path(gradients(s)) for s in (state, expected))
    for (path, a), (_, b) in zip(got, want, strict=True):
        scale = float(jnp.abs(b).max())
        assert scale > 1e-6, f"{path} has no gradient to compare"
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale, err_msg=str(path))
    for a, b in zip(
        jax.tree.leaves(learned(state)), jax.tree.leaves(learned(expected)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.abs(b).max()))


def gradients(state):
    return state.opt_state[0].trace, state.critic.opt_state[0].trace


def learned(state):
    return state.policy, state.critic.params


def test_micro_batches_equal_the_whole(batch, weights, one_device):
    _, expected, whole = one_device
    state, metrics = updater(4)(state_of(weights), OBJECTIVE, batch)
    assert_same_step(state, expected)
    a, b = update_numbers([metrics]), update_numbers([whole])
    assert a.keys() == b.keys()
    assert {"loss", "policy_loss", "kl_loss", "value_loss", "entropy", "grad_norm"} <= a.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 4, 1), (2, 2, 2), (1, 2, 4), (1, 1, 8)], ids=str)
def test_meshes_equal_one_device(shape, batch, weights, one_device):
    _, expected, whole = one_device
    mesh = make_mesh(MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2]))
    state = state_of(weights, mesh)
    placed = jax.tree.map(lambda x: x.sharding, state)
    update = updater(8, mesh)
    state, metrics = update(state, OBJECTIVE, shard_rows(mesh, batch))
    assert_same_step(state, expected)
    a, b = update_numbers([metrics]), update_numbers([whole])
    for name in ("loss", "grad_norm", "critic_grad_norm", "kl_k1", "entropy"):
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, err_msg=name)
    for x, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(placed), strict=True):
        assert x.sharding == sharding
    if shape == (1, 1, 8):
        k = state.policy["layers"]["attn"]["k_NDJK"]
        assert k.sharding.is_fully_replicated  # 4 key/value heads on 8 tensor devices
    update(state, OBJECTIVE, shard_rows(mesh, batch))
    assert update._cache_size() == 1  # the new state lies where the old one lay


def test_state_is_donated_and_the_numbers_are_traced(batch, weights, one_device):
    update, _, _ = one_device
    before = update._cache_size()
    state = state_of(weights)
    first = jax.tree.leaves(state.policy)[0]
    state, a = update(state, OBJECTIVE, batch)
    assert first.is_deleted()
    assert int(state.updates) == 1
    state, b = update(state, replace(OBJECTIVE, entropy=0.5), batch)
    assert int(state.updates) == 2
    assert float(a["loss"].value()) != float(b["loss"].value())
    assert update._cache_size() == before


@pytest.mark.parametrize(
    "field, value", [("advantage_BT", np.nan), ("return_BT", np.inf), ("logp_old_BT", np.nan)]
)
def test_a_row_that_is_not_finite_skips_the_update_and_is_named(
    field, value, batch, weights, one_device
):
    update, _, _ = one_device
    row = 5
    column = int(np.flatnonzero(batch.mask_BT[row])[0])
    broken = replace(batch, **{field: getattr(batch, field).at[row, column].set(value)})
    state, metrics = update(state_of(weights), OBJECTIVE, broken)
    assert bool(metrics["skipped"])
    assert bad_rows([metrics]) == {0: [row]}
    assert int(state.updates) == 0
    for x, y in zip(jax.tree.leaves(learned(state)), jax.tree.leaves(weights), strict=True):
        np.testing.assert_array_equal(x, y)


def test_junk_outside_the_mask_is_not_a_bad_row(batch, weights, one_device):
    update, expected, _ = one_device
    junk = {
        name: jnp.where(batch.mask_BT, getattr(batch, name), jnp.nan)
        for name in ("advantage_BT", "return_BT", "logp_old_BT", "logp_ref_BT", "value_old_BT")
    }
    state, metrics = update(state_of(weights), OBJECTIVE, replace(batch, **junk))
    assert bad_rows([metrics]) == {}
    for x, y in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(x, y)


def test_overflow_without_a_bad_row_is_skipped_too(batch, weights, one_device):
    update, _, _ = one_device
    huge = replace(batch, return_BT=jnp.full_like(batch.return_BT, 1e30))  # its square overflows
    state, metrics = update(state_of(weights), OBJECTIVE, huge)
    assert bad_rows([metrics]) == {0: []}
    np.testing.assert_array_equal(state.critic.params["head"]["w_D"], weights[1]["head"]["w_D"])


def test_a_value_term_without_a_critic(batch, weights):
    state = init_state(weights[0], SGD)
    with pytest.raises(ConfigError, match="the objective has a value term"):
        updater(None)(state, OBJECTIVE, batch)


@pytest.mark.parametrize("micro_rows", [3, 32, 0])
def test_a_cut_that_does_not_divide(micro_rows, batch, weights):
    with pytest.raises(ConfigError, match="rows of a batch=16 does not divide by micro_rows"):
        updater(micro_rows)(state_of(weights), OBJECTIVE, batch)


def test_micro_rows_fewer_than_the_row_shards(batch, weights):
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    with pytest.raises(ConfigError, match=r"micro_rows=4 does not divide by mesh data\*fsdp=8"):
        updater(4, mesh)(state_of(weights, mesh), OBJECTIVE, shard_rows(mesh, batch))


@pytest.mark.parametrize(
    "aggregate", [token_mean, sequence_mean, sequence_sum, bind(constant_length, length=7)]
)
@pytest.mark.parametrize("micro_rows", [1, 2, 8])
def test_any_cut_gives_the_same_gradient_under_any_aggregate(aggregate, micro_rows, batch):
    # Token logits as the parameters, one a token of the batch: the gradient is ∂loss/∂logp itself.
    weight_BT = aggregate(batch.mask_BT, batch.group_B)
    params = {"w": jnp.linspace(-1.0, 1.0, 64)}

    def loss_fn(params, part):
        batch, weight_BT = part
        logp_BT = jax.nn.log_softmax(params["w"])[batch.tokens_BT] * batch.advantage_BT
        metrics = {"logp": total(logp_BT, batch.mask_BT)}
        return weighted_sum(logp_BT, weight_BT), (metrics, jnp.zeros(len(logp_BT), bool))

    def run(micro_rows):
        return summed_gradients(loss_fn, params, (batch, weight_BT), micro_rows=micro_rows)

    (loss, grads, _, _), (loss_cut, grads_cut, _, _) = run(None), run(micro_rows)
    np.testing.assert_allclose(loss_cut, loss, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(grads_cut["w"], grads["w"], rtol=1e-5, atol=1e-6)
    assert float(jnp.abs(grads["w"]).max()) > 1e-3


def test_mean_of_the_batch_not_mean_of_means():
    # Token losses [1, 2, 3] and [10], one row a micro-batch: 4, not (2 + 10)/2 = 6 nor 12.
    loss_BT = jnp.array([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0]])
    mask_BT = jnp.array([[1, 1, 1], [1, 0, 0]], bool)
    weight_BT = token_mean(mask_BT, jnp.zeros(2, int))

    def loss_fn(params, part):
        loss_BT, weight_BT = part
        metrics = {"loss": total(loss_BT, weight_BT > 0)}
        return params * weighted_sum(loss_BT, weight_BT), (metrics, jnp.zeros(1, bool))

    loss, grad, metrics, _ = summed_gradients(
        loss_fn, jnp.float32(1.0), (loss_BT, weight_BT), micro_rows=1
    )
    assert (float(loss), float(grad)) == (4.0, 4.0)
    assert float(metrics["loss"].value()) == 4.0


def temporary_bytes(rows, columns, vocab, micro_rows=None):
    """Peak scratch memory of the compiled update; nothing is run."""
    model = Model(
        DecoderConfig(
            vocab_size=vocab, num_layers=1, d_model=8, num_heads=1, num_kv_heads=1, head_dim=2,
            d_ff=8,
        )
    )  # fmt: skip
    objective = replace(OBJECTIVE, advantage=bind(plain_advantage), loss_kl=None, value=None)
    tx = make_optimizer(OptimConfig(), 10)
    state = jax.eval_shape(lambda: init_state(model.init(jax.random.key(0)), tx))
    shape = lambda *dims, dtype=jnp.float32: jax.ShapeDtypeStruct(dims, dtype)  # noqa: E731
    batch = PolicyBatch(
        tokens_BT=shape(rows, columns, dtype=jnp.int32),
        attend_BT=shape(rows, columns, dtype=jnp.bool_),
        mask_BT=shape(rows, columns, dtype=jnp.bool_),
        group_B=shape(rows, dtype=jnp.int32),
        advantage_BT=shape(rows, columns),
        logp_old_BT=shape(rows, columns),
    )
    update = make_update(model, tx, temperature=1.0, micro_rows=micro_rows)
    compiled = update.lower(state, objective, batch).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def plain_advantage(scored, reward_BT):
    return reward_BT


def test_memory_does_not_hold_every_logit():
    # 64 rows · 129 positions · 2^17 columns are 4.3 GB of float32 logits; twice the positions,
    # 8.6 GB. The update keeps a chunk of 2^26 (0.27 GB) and a few copies of it.
    short = temporary_bytes(64, 129, 2**17)
    long = temporary_bytes(64, 257, 2**17)
    logits = 4 * 64 * 128 * 2**17
    assert short < logits / 3
    assert long - short < 0.02 * logits


def test_sft_learns_the_counted_tokens(weights):
    draw = np.random.default_rng(1)
    tokens_BT = jnp.asarray(draw.integers(0, 64, (4, 8)))
    mask_BT = jnp.asarray(np.arange(8) >= np.array([2, 3, 4, 8])[:, None])
    batch = SFTBatch(tokens_BT=tokens_BT, attend_BT=jnp.ones((4, 8), bool), mask_BT=mask_BT)
    tx = make_optimizer(OptimConfig(learning_rate=1e-2), 10)
    policy = weights[0]
    logits_BTV = POLICY.logits(policy, POLICY.hidden(policy, tokens_BT, batch.attend_BT))
    logp_BTV = np.asarray(jax.nn.log_softmax(logits_BTV))
    expected = -np.mean(
        [logp_BTV[b, t - 1, tokens_BT[b, t]] for b in range(4) for t in range(8) if mask_BT[b, t]]
    )
    update = make_sft_update(POLICY, tx, micro_rows=2)
    state, losses = init_state(policy, tx), []
    for _ in range(10):
        state, metrics = update(state, batch)
        losses.append(update_numbers([metrics])["loss"])
    np.testing.assert_allclose(losses[0], expected, rtol=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    assert int(state.updates) == 10


def test_a_batch_that_counts_no_token_is_no_step(batch, weights, one_device):
    update, _, _ = one_device
    state, _ = update(state_of(weights), OBJECTIVE, batch)
    before = jax.device_get(learned(state))
    nothing = replace(batch, mask_BT=jnp.zeros_like(batch.mask_BT))
    # the momentum alone would move policy and critic
    state, metrics = update(state, OBJECTIVE, nothing)
    for x, y in zip(jax.tree.leaves(learned(state)), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(x, y)
    assert int(state.updates) == 1 and not metrics["skipped"]
