"""Bias and variance of policy-gradient estimators on a bandit whose gradient is known.

Paper: REINFORCE, ReMax (2310.10505), RLOO (2402.14740), GRPO (2402.03300), Dr. GRPO (2503.20783).
Claim: a baseline cuts the variance by an order of magnitude; a mean that holds the sample itself
shrinks the gradient to (G − 1)/G of the true one, leaving it out (RLOO) does not; dividing by the
group's standard deviation turns the gradient into another direction.
Criterion, in a seed: scale on the true gradient .75 ± .01 (G = 4) and .875 ± .01 (G = 8) for the
mean baseline; |z| < 5 for REINFORCE, ReMax, RLOO and the true value; total variance of REINFORCE
over that of RLOO > 20 at both G; cosine of GRPO's mean gradient with the true one < .99 at G = 4.
The arms' rewards and the policy are drawn anew for each seed.
Seeds 10 to 14: three hold, so it does not. The parts on bias hold in all five; how much a baseline
saves, and how far GRPO's gradient turns, depend on the bandit, and miss their bounds in one each.

    python -m experiments.figures.gradient_variance     (about 20 s on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures.drawing import bars, name_axes, panels, pick
from experiments.figures.frame import Figure, Part, main
from rlhf_jax.advantages import (
    gae,
    greedy_baseline,
    group_centre,
    group_norm,
    leave_one_out,
    reward_to_go,
)
from rlhf_jax.types import Scored

ESTIMATORS = {
    "REINFORCE": reward_to_go,
    "ReMax": greedy_baseline,
    "mean": group_centre,
    "RLOO": leave_one_out,
    "true value": gae,
    "GRPO": group_norm,
}
UNBIASED = ("REINFORCE", "ReMax", "RLOO", "true value")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Arms of the bandit, group sizes, and how many groups are drawn, a chunk at a time."""

    arms: int = 10
    group_sizes: tuple[int, ...] = (4, 8)
    groups: int = 200_000
    chunk: int = 10_000


def group_gradients(fn, logits_V, reward_V, arm_B, group_size: int):
    """[groups, arms]: each group's estimate of ∇E[reward] by the logits, G rows a group."""
    rows = arm_B.shape[0]
    pi_V = jax.nn.softmax(logits_V)
    score_B = reward_V[arm_B]
    ones_B1 = jnp.ones((rows, 1), bool)
    scored = Scored(
        score_BC=score_B[:, None],
        valid_BC=ones_B1,
        group_B=jnp.arange(rows) // group_size,
        mask_BT=ones_B1,
        truncated_B=jnp.zeros(rows, bool),
        value_BT=jnp.full((rows, 1), jnp.sum(pi_V * reward_V)),
        baseline_B=jnp.full((rows,), reward_V[jnp.argmax(logits_V)]),
    )
    advantage_B = fn(scored, score_B[:, None])[:, 0]
    gradient_BV = advantage_B[:, None] * (jax.nn.one_hot(arm_B, len(pi_V)) - pi_V[None])
    return gradient_BV.reshape(-1, group_size, len(pi_V)).mean(axis=1)


@partial(jax.jit, static_argnames=("fn", "group_size", "groups"))
def chunk_moments(key, logits_V, reward_V, *, fn, group_size: int, groups: int):
    """Mean and variance, by component, of the gradients of `groups` groups."""
    arm_B = jax.random.categorical(key, logits_V, shape=(groups * group_size,))
    gradient_NV = group_gradients(fn, logits_V, reward_V, arm_B, group_size)
    mean_V = gradient_NV.mean(axis=0)
    return mean_V, jnp.mean((gradient_NV - mean_V[None]) ** 2, axis=0)


def moments(fn, logits_V, reward_V, group_size: int, seed: int, settings: Settings):
    """Mean and variance, by component, of a group's gradient over all chunks."""
    key, size = jax.random.key(seed), dict(group_size=group_size, groups=settings.chunk)
    each = [
        chunk_moments(jax.random.fold_in(key, i), logits_V, reward_V, fn=fn, **size)
        for i in range(settings.groups // settings.chunk)
    ]
    means, variances = (np.asarray(x, np.float64) for x in zip(*each, strict=True))
    return means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)


def measure(seed: int, settings: Settings) -> list[dict]:
    draw = np.random.default_rng(seed)
    logits_V = jnp.asarray(draw.normal(size=settings.arms), jnp.float32)
    reward_V = jnp.asarray(draw.normal(5.0, 1.0, settings.arms), jnp.float32)
    true_V = np.asarray(jax.grad(lambda x: jnp.sum(jax.nn.softmax(x) * reward_V))(logits_V))
    true_V = true_V.astype(np.float64)
    rows = []
    for group_size in settings.group_sizes:
        for name, fn in ESTIMATORS.items():
            mean_V, var_V = moments(fn, logits_V, reward_V, group_size, seed, settings)
            norms = np.linalg.norm(mean_V) * np.linalg.norm(true_V)
            z_V = (mean_V - true_V) / np.sqrt(var_V / settings.groups)
            rows.append(
                dict(
                    G=group_size,
                    name=name,
                    scale=mean_V @ true_V / (true_V @ true_V),
                    cosine=mean_V @ true_V / norms,
                    z=np.abs(z_V).max(),
                    variance=var_V.sum(),
                )
            )
    return rows


def judge(rows: list[dict]) -> dict[str, Part]:
    parts = {}
    for group_size, scale in ((4, 0.75), (8, 0.875)):
        got = pick(rows, G=group_size, name="mean")[0]["scale"]
        held = abs(got - scale) <= 0.01
        parts[f"scale, mean baseline, G = {group_size}"] = Part(got, f"{scale} ± .01", held)
    z = max(row["z"] for row in rows if row["name"] in UNBIASED)
    parts["|z| of the unbiased"] = Part(z, "< 5", z < 5)
    ratio = min(
        pick(rows, G=g, name="REINFORCE")[0]["variance"]
        / pick(rows, G=g, name="RLOO")[0]["variance"]
        for g in (4, 8)
    )
    parts["var(REINFORCE)/var(RLOO)"] = Part(ratio, "> 20", ratio > 20)
    cosine = pick(rows, G=4, name="GRPO")[0]["cosine"]
    parts["cosine, GRPO, G = 4"] = Part(cosine, "< .99", cosine < 0.99)
    return parts


def draw(canvas, rows: list[dict]) -> None:
    columns = (
        ("variance", "total variance of a group's gradient", "Variance", True),
        ("scale", "projection on the true gradient", "Scale", False),
        ("cosine", "cosine with the true gradient", "Direction", False),
    )
    for axes, (column, y, title, log) in zip(panels(canvas, 3, width=4.6), columns, strict=True):
        of = [[r[column] for r in pick(rows, G=4, name=name)] for name in ESTIMATORS]
        bars(axes, list(ESTIMATORS), of)
        axes.tick_params(axis="x", rotation=30)
        if log:
            axes.set_yscale("log")
        elif column == "cosine":
            axes.set_ylim(0.8, 1.01)
        name_axes(axes, f"{title}, G = 4", "estimator", y, legend=False)


FIGURE = Figure(
    name="gradient_variance",
    title="Gradient bias and variance of the baselines",
    paper="2310.10505, 2402.14740, 2402.03300, 2503.20783",
    claim="a baseline cuts the variance by an order of magnitude; one that holds the sample itself "
    "shrinks the gradient by (G − 1)/G; dividing by the group's std turns it",
    criterion="scale .75/.875 ± .01; unbiased |z| < 5; var(REINFORCE)/var(RLOO) > 20; GRPO's "
    "cosine < .99 at G = 4",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
