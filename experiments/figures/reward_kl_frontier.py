"""Reward against KL: DPO, PPO and best-of-n beside the best that is possible.

Paper: DPO, 2305.18290, figure 2 (left); Ziegler et al. 1909.08593.
Claim of the paper: DPO's frontier dominates PPO's, even with PPO on the true reward.
Criterion, in a seed: no method lies above the exact optimum by more than .002; every frontier
rises with KL; at KL 1, 4 and 6 nats DPO has gained at least .8 of what is possible. The paper's
dominance counts as reproduced only if DPO's share of the optimum exceeds PPO's (true reward) by .05
at KL 1, 2 and 4; it is reported beside the verdict and was not reproduced in earlier pilots.

The language is enumerable: KL, rewards and the optimum, π_ref·exp(r/λ)/Z over λ, are exact. DPO and
the reward model see the same 4,000 Bradley–Terry pairs. A frontier is the running maximum over the
points of a method, interpolated in KL.

    python -m experiments.figures.reward_kl_frontier     (about 10 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from experiments.figures.drawing import STYLES, name_axes, panels, pick
from experiments.figures.frame import Figure, Part, Row, interval, main
from experiments.figures.language import (
    PPO,
    best_of_n,
    draw_pairs,
    exact,
    fit_proxy,
    make_language,
    run_ppo,
)
from experiments.figures.likelihood_displacement import SPREAD, reward_of, train_pairs
from experiments.figures.likelihood_displacement import Settings as Pairs
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.algorithms.ppo import ppo

OPTIMUM, DPO = "optimum", "DPO"
PPO_TRUE, PPO_LEARNED, BON = "PPO, true reward", "PPO, learned reward", "best-of-n, learned"
METHODS = (OPTIMUM, DPO, PPO_TRUE, PPO_LEARNED, BON)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """DPO's β, PPO's KL targets (nats), and how the runs are cut."""

    betas: tuple[float, ...] = (0.05, 0.1, 0.3, 0.5, 1.0, 5.0)
    targets: tuple[float, ...] = (1.0, 2.0, 4.0, 7.0)
    kl_coef: float = 0.1
    pairs: Pairs = field(default_factory=Pairs)
    ppo: PPO = field(default_factory=PPO)


def optimum(language, reward_N: np.ndarray) -> list[tuple[float, float]]:
    """(KL, E[reward]) of π_ref·exp(r/λ)/Z: no policy has more reward at that KL."""
    points = []
    for scale in np.geomspace(0.3, 300, 120):
        logit_N = language.logp_N + scale * (reward_N - 1)
        p_N = np.exp(logit_N - logit_N.max())
        p_N /= p_N.sum()
        kl = (p_N * (np.log(np.maximum(p_N, 1e-300)) - language.logp_N)).sum()
        points.append((kl, (p_N * reward_N).sum()))
    return points


def measure(seed: int, settings: Settings) -> list[dict]:
    language = make_language(seed)
    reward_N = reward_of(language)
    base = (language.p_N * reward_N).sum()
    count = settings.pairs.pairs
    pair_BS = draw_pairs(language, SPREAD * language.utility_N, count, seed, noisy=True)
    proxy_N = fit_proxy(pair_BS, language, seed, hidden=32)
    rows = [dict(method=m, kl=0.0, reward=base, setting="reference") for m in METHODS]

    def add(method, setting, kl, reward):
        rows.append(dict(method=method, setting=setting, kl=kl, reward=reward))

    for kl, reward in optimum(language, reward_N):
        add(OPTIMUM, "", kl, reward)
    for n in np.geomspace(1.2, 60_000, 40):
        add(BON, f"n {n:.3g}", *best_of_n(proxy_N, language, n, reward_N))
    for beta in settings.betas:
        runs = train_pairs(dpo(beta=beta), language, pair_BS, seed, settings.pairs)
        for _, params in runs:
            add(DPO, f"β {beta:g}", **exact(params, language, reward=reward_N))
    rows_of_ppo = settings.ppo.rows
    for method, score_N in ((PPO_TRUE, reward_N), (PPO_LEARNED, proxy_N)):
        for target in settings.targets:
            objective = ppo(
                kl_coef=settings.kl_coef,
                kl_target=target,
                kl_horizon=rows_of_ppo,
                kl_batch=rows_of_ppo,
            )
            *_, (_, _, params) = run_ppo(objective, language, score_N, seed, settings.ppo)
            add(method, f"target {target:g}", **exact(params, language, reward=reward_N))
    return rows


def frontier(rows: list[Row], method: str, at: np.ndarray) -> np.ndarray:
    """Reward at these KLs: the running maximum over the method's points, interpolated in KL."""
    of = sorted(pick(rows, method=method), key=lambda row: row["kl"])
    kl = np.array([row["kl"] for row in of])
    return np.interp(at, kl, np.maximum.accumulate([row["reward"] for row in of]))


def shares(rows: list[Row], method: str, at: np.ndarray) -> np.ndarray:
    """Gain over the reference as a share of the optimum's, at these KLs."""
    base = frontier(rows, OPTIMUM, np.zeros(1))[0]
    return (frontier(rows, method, at) - base) / (frontier(rows, OPTIMUM, at) - base)


def judge(rows: list[Row]) -> dict[str, Part]:
    others = [row for row in rows if row["method"] != OPTIMUM]
    kl = np.array([row["kl"] for row in others])
    above = max(np.array([row["reward"] for row in others]) - frontier(rows, OPTIMUM, kl))
    parts = {"highest above the optimum": Part(above, "≤ .002", above <= 0.002)}
    levels = np.array([1.0, 2.0, 4.0, 6.0])
    rise = min(np.diff(frontier(rows, method, levels)).min() for method in METHODS)
    parts["least rise of a frontier"] = Part(rise, "≥ 0", rise >= 0)
    for level, share in zip(levels, shares(rows, DPO, levels), strict=True):
        if level != 2.0:
            parts[f"DPO's share of the optimum, KL {level:g}"] = Part(share, "≥ .8", share >= 0.8)
    return parts


def note(rows_by_seed: dict[int, list[Row]]) -> str:
    """Whether DPO dominates PPO on the true reward."""
    levels = np.array([1.0, 2.0, 4.0])
    leads = [shares(r, DPO, levels) - shares(r, PPO_TRUE, levels) for r in rows_by_seed.values()]
    held = sum(bool((lead >= 0.05).all()) for lead in leads)
    said = ", ".join(
        f"{mean:+.3f} ± {half:.3f} at KL {level:g}"
        for level, (mean, half) in zip(levels, map(interval, np.transpose(leads)), strict=True)
    )
    word = "reproduced" if held >= 0.8 * len(leads) else "not reproduced"
    return (
        f"DPO dominates PPO on the true reward: {word} ({held} of {len(leads)} seeds). DPO's share "
        f"of the optimum less PPO's: {said}."
    )


def draw(canvas, rows: list[Row]) -> None:
    left, right = panels(canvas, 2, width=5.4, height=4.0)
    seeds, at = sorted({row["seed"] for row in rows}), np.linspace(0, 7, 29)
    for style, method in enumerate(METHODS):
        look = STYLES[style]
        of = [frontier(pick(rows, seed=s), method, at) for s in seeds]
        mean, half = np.transpose([interval(x) for x in np.transpose(of)])
        left.plot(at, mean, label=method, markevery=4, markersize=4, **look)
        left.fill_between(
            at, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0
        )
        if method == OPTIMUM:
            continue
        of = [shares(pick(rows, seed=s), method, at[2:]) for s in seeds]
        mean = np.mean(of, axis=0)
        right.plot(at[2:], mean, label=method, markevery=4, markersize=4, **look)
    name_axes(left, "Frontiers, exact", "KL to the reference (nats)", "expected reward")
    name_axes(right, "Share of the possible gain", "KL to the reference (nats)", "share of optimum")


FIGURE = Figure(
    name="reward_kl_frontier",
    title="Reward–KL frontier",
    paper="2305.18290, figure 2; 1909.08593",
    claim="DPO comes close to the best reward that is possible at a KL (and, in the paper, "
    "dominates PPO)",
    criterion="no method above the exact optimum by > .002; frontiers rise; DPO gains ≥ .8 of the "
    "possible at KL 1, 4 and 6",
    settings=Settings(),
    measure=measure,
    judge=judge,
    note=note,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
