"""Log-probabilities of tokens from hidden states. The only next-token shift lives here.

Column t speaks of token t: hidden state t − 1 scores token t, column 0 is 0. Logits exist for a
chunk of positions at a time and are computed again in the backward pass, so that neither pass
ever holds an array of B·T·V.
"""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
from jax import Array, lax

# Logits held at a time, counted over the global batch: 256 MiB in float32. The head is read once
# a chunk, so chunks must be wide enough to keep the matmul compute-bound; 8 rows at a vocabulary
# of 152k still give 55 positions, 440 rows of matmul.
CHUNK_LOGITS = 2**26

# Finite, unlike −inf: p·z stays 0 in the entropy of a padded vocabulary instead of NaN.
_NEVER = -1e30


def token_logprobs(
    hidden_BTD: Array,
    head_DV: Array,
    tokens_BT: Array,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    vocab: int | None = None,
    chunk: int | None = None,
    with_entropy: bool = True,
) -> tuple[Array, Array | None]:
    """log π(token_t | tokens before t) and the entropy of that distribution.

    z = cap(h_{t−1}·W) / τ,   logp_t = z[token_t] − log Σ_v exp z_v,   H_t = −Σ_v π_v log π_v

    The matmul runs in the dtype of `hidden_BTD`; logits, log-sum-exp and entropy are float32
    (bfloat16 log-probs inflate the KL tenfold). Gradients flow through both outputs; stop the
    entropy's outside where no bonus asks for it and its backward pass costs nothing.

    Args:
        hidden_BTD: [B, T, D] hidden states after the final norm, before the shift.
        head_DV: [D, V] output projection.
        tokens_BT: [B, T] int, ids in [0, V).
        temperature: τ > 0, the sampler's. It scales policy, old and reference alike, else the
            ratio is not 1 on fresh weights.
        softcap: the model's own bound on its logits, before the temperature; None: unbounded.
        vocab: number of real columns; the padded columns beyond it have probability 0.
        chunk: positions at a time; None chooses so that B·chunk·V ≤ `CHUNK_LOGITS`.
        with_entropy: False skips the entropy and returns None in its place.

    Returns:
        logp_BT, entropy_BT, both float32; column 0 is 0.
    """
    chex.assert_rank([hidden_BTD, head_DV, tokens_BT], [3, 2, 2])
    rows, columns = tokens_BT.shape
    positions = columns - 1
    if chunk is None:
        chunk = max(1, CHUNK_LOGITS // (rows * head_DV.shape[1]))
    count = max(1, -(-positions // chunk))
    chunk = -(-positions // count)  # even chunks waste least on padding

    def score(head_DV, hidden_BSD, target_BS):
        return _score(
            head_DV, hidden_BSD, target_BS, temperature, softcap, vocab, with_entropy=with_entropy
        )

    hidden_BSD, target_BS = hidden_BTD[:, :-1], tokens_BT[:, 1:]
    if count == 1:
        out = score(head_DV, hidden_BSD, target_BS)
    else:
        out = _scan_chunks(score, head_DV, hidden_BSD, target_BS, count, chunk)
    out = jax.tree.map(lambda x_BS: jnp.pad(x_BS, ((0, 0), (1, 0))), out)
    return out if with_entropy else (out[0], None)


def soft_cap(x: Array, cap: float | None) -> Array:
    """cap · tanh(x / cap), which stays in (−cap, cap); None: x itself."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _score(head_DV, hidden_BSD, target_BS, temperature, softcap, vocab, *, with_entropy):
    """logp_BS and entropy_BS (absent unless asked) of one chunk."""
    logits_BSV = jnp.einsum(
        "bsd,dv->bsv",
        hidden_BSD,
        head_DV.astype(hidden_BSD.dtype),
        preferred_element_type=jnp.float32,
    )
    logits_BSV = soft_cap(logits_BSV, softcap) / temperature
    column_V = lax.broadcasted_iota(jnp.int32, (1, 1, head_DV.shape[1]), 2)
    if vocab is not None and vocab < head_DV.shape[1]:
        logits_BSV = jnp.where(column_V < vocab, logits_BSV, _NEVER)
    log_sum_BS = jax.nn.logsumexp(logits_BSV, axis=-1)
    # A comparison, not a gather: it shards with the vocabulary and fuses into the reduction.
    hit_BSV = column_V == target_BS[:, :, None]
    logp_BS = jnp.sum(jnp.where(hit_BSV, logits_BSV, 0.0), axis=-1) - log_sum_BS
    if not with_entropy:
        return (logp_BS,)
    log_prob_BSV = logits_BSV - log_sum_BS[:, :, None]
    return logp_BS, -jnp.sum(jnp.exp(log_prob_BSV) * log_prob_BSV, axis=-1)


def _scan_chunks(score, head_DV, hidden_BSD, target_BS, count, chunk):
    rows, positions = target_BS.shape
    # The head's gradient is the scan's running sum: keep that sum in float32.
    head_DV = head_DV.astype(jnp.float32)

    def split(x):
        x = jnp.pad(x, ((0, 0), (0, count * chunk - positions)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(rows, count, chunk, *x.shape[2:]), 1, 0)

    def join(x_NBS):
        return jnp.moveaxis(x_NBS, 0, 1).reshape(rows, count * chunk)[:, :positions]

    body = jax.checkpoint(lambda _, part: (None, score(head_DV, *part)))
    _, out = lax.scan(body, None, (split(hidden_BSD), split(target_BS)))
    return jax.tree.map(join, out)


def shift_right(x_BT: Array) -> Array:
    """Move every column one to the right, 0 in column 0: what the head read at t − 1 says of t.

    The critic's head reads the prefix that ends at token t − 1 and so gives the value before
    token t; the last column is the value of the whole row and falls off.
    """
    return jnp.pad(x_BT[:, :-1], ((0, 0), (1, 0)))


def follow(first_P: Array, x_PXR: Array, opens_PXR: Array) -> Array:
    """[P, X, R + 1, …]: rows of responses with what stands before them, for the shift above.

    A response's first token is predicted from its prompt's last state, wherever in its row it
    stands: `first` comes before every row, and takes the place of what the response before left.

    Args:
        first_P: [P, …], read at the prompt's last token.
        x_PXR: [P, X, R, …], read at each token.
        opens_PXR: bool, True on the first token of every response.
    """
    p, x, r = opens_PXR.shape
    rest = x_PXR.shape[3:]
    first = first_P.reshape(p, 1, 1, *rest)
    before = jnp.concatenate([jnp.broadcast_to(first, (p, x, 1, *rest)), x_PXR], axis=2)
    opens = jnp.pad(opens_PXR, ((0, 0), (0, 0), (0, 1))).reshape(p, x, r + 1, *(1,) * len(rest))
    return jnp.where(opens, first, before)
