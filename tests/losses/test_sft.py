"""Next-token loss."""

import jax
import jax.numpy as jnp
import numpy as np

from rlhf_jax.losses.aggregate import token_mean, weighted_sum
from rlhf_jax.losses.sft import next_token_loss
from rlhf_jax.ops.logprobs import token_logprobs


def test_is_the_cross_entropy_of_the_counted_tokens():
    # probabilities .5 and .25 on the completion, end token included; the prompt does not count
    logp_BT = jnp.log(jnp.array([[1.0, 0.1, 0.5, 0.25]]))
    mask_BT = jnp.array([[False, False, True, True]])
    weight_BT = token_mean(mask_BT, jnp.zeros(1, int))
    loss = weighted_sum(next_token_loss(logp_BT), weight_BT)
    np.testing.assert_allclose(loss, (np.log(2) + np.log(4)) / 2, rtol=1e-6)


def test_gradient_with_respect_to_logits_is_probability_minus_one_hot():
    logits_V = jnp.array([2.0, 1.0, 0.0])
    hidden_BTD, tokens_BT = jnp.ones((1, 2, 1)), jnp.array([[0, 1]])

    def loss(head_V):
        logp_BT, _ = token_logprobs(hidden_BTD, head_V[None], tokens_BT)
        return next_token_loss(logp_BT)[0, 1]

    expected_V = jax.nn.softmax(logits_V) - jnp.array([0.0, 1.0, 0.0])
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(logits_V), expected_V, atol=1e-6)
