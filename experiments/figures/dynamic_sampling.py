"""Dynamic sampling: only groups with right and wrong answers enter the update.

Paper: DAPO, 2503.14476, figures 3b and 6.
Claim: drawing until the batch is full of mixed groups reaches an accuracy in fewer gradient steps;
the share of groups that are all right, which teach nothing, grows during training.
Criterion, in a seed: at 160 gradient steps accuracy is at least .08 higher with dynamic sampling;
the share of all-right groups of what is drawn is higher in the last 20 steps than in the first 20.
At equal samples there was no gain in earlier pilots: the second panel shows it.

Running sums with a base that is right about one time in eight, 8 prompts × 4 samples: most groups
are degenerate. A step draws 64 prompts and takes the first 8 mixed ones; the samples counted are
those up to the eighth. Without dynamic sampling it takes the first 8, whatever they are.

    python -m experiments.figures.dynamic_sampling     (about 6 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.drawing import STYLES, name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.sums import (
    EQUALS,
    MODEL,
    Base,
    accuracy,
    base_policy,
    judge_outcome,
    prompt_batches,
    sampling,
)
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.loops.functions import label
from rlhf_jax.ops.groups import mixed_group
from rlhf_jax.rollout.sampler import make_sampler
from rlhf_jax.train.optim import OptimConfig, make_optimizer
from rlhf_jax.train.state import init_state
from rlhf_jax.train.steps import make_update
from rlhf_jax.types import Rollout, replace, take_rows

WITH, WITHOUT = "dynamic sampling", "first groups"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base policy, groups of a step and of what is drawn for it, steps."""

    base: Base = field(default_factory=lambda: Base(noise=0.62))
    prompts: int = 8
    drawn: int = 64
    group: int = 4
    steps: int = 160
    learning_rate: float = 2e-4
    every: int = 20
    window: int = 20


def choose(rollout: Rollout, score_B, settings: Settings, dynamic: bool):
    """(rows of the groups taken, samples drawn for them): the first, or the first mixed ones.

    Where fewer than `prompts` groups are mixed, the rest are the first that are not.
    """
    group, wanted = settings.group, settings.prompts
    mixed_P = mixed_group(score_B, rollout.group_B).reshape(-1, group)[:, 0]
    number_P = jnp.arange(len(mixed_P))
    late_P = jnp.where(mixed_P, 0, len(mixed_P)) if dynamic else jnp.zeros_like(number_P)
    taken_P = jnp.argsort(late_P + number_P)[:wanted]
    last = jnp.where(jnp.sum(mixed_P) >= wanted, taken_P[-1] + 1, len(mixed_P))
    samples = (last if dynamic else wanted) * group
    return (taken_P[:, None] * group + jnp.arange(group)[None]).reshape(-1), samples


@lru_cache
def _functions(settings: Settings, dynamic: bool):
    tx = make_optimizer(OptimConfig(learning_rate=settings.learning_rate), settings.steps)
    sample = make_sampler(MODEL, sampling(settings.group), end_ids=(), pad_id=EQUALS)
    update = make_update(MODEL, tx, temperature=1.0)
    objective = dapo()
    if not dynamic:
        objective = replace(objective, keep_group=None)
    none = dict.fromkeys(("logp_old_BT", "logp_ref_BT", "value_BT", "last_value_B"))

    @jax.jit
    def block(state, tokens_SPL, id_P, keys):
        def step(state, part):
            tokens_PL, key = part
            attend_PL = jnp.ones(tokens_PL.shape, bool)
            rollout = sample(state.policy, tokens_PL, attend_PL, id_P, key)
            score_B = judge_outcome(rollout)["score_BC"][:, 0]
            rows_B, samples = choose(rollout, score_B, settings, dynamic)
            taken = take_rows(rollout, rows_B)
            taken = replace(taken, group_B=jnp.arange(len(rows_B)) // settings.group)
            batch, _ = label(objective, taken, judge_outcome(taken), none)
            solved = score_B.reshape(-1, settings.group).all(axis=1).mean()
            return update(state, objective, batch)[0], (samples, solved)

        return jax.lax.scan(step, state, (tokens_SPL, keys))

    return jax.jit(lambda params: init_state(params, tx)), block


def measure(seed: int, settings: Settings) -> list[dict]:
    tokens_SPL, id_P = prompt_batches(seed, settings.steps, settings.drawn)
    keys, rows = jax.random.split(jax.random.key(seed), settings.steps), []
    for arm in (WITH, WITHOUT):
        start, block = _functions(settings, arm == WITH)
        state, drawn = start(base_policy(seed, settings.base)), 0
        rows.append(dict(arm=arm, step=0, samples=0, accuracy=accuracy(state.policy, seed)))
        for at in range(0, settings.steps, settings.every):
            part = slice(at, at + settings.every)
            state, (samples, solved) = block(state, tokens_SPL[part], id_P, keys[part])
            drawn += int(np.sum(samples))
            row = dict(arm=arm, step=at + settings.every, samples=drawn)
            row["accuracy"] = accuracy(state.policy, seed)
            rows.append(dict(**row, solved=np.mean(solved)))
    return rows


def judge(rows: list[Row]) -> dict[str, Part]:
    last = max(row["step"] for row in rows)
    gain = (
        pick(rows, arm=WITH, step=last)[0]["accuracy"]
        - pick(rows, arm=WITHOUT, step=last)[0]["accuracy"]
    )
    solved = [row["solved"] for row in pick(rows, arm=WITH) if row["step"] > 0]
    rise = solved[-1] - solved[0]
    return {
        "gain of accuracy at equal steps": Part(gain, "≥ .08", gain >= 0.08),
        "rise of the all-right share": Part(rise, "> 0", rise > 0),
    }


def note(rows_by_seed: dict[int, list[Row]]) -> str:
    """What dynamic sampling costs, and what is left of the gain at equal samples."""
    costs, gains = [], []
    for rows in rows_by_seed.values():
        of = {arm: pick(rows, arm=arm) for arm in (WITH, WITHOUT)}
        at = of[WITHOUT][-1]["samples"]
        costs.append(of[WITH][-1]["samples"] / at)
        there = np.interp(at, [r["samples"] for r in of[WITH]], [r["accuracy"] for r in of[WITH]])
        gains.append(there - of[WITHOUT][-1]["accuracy"])
    return (
        f"dynamic sampling draws {np.mean(costs):.1f} times the samples; at equal samples its "
        f"accuracy differs by {np.mean(gains):+.3f} (mean over seeds)."
    )


def draw(canvas, rows: list[Row]) -> None:
    steps, samples, solved = panels(canvas, 3)
    seeds = sorted({row["seed"] for row in rows})
    for style, arm in enumerate((WITH, WITHOUT)):
        of = pick(rows, arm=arm)
        plot_curve(steps, of, "step", "accuracy", arm, style)
        plot_curve(solved, [r for r in of if r["step"] > 0], "step", "solved", arm, style)
        for i, seed in enumerate(seeds):
            of_seed, label = pick(of, seed=seed), f"{arm}, each seed" if i == 0 else None
            look = {**STYLES[style], "markersize": 3, "linewidth": 0.9}
            at = [row["samples"] for row in of_seed]
            samples.plot(at, [row["accuracy"] for row in of_seed], label=label, **look)
    name_axes(steps, "At equal updates", "gradient step", "held-out accuracy")
    name_axes(samples, "At equal samples", "samples drawn", "held-out accuracy")
    name_axes(solved, "Groups that are all right", "gradient step", "share of groups drawn")


FIGURE = Figure(
    name="dynamic_sampling",
    title="Dynamic sampling",
    paper="DAPO, 2503.14476, figures 3b and 6",
    claim="updates on mixed groups alone reach an accuracy in fewer gradient steps; all-right "
    "groups become more frequent during training",
    criterion="≥ .08 more accuracy at 160 gradient steps; the share of all-right groups rises",
    settings=Settings(),
    measure=measure,
    judge=judge,
    note=note,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
