"""A language of 8 tokens and 5 positions: all 32,768 responses are known, so nothing is estimated.

The reference is a small decoder fitted to a random bigram language. A policy's KL, its expected
reward and best-of-n are sums over all responses.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from experiments.figures.runs import imitate, make_learner, outcome, small_model
from rlhf_jax.losses.bradley_terry import pairwise
from rlhf_jax.ops.logprobs import token_logprobs
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.types import SFTBatch

VOCAB, LENGTH = 8, 5
COUNT = VOCAB**LENGTH
MODEL = small_model(VOCAB, 1 + LENGTH)
# row n spells n in base 8
RESPONSES = np.stack([np.arange(COUNT) // VOCAB**k % VOCAB for k in reversed(range(LENGTH))], 1)
FEATURES = np.eye(VOCAB, dtype=np.float32)[RESPONSES].reshape(COUNT, -1)
PROMPT = 0  # the one token that every response follows


@dataclass(frozen=True)
class Language:
    """The reference: parameters, exact log-probs of all responses; and a gold utility of each.

    `gold_N`: .7·MLP + c₀ − .6·max(c₀ − 1.5, 0)², c₀ the count of token 0: more of it is better
    until it is not. `utility_N`: the MLP alone. Both have mean 0 and standard deviation 1 under the
    reference.
    """

    params: Any
    logp_N: np.ndarray
    gold_N: np.ndarray
    utility_N: np.ndarray

    @property
    def p_N(self) -> np.ndarray:
        return np.exp(self.logp_N)


@lru_cache(maxsize=8)
def make_language(seed: int, *, updates: int = 300, rows: int = 256) -> Language:
    """The language of a seed: bigram logits N(0, 1), a decoder fitted to them, gold rewards."""
    draw = np.random.default_rng([seed, 0])
    first_V, next_VV = draw.normal(size=VOCAB), draw.normal(size=(VOCAB, VOCAB))
    log = lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))  # noqa: E731
    bigram_N = log(first_V)[RESPONSES[:, 0]]
    bigram_N = bigram_N + log(next_VV)[RESPONSES[:, :-1], RESPONSES[:, 1:]].sum(axis=1)
    chosen = draw.choice(COUNT, size=(updates, rows), p=np.exp(bigram_N))
    optim = OptimConfig(learning_rate=3e-3, schedule="linear")
    start = MODEL.init(jax.random.key(seed))
    params = imitate(MODEL, start, demonstrations(chosen), optim)
    logp_N = np.asarray(exact_logp(params), np.float64)
    p_N = np.exp(logp_N)
    hidden = np.tanh(FEATURES @ draw.normal(size=(VOCAB * LENGTH, 64)))
    utility_N = standardised(hidden @ draw.normal(size=64), p_N)
    count_N = (RESPONSES == 0).sum(axis=1)
    gold_N = 0.7 * utility_N + count_N - 0.6 * np.maximum(count_N - 1.5, 0) ** 2
    return Language(params, logp_N, standardised(gold_N, p_N), utility_N)


def standardised(x_N: np.ndarray, p_N: np.ndarray) -> np.ndarray:
    """(x − mean)/std under p."""
    mean = (p_N * x_N).sum()
    return (x_N - mean) / np.sqrt((p_N * (x_N - mean) ** 2).sum())


def with_prompt(index: np.ndarray) -> np.ndarray:
    """tokens [..., 1 + LENGTH] of responses by their number."""
    tokens = RESPONSES[index]
    return np.concatenate([np.full((*tokens.shape[:-1], 1), PROMPT), tokens], -1).astype(np.int32)


def response_mask(shape: tuple[int, ...]) -> np.ndarray:
    """True on the response, for tokens of this shape."""
    mask = np.ones(shape, bool)
    mask[..., 0] = False
    return mask


def demonstrations(index: np.ndarray) -> SFTBatch:
    """Responses to imitate, as numbers [updates, rows]."""
    tokens = jnp.asarray(with_prompt(index))
    return SFTBatch(
        tokens_BT=tokens,
        attend_BT=jnp.ones(tokens.shape, bool),
        mask_BT=jnp.asarray(response_mask(tokens.shape)),
    )


@jax.jit
def exact_logp(params: Any) -> Array:
    """logp_N of all responses: one row a prefix of four tokens, then each of the last tokens."""
    tokens_BT = jnp.asarray(with_prompt(np.arange(0, COUNT, VOCAB))[:, :-1])
    attend_BT = jnp.ones(tokens_BT.shape, bool)
    hidden_BTD = MODEL.hidden(params, tokens_BT, attend_BT)
    logp_BT, _ = token_logprobs(
        hidden_BTD, MODEL.head(params), tokens_BT, vocab=VOCAB, with_entropy=False
    )
    last_BV = jax.nn.log_softmax(MODEL.logits(MODEL.prepare(params), hidden_BTD[:, -1]))
    return (logp_BT[:, 1:].sum(axis=1)[:, None] + last_BV).reshape(-1)


def number_of(tokens_BT: Array) -> Array:
    """The number of each row's response."""
    weight = jnp.asarray([VOCAB**k for k in reversed(range(LENGTH))])
    return jnp.sum(tokens_BT[:, 1:] * weight[None], axis=1)


def exact(params: Any, language: Language, **of: np.ndarray) -> dict[str, float]:
    """KL to the reference (nats) and the policy's expectation of each array of `of`, exactly."""
    logp_N = np.asarray(exact_logp(params), np.float64)
    p_N = np.exp(logp_N)
    found = {name: float((p_N * x_N).sum()) for name, x_N in of.items()}
    return {"kl": float((p_N * (logp_N - language.logp_N)).sum()), **found}


def draw_pairs(
    language: Language, utility_N: np.ndarray, count: int, seed: int, *, noisy: bool
) -> np.ndarray:
    """[count, 2] numbers of responses of the reference, the preferred one first.

    noisy: the label is drawn from Bradley–Terry, σ(u_i − u_j); else the higher utility wins.
    """
    draw = np.random.default_rng([seed, 1])
    p_N = language.p_N / language.p_N.sum()
    pair_BS = draw.choice(COUNT, size=(count, 2), p=p_N)
    lead_B = utility_N[pair_BS[:, 0]] - utility_N[pair_BS[:, 1]]
    first_B = lead_B > 0
    if noisy:
        first_B = draw.random(count) < 1 / (1 + np.exp(-lead_B))
    return np.where(first_B[:, None], pair_BS, pair_BS[:, ::-1])


def fit_proxy(
    pair_BS: np.ndarray, language: Language, seed: int, *, hidden: int | None, updates: int = 600
) -> np.ndarray:
    """proxy_N: a reward model's score of every response, standardised under the reference.

    Bradley–Terry on pairs of one-hot features; linear (hidden None) or with one tanh layer.
    AdamW, .01 falling to 0, weight decay .01, minibatches of 256 pairs.
    """
    keys = jax.random.split(jax.random.key(seed), 3)
    width = VOCAB * LENGTH
    params = {"w_F": jnp.zeros(width)}
    if hidden is not None:
        params = {
            "in_FH": jax.random.normal(keys[0], (width, hidden)) / LENGTH**0.5,
            "w_F": jax.random.normal(keys[1], (hidden,)) / hidden**0.5,
        }
    chosen = np.random.default_rng([seed, 2]).integers(0, len(pair_BS), (updates, 256))
    batches = jnp.asarray(pair_BS[chosen])
    proxy_N = np.asarray(_proxy_fit(updates)(params, batches), np.float64)
    return standardised(proxy_N, language.p_N)


@lru_cache
def _proxy_fit(updates: int):
    tx = make_optimizer(
        OptimConfig(learning_rate=1e-2, schedule="linear", weight_decay=1e-2), updates
    )
    features = jnp.asarray(FEATURES)

    def score(params, x):
        return (jnp.tanh(x @ params["in_FH"]) if "in_FH" in params else x) @ params["w_F"]

    @jax.jit
    def run(params, batches):
        def step(carry, pair_BS):
            params, opt_state = carry
            grads = jax.grad(lambda p: pairwise(score(p, features[pair_BS])).mean())(params)
            deltas, opt_state = tx.update(grads, opt_state, params)
            return (optax.apply_updates(params, deltas), opt_state), None

        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), batches)
        return score(params, features)

    return run


def best_of_n(proxy_N: np.ndarray, language: Language, n: float, gold_N: np.ndarray):
    """(KL, E[gold]) of the response that the proxy ranks first of n samples of the reference.

    KL = log n − (n − 1)/n, exact where scores have no ties (Gao et al. 2210.10760).
    """
    order = np.argsort(proxy_N, kind="stable")
    below = np.cumsum(language.p_N[order])
    below /= below[-1]
    p_best = np.diff(below**n, prepend=0.0)
    return np.log(n) - (n - 1) / n, float((p_best * gold_N[order]).sum())


@dataclass(frozen=True, kw_only=True)
class PPO:
    """Numbers of a PPO run on the language."""

    steps: int = 120
    rows: int = 256
    epochs: int = 2
    learning_rate: float = 3e-4
    every: int = 5


def run_ppo(objective, language: Language, score_N: np.ndarray, seed: int, ppo: PPO):
    """PPO from the reference on these scores; yields (step, sampled KL of each step since, params).

    The first is (0, [], reference).
    """
    start, block = _ppo_functions(ppo)
    state = start(objective, language.params)
    yield 0, np.zeros(0), state.policy
    score_N = jnp.asarray(score_N, jnp.float32)
    keys = jax.random.split(jax.random.key(seed), ppo.steps)
    for at in range(0, ppo.steps, ppo.every):
        state, kl_S = block(objective, state, keys[at : at + ppo.every], score_N)
        yield at + ppo.every, np.asarray(kl_S), state.policy


@lru_cache
def _ppo_functions(ppo: PPO):
    start, step = make_learner(
        MODEL,
        SamplingConfig(num_samples=ppo.rows, max_new_tokens=LENGTH, max_prompt_tokens=1),
        lambda rollout, score_N: outcome(score_N[number_of(rollout.tokens_BT)]),
        optim=OptimConfig(learning_rate=ppo.learning_rate),
        steps=ppo.steps,
        epochs=ppo.epochs,
    )
    tokens_PL, id_P = jnp.full((1, 1), PROMPT, jnp.int32), jnp.zeros(1, jnp.int32)

    @jax.jit
    def block(objective, state, keys, score_N):
        def one(state, key):
            state, batch = step(objective, state, tokens_PL, id_P, key, score_N)
            return state, batch.kl

        return jax.lax.scan(one, state, keys)

    return start, block
