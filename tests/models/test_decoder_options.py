"""Options of the decoder that families bring: what training, sharding and tracing make of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import random_params

from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.rope import Rope
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.parallel.sharding import shard, shard_rows
from rlhf_jax.train.scoring import forward_logprobs


@pytest.fixture(scope="module")
def every_option():
    """Two kinds of layers, four norms, biases and caps: a model and its parameters."""
    config = DecoderConfig(
        vocab_size=64, num_layers=3, d_model=16, num_heads=4, num_kv_heads=2, head_dim=6, d_ff=24,
        norm="rms+1", norm_outputs=True, qk_norm=True, qkv_bias=True, out_bias=True, mlp_bias=True,
        activation="gelu_new", scale_embeddings=True, query_scalar=9.0, attn_softcap=2.0,
        logit_softcap=3.0, window=3, local_layers=(True, False, True), rope_local=Rope(theta=50.0),
        tie_embeddings=False,
    )  # fmt: skip
    model = Model(config)
    return model, random_params(model, 0, 0.3)


def test_log_probs_are_of_the_capped_logits(every_option):
    model, params = every_option
    ids_BT, attend_BT = np.arange(12).reshape(2, 6), np.ones((2, 6), bool)

    @jax.jit
    def both(params):
        logits_BTV = model.logits(params, model.hidden(params, ids_BT, attend_BT))
        logp_BT, _ = forward_logprobs(
            model, params, ids_BT, attend_BT, temperature=0.5, with_entropy=False
        )
        return logits_BTV, logp_BT

    logits_BTV, logp_BT = map(np.asarray, both(params))
    assert 2.0 < np.abs(logits_BTV).max() < 3.0
    scaled_BTV = logits_BTV / 0.5
    scaled_BTV -= np.log(np.exp(scaled_BTV).sum(-1, keepdims=True))
    expected = np.take_along_axis(scaled_BTV[:, :-1], ids_BT[:, 1:, None], 2)[..., 0]
    np.testing.assert_allclose(logp_BT[:, 1:], expected, atol=1e-5)


def test_eight_devices_give_the_gradient_of_one(every_option):
    """Tensor axis 4: the two key/value heads and their biases are whole everywhere."""
    model, params = every_option
    ids_BT = np.random.default_rng(1).integers(0, 64, (4, 8))
    attend_BT = np.arange(8)[None] >= np.array([0, 3, 0, 1])[:, None]

    @jax.jit
    def gradient(params, ids_BT, attend_BT):
        def loss(params):
            logits_BTV = model.logits(params, model.hidden(params, ids_BT, attend_BT))
            return jnp.sum(
                jnp.where(attend_BT[..., None], jax.nn.log_softmax(logits_BTV), 0.0)[..., 5]
            )

        return jax.grad(loss)(params)

    expected = jax.device_get(gradient(params, ids_BT, attend_BT))
    mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))
    with jax.set_mesh(mesh):
        found = gradient(shard(mesh, params), *shard_rows(mesh, (ids_BT, attend_BT)))
    for path, x in jax.tree.leaves_with_path(found):
        y = expected
        for key in path:
            y = y[key.key]
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5 * np.abs(y).max(), err_msg=str(path))
        assert np.abs(y).max() > 0, path


def test_two_kinds_of_layers_do_not_grow_the_program():
    def size(depth):
        local = tuple((n + 1) % 3 != 0 for n in range(depth))
        config = DecoderConfig(
            vocab_size=23, num_layers=depth, d_model=16, window=3, local_layers=local,
            rope_local=Rope(theta=50.0),
        )  # fmt: skip
        model = Model(config, unroll_decode=False)
        run = jax.jit(model.hidden)
        text = run.lower(model.abstract(), jnp.zeros((1, 4), int), jnp.ones((1, 4), bool)).as_text()
        return text.count("\n")

    assert size(11) == size(4)
