"""Updates of preference losses: any cut and mesh, reference given or scored, statistics of all."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tiny import random_params

from rlhf_jax.algorithms.aot import aot
from rlhf_jax.algorithms.bco import bco
from rlhf_jax.algorithms.dpo import dpo, rpo
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.metrics import bad_rows, update_numbers
from rlhf_jax.train.preference import (
    make_completion_score,
    make_preference_update,
    make_unpaired_update,
)
from rlhf_jax.train.state import init_state
from rlhf_jax.types import PreferenceBatch, UnpairedBatch, replace

B, T, V = 16, 9, 32
MODEL = Model(
    DecoderConfig(
        vocab_size=V, num_layers=1, d_model=16, num_heads=8, num_kv_heads=8, head_dim=2, d_ff=16
    )
)
# The step is the gradient; the momentum keeps it unrounded by its subtraction from a parameter.
SGD = optax.sgd(1.0, momentum=0.9)


def completions(draw, *shape):
    """tokens, attend, mask: prompts of 2 or 3 tokens, completions of 1 to T − 3."""
    prompt = draw.integers(2, 4, shape[:1]).reshape(-1, *[1] * (len(shape) - 1))
    length = draw.integers(1, T - 3 + 1, shape)
    column_T, end = np.arange(T), prompt + length
    attend = column_T < end[..., None]
    tokens = draw.integers(0, V, (*shape, T))
    return tokens, attend, attend & (column_T >= prompt[..., None])


@pytest.fixture(scope="module")
def weights():
    return random_params(MODEL, 0), random_params(MODEL, 1)  # policy, reference


@pytest.fixture(scope="module")
def pairs():
    tokens, attend, mask = completions(np.random.default_rng(0), B, 2)
    weight_B = np.linspace(0.2, 2.0, B).astype(np.float32)
    weight_B[3] = 0
    arrays = dict(tokens_BST=tokens, attend_BST=attend, mask_BST=mask, weight_B=weight_B)
    return PreferenceBatch(**jax.tree.map(jnp.asarray, arrays))


@pytest.fixture(scope="module")
def singles():
    draw = np.random.default_rng(1)
    own, other = completions(draw, B), completions(draw, B)
    names = [f"{name}_BT" for name in ("tokens", "attend", "mask")]
    others = [f"{name}_other_BT" for name in ("tokens", "attend", "mask")]
    arrays = dict(zip([*names, *others], [*own, *other], strict=True))
    arrays["desirable_B"] = draw.random(B) < 0.4
    return UnpairedBatch(**jax.tree.map(jnp.asarray, arrays))


def state_of(weights, mesh=None, *, reference=True):
    policy, frozen = weights if mesh is None else shard(mesh, weights)
    state = init_state(policy, SGD, with_reference=reference, mesh=mesh)
    return replace(state, reference=jax.tree.map(jnp.copy, frozen)) if reference else state


def plain(params, tokens_BT, attend_BT, mask_BT):
    """Σ log π of the counted tokens, from the logits of a whole forward pass."""
    logits_BTV = MODEL.logits(params, MODEL.hidden(params, tokens_BT, attend_BT))
    logp_BTV = np.asarray(jax.nn.log_softmax(logits_BTV[:, :-1]), np.float64)
    logp_BT = np.take_along_axis(logp_BTV, np.asarray(tokens_BT)[:, 1:, None], axis=2)[..., 0]
    return np.where(np.asarray(mask_BT)[:, 1:], logp_BT, 0).sum(axis=1)


def assert_same_step(state, expected):
    """The gradients (the momentum of the first step), relative to each array's largest entry."""
    for a, b in zip(
        jax.tree.leaves((state.opt_state, state.policy)),
        jax.tree.leaves((expected.opt_state, expected.policy)),
        strict=True,
    ):
        scale = float(jnp.abs(b).max())
        assert scale > 1e-6, "there is no gradient to compare"
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * scale)


def assert_same_numbers(a, b):
    a, b = update_numbers([a]), update_numbers([b])
    assert a.keys() == b.keys() and {"loss", "grad_norm"} <= a.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=2e-5, atol=1e-6, err_msg=name)


PAIRED = {"rpo": rpo(), "bco": bco(), "aot": aot()}


@pytest.fixture(scope="module")
def one_device(pairs, singles, weights):
    """Each objective's step on the whole batch at once, on one device."""
    update, steps = make_preference_update(MODEL, SGD), {}
    for name, objective in PAIRED.items():
        batch = replace(pairs, weight_B=None) if name == "aot" else pairs
        steps[name] = (batch, *update(state_of(weights), objective, batch))
    steps["kto"] = (singles, *make_unpaired_update(MODEL, SGD)(state_of(weights), kto(), singles))
    return steps


def updater(name, **options):
    """(state, batch) -> (state, metrics) of an objective by its name above."""
    if name == "kto":
        update = make_unpaired_update(MODEL, SGD, **options)
        return lambda state, batch: update(state, kto(), batch)
    update = make_preference_update(MODEL, SGD, **options)
    return lambda state, batch: update(state, PAIRED[name], batch)


def test_the_sum_of_the_counted_tokens_of_each_side(pairs, weights):
    score = make_completion_score(MODEL, micro_rows=4)
    got_BS = score(weights[0], pairs.tokens_BST, pairs.attend_BST, pairs.mask_BST)
    for side in (0, 1):
        arrays = (x[:, side] for x in (pairs.tokens_BST, pairs.attend_BST, pairs.mask_BST))
        np.testing.assert_allclose(got_BS[:, side], plain(weights[0], *arrays), rtol=1e-5)


@pytest.mark.parametrize("name", [*PAIRED, "kto"])
def test_micro_batches_equal_the_whole(name, weights, one_device):
    """A cut parts no pair, and no statistic is a micro-batch's own: sorted, mean or mismatched."""
    batch, expected, whole = one_device[name]
    state, metrics = updater(name, micro_rows=2)(state_of(weights), batch)
    assert_same_step(state, expected)
    assert_same_numbers(metrics, whole)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("rpo", (8, 1, 1)), ("rpo", (2, 2, 2)), ("bco", (1, 4, 2)), ("kto", (2, 4, 1))],
    ids=str,
)
def test_meshes_equal_one_device(name, shape, weights, one_device):
    batch, expected, whole = one_device[name]
    mesh = make_mesh(MeshConfig(data=shape[0], fsdp=shape[1], tensor=shape[2]))
    state = state_of(weights, mesh)
    placed = jax.tree.map(lambda x: x.sharding, state)
    with jax.set_mesh(mesh):
        state, metrics = updater(name, micro_rows=8, mesh=mesh)(state, shard_rows(mesh, batch))
    assert_same_step(state, expected)
    assert_same_numbers(metrics, whole)
    for x, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(placed), strict=True):
        assert x.sharding == sharding


def test_trl_2431_the_first_loss_is_that_of_equals_with_and_without_precompute(pairs, weights):
    policy = weights[0]
    update = make_preference_update(MODEL, SGD)
    score = make_completion_score(MODEL)
    given = score(policy, pairs.tokens_BST, pairs.attend_BST, pairs.mask_BST)
    scored, a = update(state_of((policy, policy)), dpo(), pairs)
    brought, b = update(
        state_of(weights, reference=False), dpo(), replace(pairs, logp_ref_BS=given)
    )
    for metrics in (a, b):
        numbers = update_numbers([metrics])
        assert numbers["loss"] == pytest.approx(np.log(2), abs=1e-6)
        assert numbers["margin"] == pytest.approx(0, abs=1e-6)
    assert_same_step(brought, replace(scored, reference=None))
    # after a step the policy has moved and the reference has not
    _, second = update(scored, dpo(), pairs)
    assert update_numbers([second])["loss"] < np.log(2)


def test_what_the_batch_brings_is_not_asked_of_the_state(pairs, weights):
    """Log-probs of the reference by hand: the loss of the formula, not of `state.reference`."""
    sides = (pairs.tokens_BST, pairs.attend_BST, pairs.mask_BST)
    logp_BS = make_completion_score(MODEL)(weights[0], *sides)
    given = logp_BS - jnp.asarray([3.0, 1.0])[None]
    update = make_preference_update(MODEL, SGD)
    _, metrics = update(state_of(weights), dpo(beta=0.5), replace(pairs, logp_ref_BS=given))
    assert update_numbers([metrics])["loss"] == pytest.approx(np.log1p(np.exp(-1)), rel=1e-5)


def test_ktos_kl_is_of_all_mismatched_pairs_of_the_batch(singles, weights, one_device):
    other = (singles.tokens_other_BT, singles.attend_other_BT, singles.mask_other_BT)
    ratio_B = plain(weights[0], *other) - plain(weights[1], *other)
    _, _, whole = one_device["kto"]
    assert update_numbers([whole])["statistic"] == pytest.approx(max(0, ratio_B.mean()), rel=1e-4)
    # the mean over rows that a micro-batch would have seen alone, each clamped, is another number
    assert np.maximum(ratio_B.reshape(-1, 2).mean(axis=1), 0).mean() > 1.1 * max(0, ratio_B.mean())


def test_a_loss_without_a_reference_holds_none(pairs, weights):
    update = make_preference_update(MODEL, SGD)
    state, metrics = update(state_of(weights, reference=False), simpo(), pairs)
    assert state.reference is None and update_numbers([metrics])["grad_norm"] > 0
    with pytest.raises(ConfigError, match="reads log-probs of a reference: give them"):
        update(state_of(weights, reference=False), dpo(), pairs)


def test_kto_without_its_mismatched_pairs(singles, weights):
    alone = replace(singles, tokens_other_BT=None, attend_other_BT=None, mask_other_BT=None)
    with pytest.raises(ConfigError, match="reads mismatched pairs; the batch has none"):
        updater("kto")(state_of(weights), alone)


def test_sides_that_are_the_same_teach_nothing(pairs, weights):
    arrays = {name: getattr(pairs, name) for name in ("tokens_BST", "attend_BST", "mask_BST")}
    twins = replace(pairs, **{k: jnp.repeat(x[:, :1], 2, axis=1) for k, x in arrays.items()})
    _, metrics = make_preference_update(MODEL, SGD)(state_of(weights), dpo(), twins)
    numbers = update_numbers([metrics])
    assert numbers["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert numbers["grad_norm"] < 1e-6


def test_the_state_is_donated_and_numbers_compile_nothing_anew(pairs, weights):
    update = make_preference_update(MODEL, SGD)
    state = state_of(weights)
    first = jax.tree.leaves(state.policy)[0]
    state, _ = update(state, dpo(), pairs)
    assert first.is_deleted() and int(state.updates) == 1
    update(state, dpo(beta=0.7), pairs)
    assert update._cache_size() == 1


def test_a_pair_that_is_not_finite_skips_the_update_and_is_named(pairs, weights):
    update = make_preference_update(MODEL, SGD)
    given = jnp.zeros((B, 2))
    broken = replace(pairs, logp_ref_BS=given.at[5, 1].set(jnp.nan).at[3, 0].set(jnp.inf))
    state, metrics = update(state_of(weights), dpo(), broken)
    assert bool(metrics["skipped"])
    assert bad_rows([metrics]) == {0: [5]}  # pair 3 has weight 0
    assert int(state.updates) == 0
    for x, y in zip(jax.tree.leaves(state.policy), jax.tree.leaves(weights[0]), strict=True):
        np.testing.assert_array_equal(x, y)
    fine = replace(broken, logp_ref_BS=broken.logp_ref_BS.at[5, 1].set(0.0))
    state, metrics = update(state, dpo(), fine)
    assert not metrics["skipped"] and int(state.updates) == 1


def test_no_pair_with_a_weight_is_no_step(pairs, weights):
    update = make_preference_update(MODEL, SGD)
    state, _ = update(state_of(weights), dpo(), pairs)
    before = jax.device_get(state.policy)
    state, metrics = update(state, dpo(), replace(pairs, weight_B=jnp.zeros(B)))
    for x, y in zip(jax.tree.leaves(state.policy), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(x, y)  # momentum alone would have moved it
    assert int(state.updates) == 1 and not metrics["skipped"]


def test_memory_does_not_hold_every_logit():
    # 32 pairs · 2 sides · 128 positions · 2^17 columns are 4.3 GB of float32 logits
    vocab, columns, rows = 2**17, 129, 32
    model = Model(
        DecoderConfig(
            vocab_size=vocab, num_layers=1, d_model=8, num_heads=1, num_kv_heads=1, head_dim=2,
            d_ff=8,
        )
    )  # fmt: skip
    state = jax.eval_shape(
        lambda: init_state(model.init(jax.random.key(0)), SGD, with_reference=True)
    )
    shape = (rows, 2, columns)
    batch = PreferenceBatch(
        tokens_BST=jax.ShapeDtypeStruct(shape, jnp.int32),
        attend_BST=jax.ShapeDtypeStruct(shape, jnp.bool_),
        mask_BST=jax.ShapeDtypeStruct(shape, jnp.bool_),
    )
    compiled = make_preference_update(model, SGD).lower(state, dpo(), batch).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4 * rows * 2 * 128 * vocab / 3
