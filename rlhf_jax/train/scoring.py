"""The trainer's view of a rollout, without gradient: log π_old, log π_ref, V."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.models.branches import read_stem
from rlhf_jax.models.heads import scalar
from rlhf_jax.ops.logprobs import shift_right, token_logprobs
from rlhf_jax.parallel.sharding import constrain_rows
from rlhf_jax.train.microbatch import map_rows
from rlhf_jax.train.packed import branch_logprobs, branch_values, map_blocks, pack


def forward_logprobs(
    model,
    params: Any,
    tokens_BT: Array,
    attend_BT: Array,
    *,
    temperature: float,
    with_entropy: bool,
    segment_BT: Array | None = None,
    mesh: Mesh | None = None,
) -> tuple[Array, Array | None]:
    """log π(token_t | before t) and entropy_BT of one forward pass; see `token_logprobs`.

    In packed rows the first token of a segment is scored from another's last: mask it.
    """
    hidden_BTD = constrain_rows(mesh, model.hidden(params, tokens_BT, attend_BT, segment_BT))
    return token_logprobs(
        hidden_BTD,
        model.head(params),
        tokens_BT,
        temperature=temperature,
        softcap=model.config.logit_softcap,
        vocab=model.config.vocab_size,
        with_entropy=with_entropy,
    )


def forward_values(
    critic_model, params: Any, tokens_BT: Array, attend_BT: Array, *, mesh: Mesh | None = None
) -> Array:
    """The head's reading at every token, unshifted: column t has read token t."""
    hidden_BTD = critic_model.hidden(params["trunk"], tokens_BT, attend_BT)
    return scalar(params["head"], constrain_rows(mesh, hidden_BTD))


def make_score(
    model,
    *,
    temperature: float,
    micro_rows: int | None = None,
    critic_model=None,
    mesh: Mesh | None = None,
) -> Callable[..., dict[str, Array | None]]:
    """score(policy, reference, critic, rollout) -> the fields of `Scored` that models give.

    Args:
        model: decoder of policy and reference.
        temperature: the sampler's; log-probs are of softmax(z/τ) for all models alike.
        micro_rows: rows of one forward pass, which bounds the peak memory; None: all.
        critic_model: decoder of the critic's trunk; needed where a critic is passed.
        mesh: keeps rows split over it.

    Returns:
        A jitted function, score(policy, reference, critic, rollout, layout=None). With a `Layout`
        each prompt is run once for its responses: the same numbers to rounding, 0 where no token
        is counted (`micro_rows` is the layout's then). Each of `policy`, `reference` (decoder
        parameters) and `critic` ({"trunk", "head"}) may be None; what it would give is None then:
        `logp_old_BT`, `logp_ref_BT`, `value_BT` (of the prefix before token t) and `last_value_B`
        (of the whole row, for bootstrapping rows cut off by the length limit; 0 for a row that
        counts no token).
    """

    @jax.jit
    def score(policy, reference, critic, rollout, layout=None):
        if layout is not None:
            packed = pack(layout, rollout.tokens_BT, rollout.attend_BT, mesh)
            scores = _packed_scores(
                {"logp_old_BT": (model, policy), "logp_ref_BT": (model, reference)},
                (critic_model, critic),
                packed,
                dict(temperature=temperature, with_entropy=False, mesh=mesh),
            )
            if critic is not None:
                scores["last_value_B"] = _at_last(scores.pop("read_BT"), rollout.mask_BT)
            return constrain_rows(mesh, scores)

        def logp(params, part):
            if params is None:
                return None
            tokens_BT, attend_BT, _ = part
            return forward_logprobs(
                model,
                params,
                tokens_BT,
                attend_BT,
                temperature=temperature,
                with_entropy=False,
                mesh=mesh,
            )[0]

        def rows(part):
            tokens_BT, attend_BT, mask_BT = part
            value_BT = last_value_B = None
            if critic is not None:
                read_BT = forward_values(critic_model, critic, tokens_BT, attend_BT, mesh=mesh)
                value_BT, last_value_B = shift_right(read_BT), _at_last(read_BT, mask_BT)
            return {
                "logp_old_BT": logp(policy, part),
                "logp_ref_BT": logp(reference, part),
                "value_BT": value_BT,
                "last_value_B": last_value_B,
            }

        arrays = (rollout.tokens_BT, rollout.attend_BT, rollout.mask_BT)
        return map_rows(rows, arrays, micro_rows=micro_rows, mesh=mesh)

    return score


def _packed_scores(decoders, critic, packed, options):
    """The arrays of `make_score`, and `read_BT`, the critic's reading at every token."""
    asked = {name: pair for name, pair in decoders.items() if pair[1] is not None}
    critic_model, critic_params = critic

    def read(prompt):
        stems = {name: read_stem(model, params, *prompt) for name, (model, params) in asked.items()}
        if critic_params is not None:
            stems["critic"] = read_stem(critic_model, critic_params["trunk"], *prompt)
        return stems

    def blocks(stems, *place):
        out = {}
        for name, (model, params) in asked.items():
            out[name], _ = branch_logprobs(model, params, stems[name], *place, **options)
        if critic_params is not None:
            out["value_BT"], out["read_BT"] = branch_values(
                critic_model, critic_params, stems["critic"], *place
            )
        return out

    absent = dict.fromkeys((*decoders, "value_BT", "last_value_B"))
    return absent | map_blocks(read, blocks, packed)


def _at_last(read_BT: Array, mask_BT: Array) -> Array:
    """The reading at each row's last counted token."""
    after_BT = jnp.cumsum(mask_BT[:, ::-1], axis=1)[:, ::-1]
    return jnp.sum(jnp.where(mask_BT & (after_BT == 1), read_BT, 0.0), axis=1)
