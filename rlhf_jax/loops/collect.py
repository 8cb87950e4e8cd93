"""From prompts to a full batch of judged responses, and from a batch to optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np

from rlhf_jax.data.frontier import Frontier
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.dialogues import told_turns
from rlhf_jax.loops.process import step_columns
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.rewards.compose import reward_names, score_completions, score_steps
from rlhf_jax.types import PolicyBatch, Prompts, Rollout, replace, take_rows

_SECONDS = "reward_seconds/"


class Judged(NamedTuple):
    """Texts and scores of a rollout, row by row, on the host. What a run does not use is None.

    `watch_BC` are scores that are reported and not trained on. `baseline_B` is the score of the
    prompt's greedy answer; `step_end_BT` and `step_score_BT` are process rewards (see `Scored`);
    `costs` are the numbers of `rewards.compose.Scores`, `turns_B` how many each dialogue took.
    """

    prompts: list[str]
    completions: list[str]
    score_BC: np.ndarray
    valid_BC: np.ndarray
    watch_BC: np.ndarray | None = None
    watch_valid_BC: np.ndarray | None = None
    baseline_B: np.ndarray | None = None
    step_end_BT: np.ndarray | None = None
    step_score_BT: np.ndarray | None = None
    costs: dict[str, float] | None = None
    turns_B: np.ndarray | None = None

    @property
    def total_B(self) -> np.ndarray:
        """Σ over the functions that apply to a row; 0 where none does."""
        return np.where(self.valid_BC, self.score_BC, 0).sum(axis=1)

    def take(self, rows: np.ndarray) -> Judged:
        def column(x):
            if x is None or isinstance(x, dict):
                return x
            return [x[b] for b in rows] if isinstance(x, list) else x[rows]

        return Judged(*map(column, self))

    @classmethod
    def join(cls, parts: Sequence[Judged]) -> Judged:
        def column(xs):
            if isinstance(xs[0], list):
                return list(chain.from_iterable(xs))
            if isinstance(xs[0], dict):
                return {k: sum(x.get(k, 0.0) for x in xs) for k in dict.fromkeys(chain(*xs))}
            return None if xs[0] is None else np.concatenate(xs)

        return cls(*map(column, zip(*parts, strict=True)))

    def scores(self) -> dict[str, np.ndarray]:
        """The fields of `Scored` that come from reward functions."""
        fields = ("score_BC", "valid_BC", "baseline_B", "step_end_BT", "step_score_BT")
        return {name: x for name in fields if (x := getattr(self, name)) is not None}

    def table(self, rewards, watch=()) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Scores, where they apply, and a name for each column: trained on, then watched."""
        names = reward_names([*rewards, *watch])
        if self.watch_BC is None:
            return self.score_BC, self.valid_BC, names
        score_BC = np.concatenate([self.score_BC, self.watch_BC], axis=1)
        return score_BC, np.concatenate([self.valid_BC, self.watch_valid_BC], axis=1), names

    def records(self, rewards, watch=()) -> list[dict[str, Any]]:
        """One dict a row, as samples.jsonl holds them; a score that does not apply is None."""
        score_BC, valid_BC, names = self.table(rewards, watch)
        texts = zip(self.prompts, self.completions, strict=True)
        return [
            {
                "prompt": prompt,
                "completion": completion,
                **{
                    name: float(score) if valid else None
                    for name, score, valid in zip(names, score_BC[b], valid_BC[b], strict=True)
                },
            }
            for b, (prompt, completion) in enumerate(texts)
        ]

    def means(self, rewards, watch=()) -> dict[str, float]:
        """score/NAME of each function where several are trained on (times its weight), watch/NAME
        of the watched: means over the rows that it applies to; how many rows failed; and the mean
        number of turns of dialogues."""
        groups = [("watch", watch, self.watch_BC, self.watch_valid_BC)]
        if len(rewards) > 1:
            groups.append(("score", rewards, self.score_BC, self.valid_BC))
        told = {k: v for k, v in (self.costs or {}).items() if not k.startswith(_SECONDS)}
        if self.turns_B is not None:
            told["turns"] = float(self.turns_B.mean())
        return told | {
            f"{group}/{name}": float(score_BC[valid_BC[:, c], c].mean())
            for group, functions, score_BC, valid_BC in groups
            for c, name in enumerate(reward_names(functions))
            if valid_BC[:, c].any()
        }

    def seconds(self) -> dict[str, float]:
        """How long each function took: reward_seconds/NAME."""
        return {k: v for k, v in (self.costs or {}).items() if k.startswith(_SECONDS)}


def read_texts(
    tokenizer: Tokenizer, prompts: Prompts, rollout: Rollout
) -> tuple[list[str], list[str], list[dict[str, Any]]]:
    """Prompt, completion (decoded from the ids of the row) and dataset record of each row.

    Of a dialogue the completion is all that follows the prompt, observations too, and the record
    has its turns under "dialogue" (see `loops.dialogues.told_turns`).
    """
    rollout = to_host(rollout)
    length = prompts.tokens_PL.shape[1]
    own_BT = rollout.attend_BT & (np.arange(rollout.attend_BT.shape[1]) >= length)[None]
    num_samples = len(own_BT) // len(prompts.rows)
    texts, completions, rows = [], [], []
    for b, own_T in enumerate(own_BT):
        p = b // num_samples
        prompt_ids = prompts.tokens_PL[p][prompts.attend_PL[p]].tolist()
        own_ids = rollout.tokens_BT[b][own_T].tolist()
        texts.append(prompts.texts[p])
        rows.append(dict(prompts.rows[p]))  # a reward function may do with it as it likes
        completions.append(tokenizer.decode_completion(prompt_ids, own_ids))
        if rollout.turns is not None:
            rows[-1]["dialogue"] = told_turns(tokenizer, rollout, b)
    return texts, completions, rows


def judge(
    cfg,
    tokenizer: Tokenizer,
    prompts: Prompts,
    rollout: Rollout,
    *,
    watch: Sequence[Callable] = (),
    process_reward: Callable | None = None,
) -> Judged:
    """Decode each row's sampled ids and call the reward functions.

    Args:
        cfg: has `rewards`, their `weights` and `reward_errors`.
        tokenizer: decodes.
        prompts: P of them.
        rollout: G rows a prompt, in the order of the prompts.
        watch: further functions, whose scores are kept apart.
        process_reward: scores steps within a completion; see `rewards.compose.score_steps`.

    Raises:
        ConfigError: a reward function broke its contract; see `rewards.compose`.
    """
    texts, completions, rows = read_texts(tokenizer, prompts, rollout)
    asked = (texts, completions, rows)
    score_BC, valid_BC, costs = score_completions(
        cfg.rewards, cfg.weights, *asked, errors=cfg.reward_errors
    )
    judged = Judged(texts, completions, score_BC, valid_BC, costs=costs)
    if rollout.turns is not None:
        judged = judged._replace(turns_B=to_host(rollout.turns.end_BT).sum(axis=1))
    if watch:
        score_BC, valid_BC, costs = score_completions(watch, None, *asked, errors=cfg.reward_errors)
        judged = judged._replace(
            watch_BC=score_BC, watch_valid_BC=valid_BC, costs=judged.costs | costs
        )
    if process_reward is not None:
        steps = score_steps(process_reward, texts, completions, rows)
        columns = step_columns(tokenizer, prompts, rollout, completions, steps)
        judged = judged._replace(step_end_BT=columns[0], step_score_BT=columns[1])
    return judged


def fill_batch(
    cfg,
    draw: Callable[[int], tuple[Prompts, Rollout]],
    tokenizer: Tokenizer,
    *,
    greedy: Callable[[Prompts], Rollout] | None = None,
    frontier: Frontier | None = None,
) -> tuple[Rollout, Judged, int]:
    """Draw until P groups are kept, as DAPO's dynamic sampling asks (2503.14476, eq. 11).

    `objective.keep_group` judges the scores before shaping. Kept groups are collected in the
    order drawn; after `cfg.max_resample` draws the rest is filled with groups that were not kept,
    which the label step masks, so shapes never change. Without `keep_group`, one draw is the batch.

    Args:
        cfg: an `OnlineConfig`.
        draw: attempt -> prompts and their rollout, other prompts each time.
        tokenizer: decodes.
        greedy: prompts -> their most likely answers, one each; asked where the objective has its
            baseline from them (ReMax, 2310.10505). One that no function can score gives 0.
        frontier: is told of every draw, kept or not.

    Returns:
        the rollout of P groups, its judgement, and the number of draws.
    """
    keep_group = cfg.objective.keep_group
    rollouts, judged, kept = [], [], []
    while True:
        prompts, rollout = draw(len(kept))
        found = judge(
            cfg, tokenizer, prompts, rollout, watch=cfg.watch, process_reward=cfg.process_reward
        )
        if cfg.objective.needs_steps and rollout.turns is not None:
            turns = to_host(rollout.turns)
            found = found._replace(step_end_BT=turns.given_BT, step_score_BT=turns.score_BT)
        if greedy is not None:
            answers = judge(cfg, tokenizer, prompts, greedy(prompts))
            baseline_B = np.repeat(answers.total_B, cfg.sampling.num_samples)
            found = found._replace(baseline_B=baseline_B)
        valid_B = found.valid_BC.any(axis=1)
        if frontier is not None:
            frontier.note(prompts.id_P, found.total_B, valid_B)
        if keep_group is None:
            return rollout, found, 1
        keep_B = keep_group(found.total_B, rollout.group_B, valid_B)
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
