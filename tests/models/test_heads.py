"""Scalar heads: a critic's at every token, a reward model's at the last real one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.models.heads import (
    init_reward_head,
    init_scalar_head,
    last_real,
    normalised,
    scalar,
    scalar_at_last,
)


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


@pytest.mark.parametrize(
    ("attend_T", "last"),
    [
        ([1, 1, 1, 1, 1], 4),  # whatever the ids: the pad id may end the row and stand within it
        ([1, 1, 1, 0, 0], 2),
        ([0, 0, 1, 1, 0], 3),
        ([0, 0, 0, 1, 1], 4),
        ([1, 0, 0, 0, 0], 0),
    ],
)
def test_the_last_real_token_is_read_from_the_mask(attend_T, last):
    attend_BT = jnp.asarray([attend_T], bool)
    assert last_real(attend_BT).tolist() == [last]
    hidden_BTD = jnp.arange(5.0).reshape(1, 5, 1)
    head = {"w_D": jnp.asarray([2.0]), "b": jnp.float32(0.5)}
    assert scalar_at_last(head, hidden_BTD, attend_BT).tolist() == [2.0 * last + 0.5]


def test_a_row_without_padding():
    # a search for the first pad finds none, and −1 would be the row before or be clamped to 0
    assert last_real(jnp.ones((2, 3), bool)).tolist() == [2, 2]


def test_only_the_last_token_gets_a_gradient():
    attend_BT = jnp.asarray([[1, 1, 0], [0, 1, 1]], bool)
    head = {"w_D": jnp.asarray([3.0]), "b": jnp.float32(0.0)}
    hidden_BTD = jnp.ones((2, 3, 1))
    gradient = jax.grad(lambda x: scalar_at_last(head, x, attend_BT).sum())(hidden_BTD)
    assert gradient[..., 0].tolist() == [[0, 3, 0], [0, 0, 3]]


def test_a_reward_head_is_drawn_from_the_seed():
    one, again, other = (init_reward_head(jax.random.key(seed), 4096) for seed in (1, 1, 2))
    assert (one["w_D"] == again["w_D"]).all() and (one["w_D"] != other["w_D"]).any()
    # N(0, 1/(D + 1)): the deviation of 4096 draws is within 5 of its own deviations (1.1 %)
    assert abs(float(one["w_D"].std()) * 4097**0.5 - 1) < 5 / (2 * 4096) ** 0.5
    assert abs(float(one["w_D"].mean())) < 5 / 4096
    assert one["b"] == 0


def test_normalised_scores():
    head = normalised({"w_D": jnp.asarray([8.0]), "b": jnp.float32(2.0)}, gain=0.25, bias=-0.5)
    # of mean 2 and deviation 4: 10 is two deviations above
    assert scalar(head, jnp.asarray([[[0.0], [1.0]]])).tolist() == [[0.0, 2.0]]
