"""From prompts to a full batch of judged responses, and from a batch to optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from rlhf_jax.loops.common import step_key
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.rewards.compose import reward_names, score_completions
from rlhf_jax.types import PolicyBatch, Prompts, Rollout, replace, take_rows


class Judged(NamedTuple):
    """Texts and scores of a rollout, row by row, on the host."""

    prompts: list[str]
    completions: list[str]
    score_BC: np.ndarray
    valid_BC: np.ndarray

    def take(self, rows: np.ndarray) -> Judged:
        prompts, completions = ([column[b] for b in rows] for column in self[:2])
        return Judged(prompts, completions, self.score_BC[rows], self.valid_BC[rows])

    @classmethod
    def join(cls, parts: list[Judged]) -> Judged:
        prompts, completions, scores, valids = zip(*parts, strict=True)
        return cls(
            list(chain.from_iterable(prompts)),
            list(chain.from_iterable(completions)),
            np.concatenate(scores),
            np.concatenate(valids),
        )

    def records(self, rewards) -> list[dict[str, Any]]:
        """One dict a row, as samples.jsonl holds them; a score that does not apply is None."""
        return [
            {
                "prompt": prompt,
                "completion": completion,
                **{
                    name: float(score) if valid else None
                    for name, score, valid in zip(
                        reward_names(rewards), self.score_BC[b], self.valid_BC[b], strict=True
                    )
                },
            }
            for b, (prompt, completion) in enumerate(
                zip(self.prompts, self.completions, strict=True)
            )
        ]


def judge(cfg, tokenizer: Tokenizer, prompts: Prompts, rollout: Rollout) -> Judged:
    """Decode each row's sampled ids and call the reward functions of an `OnlineConfig`.

    Raises:
        ConfigError: a reward function broke its contract; see `rewards.compose`.
    """
    tokens_BT, mask_BT = to_host((rollout.tokens_BT, rollout.mask_BT))
    num_samples = len(tokens_BT) // len(prompts.rows)
    texts, completions, rows = [], [], []
    for b, (tokens_T, mask_T) in enumerate(zip(tokens_BT, mask_BT, strict=True)):
        p = b // num_samples
        prompt_ids = prompts.tokens_PL[p][prompts.attend_PL[p]].tolist()
        texts.append(prompts.texts[p])
        rows.append(dict(prompts.rows[p]))  # a reward function may do with it as it likes
        completions.append(tokenizer.decode_completion(prompt_ids, tokens_T[mask_T].tolist()))
    return Judged(
        texts, completions, *score_completions(cfg.rewards, cfg.weights, texts, completions, rows)
    )


def fill_batch(
    cfg, draw: Callable[[int], tuple[Prompts, Rollout]], tokenizer: Tokenizer
) -> tuple[Rollout, Judged, int]:
    """Draw until P groups are kept, as DAPO's dynamic sampling asks (2503.14476, eq. 11).

    `objective.keep_group` judges the scores before shaping. Kept groups are collected in the
    order drawn; after `cfg.max_resample` draws the rest is filled with groups that were not kept,
    which the label step masks, so shapes never change. Without `keep_group`, one draw is the batch.

    Args:
        cfg: an `OnlineConfig`.
        draw: attempt -> prompts and their rollout, other prompts each time.

    Returns:
        the rollout of P groups, its judgement, and the number of draws.
    """
    keep_group = cfg.objective.keep_group
    rollouts, judged, kept = [], [], []
    while True:
        prompts, rollout = draw(len(kept))
        found = judge(cfg, tokenizer, prompts, rollout)
        if keep_group is None:
            return rollout, found, 1
        score_B = np.where(found.valid_BC, found.score_BC, 0).sum(axis=1)
        keep_B = keep_group(score_B, rollout.group_B, found.valid_BC.any(axis=1))
        rollouts.append(to_host(rollout))
        judged.append(found)
        kept.append(to_host(keep_B))
        full = sum(keep_B.sum() for keep_B in kept) >= cfg.rows
        if full or len(kept) == cfg.max_resample:
            break
    # stable: kept rows first, either kind in the order drawn, groups whole
    rows = np.argsort(~np.concatenate(kept), kind="stable")[: cfg.rows]
    rollout = jax.tree.map(lambda *parts: np.concatenate(parts)[rows], *rollouts)
    group_B = np.repeat(np.arange(cfg.num_prompts, dtype=np.int32), cfg.sampling.num_samples)
    return replace(rollout, group_B=group_B), Judged.join(judged).take(rows), len(kept)


def minibatches(cfg, batch: PolicyBatch, step: int) -> Iterator[PolicyBatch]:
    """μ passes over the rollout, rows permuted anew in each, cut into optimizer updates."""
    for epoch in range(cfg.num_epochs):
        if cfg.update_rows == cfg.rows:
            yield batch
            continue
        order_B = jax.random.permutation(step_key(cfg.seed, step, "shuffle", epoch), cfg.rows)
        for start in range(0, cfg.rows, cfg.update_rows):
            yield take_rows(batch, order_B[start : start + cfg.update_rows])
