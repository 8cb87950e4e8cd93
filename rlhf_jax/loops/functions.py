"""The jitted functions of an online config: what is planned and benchmarked is what runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.algorithms.objective import PolicyObjective, estimate
from rlhf_jax.loops.dialogues import DialogueSampler
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import row_shards, shard_rows
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.train.layout import Layout, Sizes, lay_out
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.scoring import make_score
from rlhf_jax.train.steps import make_update
from rlhf_jax.types import PolicyBatch, Prompts, Rollout, Scored


@dataclass(frozen=True)
class Functions:
    """What the loop calls, each compiled once.

    sample, answer, greedy: (params, prompts, key) -> Rollout; G samples a prompt, held-out
        answers, the most likely answer (a baseline of ReMax)
    score: (policy, reference, critic, rollout, layout) -> what models give of `Scored`
    label: (objective, rollout, scores, values) -> PolicyBatch, metrics
    update: (state, objective, batch, layout) -> state, metrics
    lay_out: (rollout or batch) -> what is run of it, and how, or None: each row with its prompt;
        absent where the update is of pairs
    """

    sample: Callable[[Any, Prompts, jax.Array], Rollout]
    answer: Callable[[Any, Prompts, jax.Array], Rollout]
    greedy: Callable[[Any, Prompts, jax.Array], Rollout]
    score: Callable
    label: Callable
    update: Callable
    lay_out: Callable[[Rollout | PolicyBatch], Layout | None] | None = None


def build(
    cfg,
    model: Model,
    *,
    end_ids: tuple[int, ...],
    pad_id: int,
    mesh: Mesh,
    critic_model: Model | None = None,
    tokenizer: Tokenizer | None = None,
) -> tuple[Functions, tuple]:
    """The functions of an `OnlineConfig`, and the optimizers of policy and critic (or None).

    Args:
        cfg: the config.
        model: decoder of policy and reference.
        end_ids, pad_id: of the tokenizer.
        mesh: where everything lives.
        critic_model: decoder of the critic's trunk; None: `model`.
        tokenizer: reads and writes dialogues, where the config has an environment.
    """
    total = cfg.num_steps * cfg.updates_per_step
    tx = make_optimizer(cfg.optim, total)
    critic_tx = make_optimizer(cfg.critic_optim, total) if cfg.objective.needs_critic else None
    shared = dict(
        temperature=cfg.sampling.trainer_temperature, critic_model=critic_model or model, mesh=mesh
    )

    sampler_of = samplers(
        cfg, model, end_ids=end_ids, pad_id=pad_id, mesh=mesh, tokenizer=tokenizer
    )
    number = cfg.evaluation.num_samples
    answering = replace(cfg.sampling, num_samples=number, **cfg.evaluation.decoding())
    greedily = cfg.sampling.greedily()
    answer = sampler_of(answering)
    functions = Functions(
        sample=sampler_of(cfg.sampling),
        answer=answer,
        greedy=answer if greedily == answering else sampler_of(greedily),
        score=make_score(model, micro_rows=cfg.micro_rows, **shared),
        label=jax.jit(label),
        update=make_update(model, tx, micro_rows=cfg.micro_rows, critic_tx=critic_tx, **shared),
        lay_out=partial(lay_out_rows, cfg, mesh),
    )
    return functions, (tx, critic_tx)


def samplers(
    cfg,
    model: Model,
    *,
    end_ids: tuple[int, ...],
    pad_id: int,
    mesh: Mesh,
    tokenizer: Tokenizer | None = None,
) -> Callable[[SamplingConfig], Callable[[Any, Prompts, jax.Array], Rollout]]:
    """sampling -> sample(params, prompts, key): single answers, or dialogues where `cfg.dialogue`
    names an environment. Arguments as in `build`."""
    if cfg.dialogue is None:
        return partial(prompt_sampler, model, end_ids=end_ids, pad_id=pad_id, mesh=mesh)
    return partial(
        DialogueSampler,
        model,
        config=cfg.dialogue,
        tokenizer=tokenizer,
        errors=cfg.reward_errors,
        mesh=mesh,
    )


def prompt_sampler(
    model: Model,
    sampling: SamplingConfig,
    *,
    end_ids: tuple[int, ...],
    pad_id: int,
    mesh: Mesh,
) -> Callable[[Any, Prompts, jax.Array], Rollout]:
    """sample(params, prompts, key) -> Rollout: `make_sampler` on a mesh, from the host's record."""
    draw = make_sampler(model, sampling, end_ids=end_ids, pad_id=pad_id)

    def sample(params, prompts, key):
        arrays = (prompts.tokens_PL, prompts.attend_PL, prompts.id_P)
        return draw(params, *shard_rows(mesh, arrays), key)

    return sample


def lay_out_rows(cfg, mesh: Mesh, part: Rollout | PolicyBatch) -> Layout | None:
    """Where the responses of a rollout, or of some rows of its labels, are run over their prompts.

    Of labels, rows that nothing is asked of are left out: those without a counted token, and those
    whose advantage is 0 where no other term of the loss touches them. The weights of the others
    are taken from the whole batch all the same. -> None where `cfg.share_prompts` is off.
    """
    if not cfg.share_prompts:
        return None
    mask_BT, group_B = to_host((part.mask_BT, part.group_B))
    if isinstance(part, PolicyBatch) and not cfg.objective.idle_rows_teach:
        advantage_BT, logp_BT = to_host((part.advantage_BT, part.logp_full_BT))
        # NaN differs from 0: such a row is run, and blamed; and so is one that broken weights drew
        asked_BT = (advantage_BT != 0) | ~np.isfinite(logp_BT)
        mask_BT = mask_BT & asked_BT.any(axis=1, keepdims=True)
    sampling, (rows, columns) = cfg.sampling, mask_BT.shape
    sizes = Sizes.of(
        rows,
        cfg.num_prompts,
        sampling.num_samples,
        columns - sampling.max_prompt_tokens,
        micro_rows=cfg.micro_rows,
        shards=row_shards(mesh),
    )
    return lay_out(mask_BT, group_B, sizes, prompt_columns=sampling.max_prompt_tokens)


def label(
    objective: PolicyObjective,
    rollout: Rollout,
    scores: dict[str, jax.Array],
    values: dict[str, jax.Array | None],
) -> tuple[PolicyBatch, dict[str, jax.Array]]:
    """Advantages, returns and the final mask of a rollout, beside its tokens.

    Args:
        objective: the algorithm.
        rollout: what was drawn.
        scores: the fields of `Scored` that reward functions give: score_BC, valid_BC, and those
            that only some objectives read.
        values: what the models say of it, as `train.scoring.make_score` returns it.
    """
    scored = Scored(
        group_B=rollout.group_B,
        mask_BT=rollout.mask_BT,
        truncated_B=rollout.truncated_B,
        logp_sampler_BT=rollout.logp_sampler_BT,
        logp_full_BT=rollout.logp_full_BT,
        entropy_BT=rollout.entropy_BT,
        **scores,
        **values,
    )
    labels = estimate(objective, scored)
    metrics = labels.metrics
    if objective.reward_kl is not None and objective.reward_kl.controller is not None:
        metrics = {**metrics, "kl_coef": objective.reward_kl.coef}
    batch = PolicyBatch(
        tokens_BT=rollout.tokens_BT,
        attend_BT=rollout.attend_BT,
        mask_BT=labels.mask_BT,
        group_B=rollout.group_B,
        advantage_BT=labels.advantage_BT,
        logp_old_BT=scored.logp_old_BT,
        logp_ref_BT=scored.logp_ref_BT,
        logp_full_BT=rollout.logp_full_BT,
        correction_BT=labels.correction_BT,
        value_old_BT=scored.value_BT,
        return_BT=labels.return_BT,
    )
    return batch, metrics
