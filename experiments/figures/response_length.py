"""Wrong answers grow longer under GRPO: which of its two normalisers does it?

Paper: Dr. GRPO, 2503.20783, figure 5, as a 2 × 2 of the length normaliser and the standard
deviation, with DAPO's token mean (2503.14476) beside it.
Claim: 1/|o| makes wrong answers longer without a gain in reward; without it they do not grow.
Criterion, in a seed (mean length of wrong answers, first 10 steps against the last 20): both arms
with 1/|o| grow by more than 80 % and end with wrong answers more than 15 tokens longer than right
ones; both arms with a constant, and DAPO, change by at most 40 % and end with a gap below 4; final
rewards differ by less than .05; dividing by the standard deviation changes the growth by less than
15 points.

A digit and "=" are answered by a digit, then filler, then the end; the filler's token says whether
the answer was right. That is needed: the advantages of a group sum to 0, so where nothing in the
context tells a wrong answer from a right one the bias cancels in expectation. Three earlier designs
without such a mark showed only drift. The reward looks at the answer's digit alone.

    python -m experiments.figures.response_length     (about 12 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.drawing import name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.runs import imitate, make_learner, outcome, small_model
from rlhf_jax.advantages import group_centre, group_norm
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import bind
from rlhf_jax.losses.aggregate import constant_length, sequence_mean
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import SFTBatch, replace

EQUALS, RIGHT, WRONG, END = 10, 11, 12, 13
PROMPT, CAP = 2, 26
MODEL = small_model(14, PROMPT + CAP)
PER_LENGTH = ("1/|o|, std (GRPO)", "1/|o|, no std")
CONSTANT = ("constant, std", "constant, no std (Dr. GRPO)", "token mean (DAPO)")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The base policy and the runs."""

    noise: float = 0.5
    mean_length: float = 8.0
    updates: int = 600
    rows: int = 128
    sft_rate: float = 3e-3
    prompts: int = 32
    group: int = 8
    steps: int = 150
    learning_rate: float = 1e-4
    first: int = 10
    last: int = 20


def objectives() -> dict[str, PolicyObjective]:
    """The 2 × 2, and DAPO's token mean (without its clip-higher and its filter)."""
    length = bind(sequence_mean), bind(constant_length, length=CAP)
    centre, norm = bind(group_centre), bind(group_norm)
    arms = [PolicyObjective(advantage=a, aggregate=n) for n in length for a in (norm, centre)]
    dapo_mean = replace(arms[0], aggregate=dapo().aggregate)
    return dict(zip((*PER_LENGTH, *CONSTANT), (*arms, dapo_mean), strict=True))


@lru_cache(maxsize=8)
def base_policy(seed: int, settings: Settings) -> Any:
    """Parameters after imitating answers that are random half of the time, of random length."""
    draw = np.random.default_rng([seed, 20])
    size = (settings.updates, settings.rows)
    digit = draw.integers(0, 10, size)
    answer = right_answer(digit)
    answer = np.where(draw.random(size) < settings.noise, draw.integers(0, 10, size), answer)
    filler = np.where(answer == right_answer(digit), RIGHT, WRONG)
    # with the answer and the end, at most CAP tokens
    count = np.minimum(draw.geometric(1 / settings.mean_length, size), CAP - 2)
    column = np.arange(PROMPT + CAP)
    at_end = PROMPT + 1 + count[..., None]
    tokens = np.where(column < at_end, filler[..., None], END)
    tokens[..., 0], tokens[..., 1], tokens[..., 2] = digit, EQUALS, answer
    attend = column <= at_end
    batches = SFTBatch(
        tokens_BT=jnp.asarray(tokens, jnp.int32),
        attend_BT=jnp.asarray(attend),
        mask_BT=jnp.asarray(attend & (column >= PROMPT)),
    )
    optim = OptimConfig(learning_rate=settings.sft_rate, schedule="linear")
    return imitate(MODEL, MODEL.init(jax.random.key(seed)), batches, optim)


def right_answer(digit):
    """The digit that answers a digit."""
    return (3 * digit + 1) % 10


@lru_cache
def _functions(settings: Settings):
    def judge_answer(rollout):
        right_B = rollout.tokens_BT[:, PROMPT] == right_answer(rollout.tokens_BT[:, 0])
        return outcome(right_B.astype(jnp.float32))

    start, step = make_learner(
        MODEL,
        SamplingConfig(num_samples=settings.group, max_new_tokens=CAP, max_prompt_tokens=PROMPT),
        judge_answer,
        optim=OptimConfig(learning_rate=settings.learning_rate, b2=0.95),
        steps=settings.steps,
        end_ids=(END,),
        pad_id=END,
    )

    @jax.jit
    def run(objective, state, tokens_SPL, keys):
        def one(state, part):
            tokens_PL, key = part
            id_P = jnp.arange(settings.prompts)
            state, batch = step(objective, state, tokens_PL, id_P, key)
            length_B, right_B = batch.rollout.mask_BT.sum(axis=1), batch.score_B
            of = lambda x_B: jnp.sum(x_B * length_B) / jnp.maximum(jnp.sum(x_B), 1)  # noqa: E731
            return state, (right_B.mean(), of(right_B), of(1 - right_B))

        return jax.lax.scan(one, state, (tokens_SPL, keys))[1]

    return start, run


def measure(seed: int, settings: Settings) -> list[dict]:
    start, run = _functions(settings)
    draw = np.random.default_rng([seed, 21])
    digit = draw.integers(0, 10, (settings.steps, settings.prompts))
    tokens_SPL = jnp.asarray(np.stack([digit, np.full_like(digit, EQUALS)], -1), jnp.int32)
    keys, rows = jax.random.split(jax.random.key(seed), settings.steps), []
    for arm, objective in objectives().items():
        state = start(objective, base_policy(seed, settings))
        columns = run(objective, state, tokens_SPL, keys)
        numbers = zip(*map(np.asarray, columns), strict=True)
        rows += [
            dict(arm=arm, step=s, reward=reward, right=right, wrong=wrong)
            for s, (reward, right, wrong) in enumerate(numbers)
        ]
    return rows


def _ends(rows: list[Row], settings: Settings) -> dict[str, dict[str, float]]:
    """Growth of wrong answers, the final gap in length, and the final reward, by arm."""
    found = {}
    for arm in dict.fromkeys(row["arm"] for row in rows):
        of = pick(rows, arm=arm)
        mean = lambda part, column: np.mean([row[column] for row in part])  # noqa: E731
        first, last = of[: settings.first], of[-settings.last :]
        found[arm] = {
            "growth": mean(last, "wrong") / mean(first, "wrong") - 1,
            "gap": mean(last, "wrong") - mean(last, "right"),
            "reward": mean(last, "reward"),
        }
    return found


def judge(rows: list[Row]) -> dict[str, Part]:
    of = _ends(rows, FIGURE.settings)
    growth = {arm: ends["growth"] for arm, ends in of.items()}
    gap = {arm: abs(ends["gap"]) for arm, ends in of.items()}
    least, most = min(growth[a] for a in PER_LENGTH), max(abs(growth[a]) for a in CONSTANT)
    wide, narrow = min(of[a]["gap"] for a in PER_LENGTH), max(gap[a] for a in CONSTANT)
    rewards = [ends["reward"] for ends in of.values()]
    std = max(
        abs(growth[PER_LENGTH[0]] - growth[PER_LENGTH[1]]),
        abs(growth[CONSTANT[0]] - growth[CONSTANT[1]]),
    )
    return {
        "least growth with 1/|o|": Part(least, "> .80", least > 0.80),
        "largest change without": Part(most, "≤ .40", most <= 0.40),
        "least gap with 1/|o|": Part(wide, "> 15 tokens", wide > 15),
        "largest gap without": Part(narrow, "< 4 tokens", narrow < 4),
        "range of rewards": Part(np.ptp(rewards), "< .05", np.ptp(rewards) < 0.05),
        "effect of the std on growth": Part(std, "< .15", std < 0.15),
    }


def draw(canvas, rows: list[Row]) -> None:
    columns = (
        ("wrong", "mean length (tokens)", "Wrong answers"),
        ("right", "mean length (tokens)", "Right answers"),
        ("reward", "share of right answers", "Reward"),
    )
    binned = [{**row, "step": 10 * (row["step"] // 10) + 5} for row in rows]
    arms = dict.fromkeys(row["arm"] for row in rows)
    means = []
    for arm in arms:
        for seed in dict.fromkeys(row["seed"] for row in rows):
            for step in dict.fromkeys(row["step"] for row in binned):
                of = pick(binned, arm=arm, seed=seed, step=step)
                mean = {c: np.mean([r[c] for r in of]) for c, _, _ in columns}
                means.append(dict(arm=arm, seed=seed, step=step, **mean))
    for axes, (column, unit, title) in zip(panels(canvas, 3), columns, strict=True):
        for style, arm in enumerate(arms):
            plot_curve(axes, pick(means, arm=arm), "step", column, arm, style)
        name_axes(axes, title, "step (means of ten)", unit, legend=column == "wrong")


FIGURE = Figure(
    name="response_length",
    title="Length bias of GRPO, and what removes it",
    paper="Dr. GRPO, 2503.20783, figure 5",
    claim="1/|o| makes wrong answers longer without a gain in reward; a constant or the token mean "
    "does not; the standard deviation has no part in it",
    criterion="with 1/|o| wrong answers grow > 80 % and end > 15 tokens longer than right ones; "
    "without, change ≤ 40 % and gap < 4; rewards within .05; std < 15 points",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
