"""Token log-probs: the shift, the temperature, the chunks, and the memory they save."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.ops import logprobs
from rlhf_jax.ops.logprobs import shift_right, token_logprobs

B, T, D, V = 3, 8, 5, 11
_DRAW = np.random.default_rng(0)
HIDDEN_BTD = jnp.asarray(_DRAW.normal(size=(B, T, D)), jnp.float32)
HEAD_DV = jnp.asarray(_DRAW.normal(size=(D, V)), jnp.float32)
TOKENS_BT = jnp.asarray(_DRAW.integers(0, V, (B, T)))


def loop(hidden_BTD, head_DV, tokens_BT, temperature=1.0):
    """Float64, one token at a time: hidden t − 1 scores token t."""
    hidden_BTD, head_DV = np.asarray(hidden_BTD, float), np.asarray(head_DV, float)
    logp_BT, entropy_BT = np.zeros(tokens_BT.shape), np.zeros(tokens_BT.shape)
    for b in range(tokens_BT.shape[0]):
        for t in range(1, tokens_BT.shape[1]):
            logits_V = hidden_BTD[b, t - 1] @ head_DV / temperature
            logp_V = logits_V - np.log(np.exp(logits_V).sum())
            logp_BT[b, t] = logp_V[tokens_BT[b, t]]
            entropy_BT[b, t] = -(np.exp(logp_V) * logp_V).sum()
    return logp_BT, entropy_BT


@pytest.mark.parametrize(
    ("temperature", "chunk", "jit"),
    [(1.0, None, False), (0.5, None, True), (0.5, 1, True), (0.5, 3, False), (1.0, 7, True)],
)
def test_equals_the_loop(temperature, chunk, jit):
    def fn(*args):
        return token_logprobs(*args, temperature=temperature, chunk=chunk)

    fn = jax.jit(fn) if jit else fn
    logp_BT, entropy_BT = fn(HIDDEN_BTD, HEAD_DV, TOKENS_BT)
    expected = loop(HIDDEN_BTD, HEAD_DV, np.asarray(TOKENS_BT), temperature)
    np.testing.assert_allclose(logp_BT, expected[0], atol=3e-6)
    np.testing.assert_allclose(entropy_BT, expected[1], atol=3e-6)
    assert not np.any(logp_BT[:, 0]) and not np.any(entropy_BT[:, 0])


def test_golden():
    # logits [2, 0], τ .5: log σ(4) = −.018150; at τ = 1 it would be log σ(2) = −.126928
    hidden_BTD, head_DV = jnp.array([[[1.0], [0.0]]]), jnp.array([[2.0, 0.0]])
    logp_BT, _ = token_logprobs(hidden_BTD, head_DV, jnp.array([[1, 0]]), temperature=0.5)
    np.testing.assert_allclose(logp_BT, [[0.0, -0.018150]], atol=1e-6)
    # the sampled token's, not the likeliest's: logits [2, 1, 0], token 1 → −1.407606
    logp_BT, entropy_BT = token_logprobs(
        hidden_BTD, jnp.array([[2.0, 1.0, 0.0]]), jnp.array([[0, 1]])
    )
    np.testing.assert_allclose(logp_BT[0, 1], -1.407606, atol=1e-6)
    # p = [.665241, .244728, .090031]: H = .832396
    np.testing.assert_allclose(entropy_BT[0, 1], 0.832396, atol=1e-6)


def test_chunks_change_no_gradient():
    def total(hidden_BTD, head_DV, chunk):
        logp_BT, entropy_BT = token_logprobs(
            hidden_BTD, head_DV, TOKENS_BT, temperature=0.7, chunk=chunk
        )
        weight_BT = jnp.arange(B * T, dtype=jnp.float32).reshape(B, T)
        return jnp.sum(weight_BT * logp_BT) + jnp.sum(entropy_BT)

    gradient = jax.jit(jax.grad(total, argnums=(0, 1)), static_argnums=2)
    whole, cut = gradient(HIDDEN_BTD, HEAD_DV, None), gradient(HIDDEN_BTD, HEAD_DV, 3)
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert not np.any(cut[0][:, -1])  # the last hidden state scores nothing


def test_gradient_equals_finite_differences():
    def total(hidden_BTD):
        logp_BT, entropy_BT = loop(hidden_BTD, HEAD_DV, np.asarray(TOKENS_BT), 0.5)
        return logp_BT.sum() + 2 * entropy_BT.sum()

    def fn(hidden_BTD):
        logp_BT, entropy_BT = token_logprobs(
            hidden_BTD, HEAD_DV, TOKENS_BT, temperature=0.5, chunk=3
        )
        return logp_BT.sum() + 2 * entropy_BT.sum()

    gradient_BTD = jax.jit(jax.grad(fn))(HIDDEN_BTD)
    for place in [(0, 0, 0), (1, 4, 2), (2, 6, 4)]:
        step_BTD = np.zeros(HIDDEN_BTD.shape)
        step_BTD[place] = 1e-5
        hidden_BTD = np.asarray(HIDDEN_BTD, float)
        numeric = (total(hidden_BTD + step_BTD) - total(hidden_BTD - step_BTD)) / 2e-5
        np.testing.assert_allclose(gradient_BTD[place], numeric, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("chunk", [None, 3])
def test_padded_vocabulary_has_no_probability(chunk):
    padded_DV = jnp.pad(HEAD_DV, ((0, 0), (0, 5)), constant_values=9.0)

    def total(head_DV, vocab):
        logp_BT, entropy_BT = token_logprobs(
            HIDDEN_BTD, head_DV, TOKENS_BT, vocab=vocab, chunk=chunk
        )
        return jnp.sum(logp_BT * logp_BT) + jnp.sum(entropy_BT)

    both = jax.jit(jax.value_and_grad(total), static_argnums=1)
    value, gradient_DV = both(HEAD_DV, None)
    padded, padded_gradient_DV = both(padded_DV, V)
    np.testing.assert_allclose(value, padded, rtol=1e-6)
    np.testing.assert_allclose(gradient_DV, padded_gradient_DV[:, :V], rtol=1e-4, atol=1e-5)
    assert not np.any(padded_gradient_DV[:, V:])


def test_low_precision_hidden_gives_float32_logprobs():
    logp_BT, entropy_BT = token_logprobs(HIDDEN_BTD.astype(jnp.bfloat16), HEAD_DV, TOKENS_BT)
    assert logp_BT.dtype == entropy_BT.dtype == jnp.float32
    expected_BT, _ = loop(
        HIDDEN_BTD.astype(jnp.bfloat16).astype(jnp.float32),
        HEAD_DV.astype(jnp.bfloat16).astype(jnp.float32),
        np.asarray(TOKENS_BT),
    )
    np.testing.assert_allclose(logp_BT, expected_BT, atol=1e-5)  # only the inputs were rounded


def test_low_precision_head_gradient_is_summed_in_float32():
    # 512 chunks of .38 each, in all 193: from 128 on a bfloat16 sum has steps of 1 and stalls
    hidden_BTD = jnp.ones((1, 513, 1), jnp.bfloat16)
    tokens_BT = jnp.zeros((1, 513), jnp.int32)

    @partial(jax.jit, static_argnums=1)
    @jax.grad
    def gradient(head_DV, chunk):
        return token_logprobs(hidden_BTD, head_DV, tokens_BT, chunk=chunk)[0].sum()

    head_DV = jnp.array([[0.3, -0.2]], jnp.bfloat16)
    whole_DV, cut_DV = (np.asarray(gradient(head_DV, n), np.float32) for n in (512, 1))
    np.testing.assert_allclose(cut_DV, whole_DV, rtol=2**-8)


def test_entropy_is_left_out_on_request():
    logp_BT, entropy_BT = token_logprobs(HIDDEN_BTD, HEAD_DV, TOKENS_BT, with_entropy=False)
    assert entropy_BT is None
    np.testing.assert_array_equal(logp_BT, token_logprobs(HIDDEN_BTD, HEAD_DV, TOKENS_BT)[0])


def _compiled(columns, chunk, entropy_gradient=False, rows=2, width=8, vocab=4096):
    def total(hidden_BTD, head_DV, tokens_BT):
        logp_BT, entropy_BT = token_logprobs(hidden_BTD, head_DV, tokens_BT, chunk=chunk)
        if not entropy_gradient:
            entropy_BT = jax.lax.stop_gradient(entropy_BT)
        return logp_BT.sum() + entropy_BT.sum()

    shape = jax.ShapeDtypeStruct
    return (
        jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
        .lower(
            shape((rows, columns, width), jnp.float32),
            shape((width, vocab), jnp.float32),
            shape((rows, columns), jnp.int32),
        )
        .compile()
    )


def test_peak_memory_holds_no_array_of_batch_by_time_by_vocabulary():
    short, long = (
        _compiled(columns, chunk=8).memory_analysis().temp_size_in_bytes for columns in (33, 257)
    )
    logits = 2 * 256 * 4096 * 4
    assert long < logits / 4
    assert long - short < logits / 50  # what grows is B·T, not B·T·V


def test_default_chunk_bounds_the_logits(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", 2 * 4096 * 8)
    chosen = _compiled(257, chunk=None).memory_analysis().temp_size_in_bytes
    assert chosen == _compiled(257, chunk=8).memory_analysis().temp_size_in_bytes


def test_stopped_entropy_costs_no_backward_pass():
    reported, learned = (
        _compiled(65, chunk=16, entropy_gradient=flag).cost_analysis()["flops"]
        for flag in (False, True)
    )
    assert reported < learned


def test_shift_right():
    # head readings v0..v4 after each token: the value before token t was read at t − 1
    value_BT = jnp.array([[10.0, 11.0, 12.0, 13.0, 14.0]])
    np.testing.assert_array_equal(shift_right(value_BT), [[0.0, 10.0, 11.0, 12.0, 13.0]])
