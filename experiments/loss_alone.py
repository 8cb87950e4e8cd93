"""A loss alone, in a model and a loop of one's own: plain JAX, no trainer.

    python -m experiments.loss_alone          # some seconds on a CPU

A table of logits (a bigram model) learns to count upwards modulo 10, by the clipped surrogate in
two passes a rollout. Number to reach: ≥ 90 % of steps upwards, from 10 % by chance.
"""

import jax
import jax.numpy as jnp

from rlhf_jax.losses.surrogate import clipped, token_ratio

B, T, V = 256, 8, 10  # rows, tokens, vocabulary
mask_BT = jnp.ones((B, T), bool).at[:, 0].set(False)  # the first token is the prompt


def logprobs(table_VV, x_BT):  # column t speaks of token t
    return jnp.pad(jax.nn.log_softmax(table_VV)[x_BT[:, :-1], x_BT[:, 1:]], ((0, 0), (1, 0)))


def loss(table_VV, x_BT, old_BT, advantage_BT):
    logp_BT = logprobs(table_VV, x_BT)
    ratio_BT = token_ratio(logp_BT, old_BT, mask_BT)
    loss_BT = clipped(logp_BT, old_BT, ratio_BT, advantage_BT, mask_BT, low=0.2, high=0.2)
    return jnp.sum(loss_BT) / mask_BT.sum()


@jax.jit
def step(table_VV, key):
    x_TB = [jax.random.randint(key, (B,), 0, V)]
    for key_t in jax.random.split(key, T - 1):
        x_TB.append(jax.random.categorical(key_t, table_VV[x_TB[-1]]))
    x_BT = jnp.stack(x_TB, axis=1)
    score_B = jnp.mean(x_BT[:, 1:] == (x_BT[:, :-1] + 1) % V, axis=1)
    advantage_BT = ((score_B - score_B.mean()) / (score_B.std() + 1e-6))[:, None] * mask_BT
    old_BT = logprobs(table_VV, x_BT)
    for _ in range(2):
        table_VV -= 20 * jax.grad(loss)(table_VV, x_BT, old_BT, advantage_BT)
    return table_VV, score_B.mean()


def main() -> list[float]:
    table_VV, scores = jnp.zeros((V, V)), []
    for key in jax.random.split(jax.random.key(0), 150):
        table_VV, score = step(table_VV, key)
        scores.append(float(score))
    print(f"steps upwards: {scores[0]:.0%} -> {scores[-1]:.0%}")
    return scores


if __name__ == "__main__":
    main()
