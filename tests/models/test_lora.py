"""Adapters beside a frozen decoder: what they compute, what their gradient is, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.lora import (
    MATRICES,
    LoraConfig,
    LowRank,
    adapter_shapes,
    attach,
    init_adapters,
    merged,
)
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.types import replace

CONFIG = DecoderConfig(
    vocab_size=19, num_layers=2, d_model=12, num_heads=4, num_kv_heads=2, head_dim=4, d_ff=20
)
MODEL = Model(CONFIG)
LORA = LoraConfig(rank=3, alpha=6.0)
TOKENS_BT = np.random.default_rng(0).integers(0, 19, (3, 7)).astype(np.int32)
ATTEND_BT = np.ones((3, 7), bool)


def random_adapters(cfg=LORA, params=None, seed=1, scale=0.3):
    draw = np.random.default_rng(seed)
    shapes = adapter_shapes(cfg, MODEL.abstract() if params is None else params)
    return jax.tree.map(lambda s: jnp.asarray(scale * draw.normal(size=s.shape), s.dtype), shapes)


@pytest.fixture(scope="module")
def base():
    return random_params(MODEL, 0)


@jax.jit
def logits(params):
    return MODEL.logits(params, MODEL.hidden(params, TOKENS_BT, ATTEND_BT))


def test_new_adapters_change_nothing_to_the_bit(base):
    adapters = init_adapters(jax.random.key(0), adapter_shapes(LORA, base))
    a_NDU = adapters["layers"]["mlp"]["gate_NDF"]["a_NDU"]
    bound = 1 / np.sqrt(12)  # 1/√inputs: Kaiming uniform with a = √5 is √(6/(1 + 5)) = 1 of it
    assert 0.9 * bound < np.abs(a_NDU).max() <= bound and abs(float(a_NDU.mean())) < 0.1
    assert len(jax.tree.leaves(adapters)) == 2 * len(MATRICES)
    np.testing.assert_array_equal(logits(attach(base, adapters, LORA.scale)), logits(base))
    np.testing.assert_array_equal(a_NDU == 0, False)


@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_can_be_adapted_and_merged(base, name):
    cfg = replace(LORA, targets=(name,))
    params = attach(base, random_adapters(cfg), cfg.scale)
    adapted = [x for x in jax.tree.leaves(params, is_leaf=is_low) if is_low(x)]
    assert len(adapted) == 1
    got, plain = logits(params), merged(params)
    assert np.abs(got - logits(base)).max() > 1e-2
    np.testing.assert_allclose(got, logits(plain), atol=2e-5)
    # the merged weight, from its definition
    path, into, out = MATRICES[name]
    _, group, leaf = path.split("/")
    pair = random_adapters(cfg)["layers"][group][leaf]
    a, b = pair[f"a_N{into}U"], pair[f"b_NU{out}"]
    change = np.einsum(f"n{into}u,nu{out}->n{into}{out}", a, b) * 2  # α/r = 6/3
    want = base["layers"][group][leaf] + change
    np.testing.assert_allclose(plain["layers"][group][leaf], want, atol=1e-6)


def is_low(x):
    return isinstance(x, LowRank)


def test_gradients_are_those_of_the_dense_weight_by_the_chain_rule(base):
    """dA = s·dW·Bᵀ and dB = s·Aᵀ·dW, with dW the gradient at the merged weight."""
    adapters = random_adapters()
    draw = jnp.asarray(np.random.default_rng(2).normal(size=(3, 7, 19)), jnp.float32)

    def loss(params):
        return (logits(params) * draw).sum()

    dense = jax.jit(jax.grad(loss))(merged(attach(base, adapters, LORA.scale)))
    grads = jax.jit(jax.grad(lambda x: loss(attach(base, x, LORA.scale))))(adapters)
    for name, (path, into, out) in MATRICES.items():
        _, group, leaf = path.split("/")
        dw, pair = dense["layers"][group][leaf], adapters["layers"][group][leaf]
        a, b = pair[f"a_N{into}U"], pair[f"b_NU{out}"]
        want_a = 2 * np.einsum(f"n{into}{out},nu{out}->n{into}u", dw, b)
        want_b = 2 * np.einsum(f"n{into}{out},n{into}u->nu{out}", dw, a)
        got = grads["layers"][group][leaf]
        for x, want in ((got[f"a_N{into}U"], want_a), (got[f"b_NU{out}"], want_b)):
            np.testing.assert_allclose(x, want, atol=2e-5 * np.abs(want).max(), err_msg=name)


def test_no_gradient_of_a_whole_weight_is_computed():
    """A third of the work of a full backward pass is the weights' gradient: it is not done."""
    model = Model(replace(CONFIG, d_model=64, d_ff=256))
    base = model.abstract()
    adapters = adapter_shapes(replace(LORA, rank=1), base)

    def flops(fn, *args):
        return jax.jit(jax.grad(fn)).lower(*args).compile().cost_analysis()["flops"]

    def loss(params):
        return model.hidden(params, TOKENS_BT, ATTEND_BT).sum()

    whole = flops(loss, base)
    low = flops(lambda x, base: loss(attach(base, x, 1.0)), adapters, base)
    assert low < 0.75 * whole


@pytest.mark.parametrize("unroll", [True, False])
def test_what_is_sampled_is_scored_alike(base, unroll):
    """The sampler decodes with merged weights; its log-probs are those of the attached ones."""
    model = replace(MODEL, unroll_decode=unroll)
    params = attach(base, random_adapters(), LORA.scale)
    sampling = SamplingConfig(num_samples=2, max_prompt_tokens=4, max_new_tokens=3)
    sample = make_sampler(model, sampling, end_ids=(0,), pad_id=0)
    rollout = sample(params, TOKENS_BT[:, :4], ATTEND_BT[:, :4], np.arange(3), jax.random.key(0))
    hidden = model.hidden(params, rollout.tokens_BT, rollout.attend_BT)
    logp_BTV = jax.nn.log_softmax(model.logits(params, hidden))
    logp_BT = np.take_along_axis(
        np.asarray(logp_BTV)[:, :-1], np.asarray(rollout.tokens_BT)[:, 1:, None], axis=2
    )[:, :, 0]
    mask = np.asarray(rollout.mask_BT)[:, 1:]
    np.testing.assert_allclose(
        np.asarray(rollout.logp_sampler_BT)[:, 1:][mask], logp_BT[mask], atol=2e-5
    )


def test_scales():
    assert LoraConfig(rank=16, alpha=32.0).scale == 2.0
    assert LoraConfig(rank=16, alpha=32.0, rslora=True).scale == 8.0  # 32/√16


def test_what_has_no_gate_is_adapted_without_one():
    model = Model(replace(CONFIG, gated=False))
    tree = adapter_shapes(LORA, model.abstract())
    assert set(tree["layers"]["mlp"]) == {"up_NDF", "down_NFD"}
    with pytest.raises(ConfigError, match="no matrix gate"):
        adapter_shapes(replace(LORA, targets=("gate",)), model.abstract())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(rank=0), "lora.rank"),
        (dict(alpha=0.0), "lora.alpha"),
        (dict(alpha=float("nan")), "lora.alpha"),
        (dict(targets=()), "one at least"),
        (dict(targets=("q", "q")), "once"),
        (dict(targets=("q_proj",)), "q_proj"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        LoraConfig(**options)


def test_a_rank_that_is_no_reduction_is_refused():
    with pytest.raises(ConfigError, match=r"lora.rank=9 is above 8, the full rank of k"):
        adapter_shapes(LoraConfig(rank=9), MODEL.abstract())
