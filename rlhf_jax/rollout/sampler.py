"""Draw G responses to each prompt: prefill once, decode all samples in one loop, stop early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.cache import OwnCache, PromptCache, empty_own, grow_own
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.decoding import DecodingConfig, draw
from rlhf_jax.types import Rollout, pytree, replace

# The own cache begins with room for this many tokens and doubles when it is full: attention reads
# the whole room at every step, so a batch that is young, or ends early, does not pay for R. Each
# doubling is one more decoding loop to compile. On 2 CPU cores, against one room for all (4 layers
# of width 256, 64 rows): −6 % time at R = 64, −16 % at R = 256.
FIRST_ROOM = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingConfig(DecodingConfig):
    """How many responses of what length, and the distribution (see `DecodingConfig`).

    Raises:
        ConfigError: a size below 1, or what `DecodingConfig` refuses.
    """

    num_samples: int
    """Responses to each prompt (G)."""
    max_new_tokens: int
    """Response length limit (R), the end token included."""
    max_prompt_tokens: int
    """Width of the left-padded prompts (L)."""

    def __post_init__(self):
        DecodingConfig.__post_init__(self)
        for name in ("num_samples", "max_new_tokens", "max_prompt_tokens"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")

    def greedily(self) -> SamplingConfig:
        """One answer a prompt, of the most likely tokens: filters would change nothing."""
        off = dict.fromkeys(("top_k", "top_p", "min_p"))
        return replace(self, num_samples=1, temperature=0.0, **off)


@pytree
class _State:
    """After `step` draws: the last tokens, which samples have ended, what was recorded, caches."""

    step: Array
    token_PG: Array
    ended_PG: Array
    tokens_PGR: Array
    mask_PGR: Array
    logp_sampler_PGR: Array
    logp_full_PGR: Array
    entropy_PGR: Array
    own: OwnCache


def make_sampler(
    model: Model, config: SamplingConfig, *, end_ids: tuple[int, ...], pad_id: int
) -> Callable[..., Rollout]:
    """Make `sample(params, tokens_PL, attend_PL, id_P, key) -> Rollout`, jitted once.

    Row b = p·G + g of the rollout is sample g of prompt p; T = L + R and responses begin at
    column L. Sample g of the prompt with dataset index id_P[p] draws its t-th token with the key
    fold_in(fold_in(fold_in(key, id), g), t): batch composition, order, padding, device and
    process change nothing. Placement follows the inputs: parameters and prompts may be sharded.

    Where each prompt is a dialogue to go on with, `first_P` numbers its first sample (else 0: g
    is counted from there), and where `open_P` is False nothing is drawn and nothing waited for.

    Args:
        model: the decoder.
        config: sizes and distribution.
        end_ids: the SET of tokens that end a response; an empty one never ends it early.
        pad_id: written after the end token (where `mask_BT` is False).

    Raises:
        ConfigError: prompt and response exceed the model's positions, an id or top_k exceeds its
            vocabulary; when called, prompts that are not L wide.
    """
    _check(model, config, end_ids, pad_id)

    @jax.jit
    def sample(params, tokens_PL, attend_PL, id_P, key, first_P=None, open_P=None) -> Rollout:
        if tokens_PL.shape[1] != config.max_prompt_tokens:
            raise ConfigError(
                f"prompts are {tokens_PL.shape[1]} tokens wide; "
                f"max_prompt_tokens={config.max_prompt_tokens}"
            )
        prepared = model.prepare(params)
        last_PD, prompt = model.prefill(params, tokens_PL, attend_PL)
        record = partial(
            _draw_and_record,
            model=model,
            config=config,
            end_ids=end_ids,
            prepared=prepared,
            uniform_PGR2=_uniforms(key, id_P, first_P, config),
        )
        first_PGD = jnp.repeat(last_PD[:, None], config.num_samples, axis=1)
        state = record(_begin(prompt, config, pad_id, open_P), first_PGD)
        state = _decode_loop(model, config, prepared, prompt, record, state)
        return _rollout(state, tokens_PL, attend_PL)

    return sample


def _decode_loop(model, config, prepared, prompt: PromptCache, record, state: _State) -> _State:
    """Decode and draw until every sample has ended or R tokens are drawn."""
    limit = config.max_new_tokens

    def body(state: _State) -> _State:
        hidden_PGD, own = model.decode(prepared, state.token_PG, prompt, state.own)
        return record(replace(state, own=own), hidden_PGD)

    for room in _rooms(limit):
        # the token drawn at step s is written to column s − 1, so `room` columns last until then
        stop = min(room + 1, limit)
        state = replace(state, own=grow_own(state.own, room))
        state = jax.lax.while_loop(
            lambda s, stop=stop: (s.step < stop) & ~s.ended_PG.all(), body, state
        )
    return state


def _rooms(limit: int) -> list[int]:
    """Sizes of the own cache: FIRST_ROOM, doubled until R − 1 tokens fit (the last drawn token is
    never run through the model)."""
    need = max(limit - 1, 1)
    rooms = [min(FIRST_ROOM, need)]
    while rooms[-1] < need:
        rooms.append(min(2 * rooms[-1], need))
    return rooms


def _draw_and_record(
    state: _State, hidden_PGD: Array, *, model, config, end_ids, prepared, uniform_PGR2
) -> _State:
    """Draw the next token of every sample from its hidden state; those that ended get padding."""
    p, g, d = hidden_PGD.shape
    uniform_PG2 = jax.lax.dynamic_index_in_dim(uniform_PGR2, state.step, 2, keepdims=False)
    logits_BV = model.logits(prepared, hidden_PGD.reshape(p * g, d))
    drawn = draw(logits_BV, uniform_PG2.reshape(p * g, 2), config)
    token_PG = drawn.token_B.reshape(p, g).astype(jnp.int32)
    alive_PG = ~state.ended_PG
    is_end_PG = (token_PG[..., None] == jnp.asarray(end_ids, jnp.int32)[None, None]).any(-1)

    def put(record_PGR: Array, new: Array) -> Array:
        column = jax.lax.dynamic_index_in_dim(record_PGR, state.step, 2, keepdims=False)
        new = jnp.where(alive_PG, new.reshape(p, g), column)
        return jax.lax.dynamic_update_index_in_dim(record_PGR, new, state.step, 2)

    return replace(
        state,
        step=state.step + 1,
        token_PG=token_PG,
        ended_PG=state.ended_PG | is_end_PG,
        tokens_PGR=put(state.tokens_PGR, token_PG),
        mask_PGR=put(state.mask_PGR, alive_PG),
        logp_sampler_PGR=put(state.logp_sampler_PGR, drawn.logp_sampler_B),
        logp_full_PGR=put(state.logp_full_PGR, drawn.logp_full_B),
        entropy_PGR=put(state.entropy_PGR, drawn.entropy_B),
    )


def _begin(
    prompt: PromptCache, config: SamplingConfig, pad_id: int, open_P: Array | None
) -> _State:
    p, g, r = prompt.attend_PL.shape[0], config.num_samples, config.max_new_tokens
    closed_P = jnp.zeros(p, bool) if open_P is None else ~open_P
    nothing_PGR = jnp.zeros((p, g, r), jnp.float32)
    return _State(
        step=jnp.zeros((), jnp.int32),
        token_PG=jnp.full((p, g), pad_id, jnp.int32),
        ended_PG=jnp.repeat(closed_P[:, None], g, axis=1),
        tokens_PGR=jnp.full((p, g, r), pad_id, jnp.int32),
        mask_PGR=jnp.zeros((p, g, r), bool),
        logp_sampler_PGR=nothing_PGR,
        logp_full_PGR=nothing_PGR,
        entropy_PGR=nothing_PGR,
        own=empty_own(prompt, g, _rooms(r)[0]),
    )


def _uniforms(key: Array, id_P: Array, first_P: Array | None, config: SamplingConfig) -> Array:
    """uniform_PGR2: two per token, each a function of (key, prompt id, sample, position)."""
    first_P = jnp.zeros_like(id_P) if first_P is None else first_P

    def of_prompt(index, first):
        key_of_prompt = jax.random.fold_in(key, index)
        return jax.vmap(lambda g: of_sample(jax.random.fold_in(key_of_prompt, g)))(
            first + jnp.arange(config.num_samples)
        )

    def of_sample(key):
        return jax.vmap(lambda t: jax.random.uniform(jax.random.fold_in(key, t), (2,)))(
            jnp.arange(config.max_new_tokens)
        )

    return jax.vmap(of_prompt)(id_P, first_P)


def _rollout(state: _State, tokens_PL: Array, attend_PL: Array) -> Rollout:
    p, g, r = state.tokens_PGR.shape
    length = tokens_PL.shape[1]

    def rows(x_PGR: Array, prompt_PL: Array) -> Array:
        prompt_PGL = jnp.repeat(prompt_PL[:, None], g, axis=1).astype(x_PGR.dtype)
        return jnp.concatenate([prompt_PGL, x_PGR], axis=2).reshape(p * g, length + r)

    nothing_PL = jnp.zeros((p, length))
    return Rollout(
        tokens_BT=rows(state.tokens_PGR, tokens_PL),
        attend_BT=rows(state.mask_PGR, attend_PL),
        mask_BT=rows(state.mask_PGR, nothing_PL),
        logp_sampler_BT=rows(state.logp_sampler_PGR, nothing_PL),
        logp_full_BT=rows(state.logp_full_PGR, nothing_PL),
        entropy_BT=rows(state.entropy_PGR, nothing_PL),
        group_B=jnp.repeat(jnp.arange(p), g),
        truncated_B=~state.ended_PG.reshape(p * g),
    )


def _check(model: Model, config: SamplingConfig, end_ids: tuple[int, ...], pad_id: int) -> None:
    shape = model.config
    length = config.max_prompt_tokens + config.max_new_tokens
    if length > shape.max_positions:
        raise ConfigError(
            f"max_prompt_tokens={config.max_prompt_tokens} + max_new_tokens="
            f"{config.max_new_tokens} is {length}; the model has {shape.max_positions} positions"
        )
    for name, index in (("pad_id", pad_id), *(("end_ids", i) for i in end_ids)):
        if not 0 <= index < shape.vocab_size:
            raise ConfigError(f"{name} {index} is not in the vocabulary [0, {shape.vocab_size})")
    if config.top_k is not None and config.top_k > shape.vocab_size:
        raise ConfigError(f"top_k={config.top_k} exceeds vocab_size={shape.vocab_size}; use None")
