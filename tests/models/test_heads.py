"""The critic's scalar head."""

import jax
import jax.numpy as jnp
import numpy as np

from rlhf_jax.models.heads import init_scalar_head, scalar


def test_equals_the_scalar_loop():
    rng = np.random.default_rng(0)
    hidden_BTD = rng.normal(size=(2, 3, 5)).astype(np.float32)
    w_D, b = rng.normal(size=5).astype(np.float32), np.float32(0.25)
    expected_BT = [
        [sum(float(h) * float(w) for h, w in zip(h_D, w_D, strict=True)) + 0.25 for h_D in h_TD]
        for h_TD in hidden_BTD
    ]
    value_BT = scalar({"w_D": jnp.asarray(w_D), "b": jnp.asarray(b)}, jnp.asarray(hidden_BTD))
    np.testing.assert_allclose(value_BT, expected_BT, rtol=1e-5)


def test_first_values_are_zero_but_the_head_learns():
    # d/dw Σ(V − 1)² at V = 0 is −2 Σ h: the trunk gets nothing yet, the head does.
    head = init_scalar_head(4)
    hidden_BTD = jnp.arange(8.0).reshape(1, 2, 4)
    assert not scalar(head, hidden_BTD).any()

    def loss(head, hidden_BTD):
        return jnp.sum((scalar(head, hidden_BTD) - 1.0) ** 2)

    d_head, d_hidden_BTD = jax.grad(loss, argnums=(0, 1))(head, hidden_BTD)
    np.testing.assert_allclose(d_head["w_D"], [-8.0, -12.0, -16.0, -20.0])
    np.testing.assert_allclose(d_head["b"], -4.0)
    assert not d_hidden_BTD.any()


def test_bfloat16_hidden_states_give_float32_values():
    # 256 + 1 needs nine bits of mantissa: a sum in bfloat16 would give 256.
    head = {"w_D": jnp.ones((2,)), "b": jnp.zeros(())}
    value_BT = scalar(head, jnp.asarray([[[256.0, 1.0]]], jnp.bfloat16))
    assert value_BT.dtype == jnp.float32
    assert value_BT[0, 0] == 257.0
