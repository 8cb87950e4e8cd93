"""Optimising against a learned reward: the proxy rises, the gold reward peaks and falls.

Paper: Gao, Schulman and Hilton 2210.10760, figures 1 and 2; Stiennon et al. 2009.01325, figure 5.
Claim: gold reward as a function of d = √KL follows d(α − βd) for best-of-n and d(α − β·log d) for
reinforcement learning; a better reward model has the smaller β.
Criterion: in a seed, PPO against a linear reward model ends at least .5 SD of gold below its peak,
and the better of the two forms fits its curve with R² ≥ .9. Over all seeds: the mean proxy never
falls by more than .01 SD from one evaluation to the next; β of best-of-n's mean curve is at least
1.5 times as large with the linear model as with the layer of 32. Which form wins is not asked.
PPO has no KL penalty; KL, proxy and gold are exact sums over all responses.

    python -m experiments.figures.overoptimisation     (about 4 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from experiments.figures.drawing import STYLES, curve, name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.language import (
    PPO,
    best_of_n,
    draw_pairs,
    exact,
    fit_proxy,
    make_language,
    run_ppo,
)
from rlhf_jax.algorithms.ppo import ppo

PROXIES = {"linear": None, "32 hidden": 32}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Pairs of the reward models, n of best-of-n evenly in log n, PPO's numbers."""

    pairs: int = 3000
    largest_n: float = 60_000
    points: int = 40
    ppo: PPO = field(default_factory=lambda: PPO(learning_rate=1e-4))


def forms(d: np.ndarray) -> dict[str, np.ndarray]:
    """The regressors of α and β in both forms; d > 0."""
    return {
        "d(α − βd)": np.stack([d, -(d**2)], axis=1),
        "d(α − β log d)": np.stack([d, -d * np.log(d)], axis=1),
    }


def fit(kl: np.ndarray, gold: np.ndarray) -> dict[str, tuple[float, float, float]]:
    """(α, β, R²) by least squares, each form, over points of KL > 0; gold is 0 at KL 0."""
    there = kl > 1e-3
    d, gold = np.sqrt(kl[there]), gold[there]
    found = {}
    for name, x in forms(d).items():
        (alpha, beta), *_ = np.linalg.lstsq(x, gold, rcond=None)
        error = ((gold - x @ [alpha, beta]) ** 2).sum()
        found[name] = (alpha, beta, 1 - error / ((gold - gold.mean()) ** 2).sum())
    return found


def measure(seed: int, settings: Settings) -> list[dict]:
    language = make_language(seed)
    pair_BS = draw_pairs(language, language.gold_N, settings.pairs, seed, noisy=False)
    rows = []
    for name, hidden in PROXIES.items():
        proxy_N = fit_proxy(pair_BS, language, seed, hidden=hidden)
        for n in np.geomspace(1, settings.largest_n, settings.points):
            kl, gold = best_of_n(proxy_N, language, n, language.gold_N)
            _, proxy = best_of_n(proxy_N, language, n, proxy_N)
            rows.append(dict(method="BoN", model=name, n=n, kl=kl, gold=gold, proxy=proxy))
        for at, _, params in run_ppo(ppo(kl_coef=None), language, proxy_N, seed, settings.ppo):
            of = exact(params, language, gold=language.gold_N, proxy=proxy_N)
            rows.append(dict(method="PPO", model=name, rollout=at, **of))
    return rows


def judge(rows: list[Row]) -> dict[str, Part]:
    of = pick(rows, method="PPO", model="linear")
    kl, gold = (np.array([row[name] for row in of]) for name in ("kl", "gold"))
    fall = gold.max() - gold[-1]
    best = max(r2 for _, _, r2 in fit(kl, gold).values())
    return {
        "fall of gold from its peak, PPO": Part(fall, "≥ .5 SD", fall >= 0.5),
        "R² of the better form, PPO": Part(best, "≥ .9", best >= 0.9),
    }


def judge_all(rows_by_seed: dict[int, list[Row]]) -> dict[str, Part]:
    rows = [row for of_seed in rows_by_seed.values() for row in of_seed]
    _, proxy, _ = curve(pick(rows, method="PPO", model="linear"), "rollout", "proxy")
    beta = {}
    for name in PROXIES:
        at, gold, _ = curve(pick(rows, method="BoN", model=name), "kl", "gold")
        beta[name] = fit(at, gold)["d(α − βd)"][1]
    ratio, step = beta["linear"] / beta["32 hidden"], np.diff(proxy).min()
    return {
        "least step of the mean proxy": Part(step, "≥ −.01 SD", step >= -0.01),
        "β(linear)/β(32 hidden), best-of-n": Part(ratio, "≥ 1.5", ratio >= 1.5),
    }


def draw(canvas, rows: list[Row]) -> None:
    bon, runs, steps = panels(canvas, 3)
    for style, name in enumerate(PROXIES):
        of = pick(rows, method="BoN", model=name)
        plot_curve(bon, of, "kl", "gold", f"gold, {name}", 2 * style)
        plot_curve(bon, of, "kl", "proxy", f"proxy, {name}", 2 * style + 1)
        of = pick(rows, method="PPO", model=name)
        for i, seed in enumerate(sorted({row["seed"] for row in of})):
            of_seed = pick(of, seed=seed)
            label = f"gold, {name}, each seed" if i == 0 else None
            look = {**STYLES[2 * style], "marker": ""}
            kl, gold = ([row[k] for row in of_seed] for k in ("kl", "gold"))
            runs.plot(np.sqrt(kl), gold, label=label, linewidth=1.0, **look)
        plot_curve(steps, of, "rollout", "gold", f"gold, {name}", 2 * style)
        plot_curve(steps, of, "rollout", "proxy", f"proxy, {name}", 2 * style + 1)
    name_axes(bon, "Best-of-n", "KL to the reference (nats)", "reward (SD of the reference)")
    name_axes(runs, "PPO without a KL penalty", "√KL (√nats)", "gold reward (SD)")
    name_axes(steps, "PPO without a KL penalty", "rollout", "reward (SD of the reference)")


FIGURE = Figure(
    name="overoptimisation",
    title="Reward-model overoptimisation",
    paper="Gao et al. 2210.10760, figures 1 and 2; Stiennon et al. 2009.01325, figure 5",
    claim="the proxy rises throughout while gold peaks and falls, as d(α − βd) or d(α − β log d) "
    "of d = √KL; a better reward model has the smaller β",
    criterion="PPO's gold ends ≥ .5 SD below its peak, R² of the better form ≥ .9; the mean proxy "
    "rises throughout; β(linear)/β(32 hidden) ≥ 1.5",
    settings=Settings(),
    measure=measure,
    judge=judge,
    judge_all=judge_all,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
