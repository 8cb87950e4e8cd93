"""The decoder: against a float64 loop, padded anyhow, causal by gradient, cached or not."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.cache import empty_own, grow_own
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.rope import Rope
from rlhf_jax.models.transformer import Model
from rlhf_jax.types import replace

SIZES = {
    "vocab_size": 23, "num_layers": 2, "d_model": 16, "num_heads": 4, "num_kv_heads": 2,
    "head_dim": 4, "d_ff": 24, "max_positions": 64,
}  # fmt: skip


@cache
def make(sharpen=2.0, model=None, **sizes):
    """A tiny model and parameters large enough that attention is far from uniform."""
    model = model or Model(DecoderConfig(**{**SIZES, **sizes}))
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(0)))
    return model, jax.tree.map(lambda x: x * np.float32(sharpen if x.std() > 0 else 1.3), params)


@pytest.fixture(scope="module")
def untied():
    return make(tie_embeddings=False)


def hidden_of(model, params, tokens, attend):
    run = jax.jit(model.hidden)
    return np.asarray(run(params, np.array(tokens), np.array(attend, bool)), np.float32)


def reference_hidden(params, config, tokens_T):
    """One unpadded sequence, position by position and head by head, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    layers, k, group = p["layers"], config.head_dim, config.num_heads // config.num_kv_heads

    def norm(x_D, scale_D):
        return x_D / np.sqrt(np.mean(x_D**2) + config.norm_eps) * scale_D

    def turn(x_K, position):
        out = np.empty(k)
        for i in range(k // 2):
            angle = position * config.rope.theta ** (-2 * i / k)
            a, b = x_K[i], x_K[i + k // 2]
            out[i] = a * np.cos(angle) - b * np.sin(angle)
            out[i + k // 2] = b * np.cos(angle) + a * np.sin(angle)
        return out

    stream = [p["embed"]["w_VD"][token] for token in tokens_T]
    for n in range(config.num_layers):
        attn, mlp = layers["attn"], layers["mlp"]
        normed = [norm(x, layers["norm_attn"]["scale_ND"][n]) for x in stream]
        for t in range(len(tokens_T)):
            for h in range(config.num_heads):
                j = h // group
                query = turn(normed[t] @ attn["q_NDHK"][n, :, h], t)
                score = [
                    query @ turn(normed[s] @ attn["k_NDJK"][n, :, j], s) / np.sqrt(k)
                    for s in range(t + 1)
                ]
                weight = np.exp(score) / np.exp(score).sum()
                mixed = sum(w * (normed[s] @ attn["v_NDJK"][n, :, j]) for s, w in enumerate(weight))
                stream[t] = stream[t] + mixed @ attn["o_NHKD"][n, h]
        for t, x in enumerate(stream):
            y = norm(x, layers["norm_mlp"]["scale_ND"][n])
            gate = y @ mlp["gate_NDF"][n]
            gate = gate / (1 + np.exp(-gate))
            stream[t] = x + (gate * (y @ mlp["up_NDF"][n])) @ mlp["down_NFD"][n]
    return np.stack([norm(x, p["norm_out"]["scale_D"]) for x in stream])


def test_equals_the_scalar_loop(untied):
    model, params = untied
    tokens_T = [3, 1, 4, 1, 5, 9, 2]
    hidden_TD = reference_hidden(params, model.config, tokens_T)
    got_TD = hidden_of(model, params, [tokens_T], [[1] * 7])[0]
    np.testing.assert_allclose(got_TD, hidden_TD, atol=2e-5)
    logits_TV = hidden_TD @ np.asarray(params["head"]["w_DV"], np.float64)
    np.testing.assert_allclose(model.logits(params, got_TD), logits_TV, atol=1e-4)


def test_padding_anywhere_changes_nothing(untied):
    model, params = untied
    plain = hidden_of(model, params, [[7, 8, 9]], [[1, 1, 1]])[0]
    tokens = [[0, 0, 7, 8, 9], [7, 8, 9, 0, 0], [0, 7, 0, 8, 9]]
    attend = [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0], [0, 1, 0, 1, 1]]
    padded = hidden_of(model, params, tokens, attend)
    for row, real in zip(padded, np.array(attend, bool), strict=True):
        np.testing.assert_allclose(row[real], plain, atol=1e-5)


def test_a_row_without_tokens_is_finite_with_its_gradient(untied):
    model, params = untied
    tokens, attend = jnp.zeros((1, 4), jnp.int32), jnp.zeros((1, 4), bool)
    loss = lambda p: jnp.square(model.hidden(p, tokens, attend) - 1.0).sum()  # noqa: E731
    value, gradient = jax.jit(jax.value_and_grad(loss))(params)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))


def test_causal_by_gradient(untied):
    """d hidden_t / d embedding of token s: zero for s > t and for padding, else not."""
    model, params = untied
    tokens, attend = jnp.array([[10, 11, 12, 13, 14]]), jnp.array([[False, True, True, True, True]])

    def hidden_TD(embed_VD):
        return model.hidden({**params, "embed": {"w_VD": embed_VD}}, tokens, attend)[0]

    jacobian_TDVD = jax.jit(jax.jacrev(hidden_TD))(params["embed"]["w_VD"])
    reach_TS = np.abs(jacobian_TDVD).sum((1, 3))[:, 10:15]
    may = np.tril(np.ones((5, 5), bool))
    may[1:, 0] = False  # nobody reads the padding
    assert (reach_TS[~may] == 0).all() and (reach_TS[may] > 0).all()


@pytest.mark.parametrize("tie", [True, False])
def test_tree_and_start(tie):
    config = DecoderConfig(**SIZES, tie_embeddings=tie, vocab_padded=32)
    model = Model(config)
    shapes = jax.tree.map(lambda x: x.shape, model.abstract())
    assert shapes == {
        "embed": {"w_VD": (32, 16)},
        "layers": {
            "norm_attn": {"scale_ND": (2, 16)},
            "attn": {
                "q_NDHK": (2, 16, 4, 4), "k_NDJK": (2, 16, 2, 4), "v_NDJK": (2, 16, 2, 4),
                "o_NHKD": (2, 4, 4, 16),
            },
            "norm_mlp": {"scale_ND": (2, 16)},
            "mlp": {"gate_NDF": (2, 16, 24), "up_NDF": (2, 16, 24), "down_NFD": (2, 24, 16)},
        },
        "norm_out": {"scale_D": (16,)},
    } | ({} if tie else {"head": {"w_DV": (16, 32)}})  # fmt: skip
    params = jax.tree.map(np.asarray, jax.jit(model.init)(jax.random.key(1)))
    assert jax.tree.map(lambda x: x.shape, params) == shapes
    assert {x.dtype for x in jax.tree.leaves(params)} == {np.dtype("float32")}
    layers = params["layers"]
    assert (layers["norm_attn"]["scale_ND"] == 1).all()
    np.testing.assert_allclose(layers["mlp"]["gate_NDF"].std(), 1 / 4, rtol=0.1)
    np.testing.assert_allclose(layers["mlp"]["down_NFD"].std(), 1 / 8, rtol=0.1)
    assert not np.allclose(layers["attn"]["q_NDHK"][0], layers["attn"]["q_NDHK"][1])
    assert model.head(params).shape == (16, 32)


def test_padded_vocabulary_has_no_probability():
    model, params = make(vocab_padded=32)
    logits_BV = model.logits(params, jnp.ones((1, 16)))
    assert np.isneginf(logits_BV[:, 23:]).all() and np.isfinite(logits_BV[:, :23]).all()


@pytest.mark.parametrize("call", ["hidden", "decode"])
def test_program_does_not_grow_with_depth(call):
    def size(depth):
        model = Model(DecoderConfig(**{**SIZES, "num_layers": depth}), unroll_decode=False)
        tokens, attend = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4), bool)

        def hidden(params):
            return model.hidden(params, tokens, attend)

        def decode(params):
            _, prompt = model.prefill(params, tokens, attend)
            return model.decode(
                model.prepare(params), tokens[:, :1], prompt, empty_own(prompt, 1, 2)
            )

        run = {"hidden": hidden, "decode": decode}[call]
        return jax.jit(run).lower(model.abstract()).as_text().count("\n")

    assert size(8) == size(2)


def test_remat_keeps_gradients_and_saves_memory():
    tokens = jnp.arange(64).reshape(2, 32) % 23
    attend = jnp.ones((2, 32), bool)
    kept, gradients = {}, {}
    for remat in ("none", "dots", "full"):
        model, params = make(model=Model(DecoderConfig(**{**SIZES, "num_layers": 6}), remat=remat))

        def loss(p, model=model):
            return jnp.square(model.hidden(p, tokens, attend)[:, -1]).sum()

        run = jax.jit(jax.grad(loss)).lower(params).compile()
        kept[remat], gradients[remat] = run.memory_analysis().temp_size_in_bytes, run(params)
    assert kept["full"] < kept["dots"] < kept["none"]
    for remat in ("dots", "full"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4),
            gradients[remat],
            gradients["none"],
        )


def test_bfloat16_compute_keeps_float32_parameters_and_logits():
    model, params = make(sharpen=1.5)
    half = replace(model, compute_dtype=jnp.bfloat16)
    tokens, attend = [[3, 1, 4, 1, 5, 9, 2, 6]], [[1] * 8]
    tokens, attend = jnp.array(tokens), jnp.array(attend, bool)

    def logits(model, params):
        hidden = model.hidden(params, tokens, attend)
        assert hidden.dtype == model.compute_dtype
        return model.logits(params, hidden)

    exact = jax.jit(logits, static_argnums=0)(model, params)
    rough = jax.jit(logits, static_argnums=0)(half, params)
    assert rough.dtype == jnp.float32
    gap = np.abs(rough - exact).max() / np.abs(exact).max()
    assert 0 < gap < 0.03  # some rounding, a few units of bfloat16's 2^-8
    gradient = jax.eval_shape(jax.grad(lambda p: logits(half, p).sum()), params)
    assert {g.dtype for g in jax.tree.leaves(gradient)} == {np.dtype("float32")}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("unroll", [True, False])
def test_cached_equals_full(unroll, dtype):
    """Two prompts of unequal length, two samples each: every step's hidden state, cache growing."""
    model, params = make(sharpen=1.5)
    model = replace(model, unroll_decode=unroll, compute_dtype=dtype)
    prompt_PL = np.array([[0, 0, 7, 8], [3, 4, 5, 6]])
    attend_PL = np.array([[False, False, True, True], [True] * 4])
    response_PGR = np.random.default_rng(2).integers(0, 23, (2, 2, 3))

    tokens_BT = np.concatenate([np.repeat(prompt_PL, 2, 0), response_PGR.reshape(4, 3)], 1)
    attend_BT = np.concatenate([np.repeat(attend_PL, 2, 0), np.ones((4, 3), bool)], 1)
    full_BTD = hidden_of(model, params, tokens_BT, attend_BT)

    @jax.jit
    def cached(params):
        prepared = model.prepare(params)
        last_PD, prompt = model.prefill(params, prompt_PL, attend_PL)
        own, hidden = empty_own(prompt, 2, 2), []
        for r in range(3):
            own = grow_own(own, 5) if r == 2 else own
            hidden_PGD, own = model.decode(prepared, response_PGR[:, :, r], prompt, own)
            hidden.append(hidden_PGD.reshape(4, -1))
        return last_PD, jnp.stack(hidden, 1), own

    last_PD, hidden_BRD, own = cached(params)
    assert last_PD.dtype == hidden_BRD.dtype == own.k[0].dtype == dtype
    assert int(own.length) == 3
    atol = 1e-5 if dtype == jnp.float32 else 0.06
    np.testing.assert_allclose(last_PD.astype(jnp.float32), full_BTD[::2, 3], atol=atol)
    np.testing.assert_allclose(hidden_BRD.astype(jnp.float32), full_BTD[:, 4:], atol=atol)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_layers": 0}, "num_layers=0"),
        ({"d_model": 16.0}, "d_model=16.0"),
        ({"num_kv_heads": 3}, r"choose from \[1, 2, 4\]"),
        ({"head_dim": 5}, "head_dim=5 must be even"),
        ({"vocab_padded": 22}, "vocab_padded=22 is below"),
        ({"rope": None, "rope_local": Rope()}, "rope_local without"),
        ({"norm_eps": 0.0}, "norm_eps"),
    ],
)
def test_config_refuses(change, says):
    with pytest.raises(ConfigError, match=says):
        DecoderConfig(**{**SIZES, **change})


def test_model_refuses_an_unknown_remat():
    with pytest.raises(ConfigError, match="did you mean full"):
        Model(DecoderConfig(**SIZES), remat="ful")
