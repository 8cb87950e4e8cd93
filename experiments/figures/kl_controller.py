"""The adaptive KL controller holds its target; a fixed coefficient lands where it lands.

Paper: Ziegler et al. 1909.08593, section 2.2 (the form of the authors' code).
Claim: adapting β by the measured KL steers PPO to a chosen KL, whatever the reward model.
Criterion, in a seed: the mean KL of the last 60 of 150 rollouts within 15 % of each target, 1, 2
and 4 nats. Over all seeds: (largest − smallest)/mean below 10 % at each target, above 25 % with
β fixed at .3. PPO on an enumerable language with a reward model fitted to 4,000 Bradley–Terry
pairs; β starts at .3 and moves by at most 20 % a rollout. With a lucky seed the fixed β may land on
a target.

    python -m experiments.figures.kl_controller     (about 5 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from experiments.figures.drawing import bars, name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.language import PPO, draw_pairs, fit_proxy, make_language, run_ppo
from experiments.figures.likelihood_displacement import SPREAD
from rlhf_jax.algorithms.ppo import ppo

FIXED = "fixed β"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Targets in nats a response, the pairs of the reward model, PPO's numbers."""

    targets: tuple[float, ...] = (1.0, 2.0, 4.0)
    kl_coef: float = 0.3
    pairs: int = 4000
    window: int = 60
    ppo: PPO = field(default_factory=lambda: PPO(steps=150))


def objectives(settings: Settings) -> dict:
    """PPO for each target, and with a fixed β."""
    rows, coef = settings.ppo.rows, settings.kl_coef
    adaptive = {
        f"target {target:g}": ppo(kl_coef=coef, kl_target=target, kl_horizon=rows, kl_batch=rows)
        for target in settings.targets
    }
    return {**adaptive, FIXED: ppo(kl_coef=coef)}


def measure(seed: int, settings: Settings) -> list[dict]:
    language = make_language(seed)
    pair_BS = draw_pairs(language, SPREAD * language.utility_N, settings.pairs, seed, noisy=True)
    proxy_N, rows = fit_proxy(pair_BS, language, seed, hidden=32), []
    for name, objective in objectives(settings).items():
        runs = run_ppo(objective, language, proxy_N, seed, settings.ppo)
        kl_S = np.concatenate([kl_S for _, kl_S, _ in runs])
        mean = kl_S[-settings.window :].mean()
        rows += [dict(arm=name, rollout=s, kl=kl_S[s]) for s in range(len(kl_S))]
        rows.append(dict(arm=name, kind="end", kl=mean))
    return rows


def _ends(rows: list[Row]) -> dict[str, float]:
    return {row["arm"]: row["kl"] for row in pick(rows, kind="end")}


def judge(rows: list[Row]) -> dict[str, Part]:
    parts = {}
    for arm, kl in _ends(rows).items():
        if arm != FIXED:
            error = kl / float(arm.split()[1]) - 1
            parts[f"KL/target − 1, {arm}"] = Part(error, "± 15 %", abs(error) <= 0.15)
    return parts


def judge_all(rows_by_seed: dict[int, list[Row]]) -> dict[str, Part]:
    ends = [_ends(rows) for rows in rows_by_seed.values()]
    parts = {}
    for arm in ends[0]:
        kl = np.array([of_seed[arm] for of_seed in ends])
        spread = np.ptp(kl) / kl.mean()
        asked, held = ("> 25 %", spread > 0.25) if arm == FIXED else ("< 10 %", spread < 0.10)
        parts[f"spread over seeds, {arm}"] = Part(spread, asked, held)
    return parts


def draw(canvas, rows: list[Row]) -> None:
    left, right = panels(canvas, 2, width=5.2)
    arms = [row["arm"] for row in pick(rows, kind="end", seed=rows[0]["seed"])]
    curves = [row for row in rows if row.get("rollout") is not None]
    for style, arm in enumerate(arms):
        plot_curve(left, pick(curves, arm=arm), "rollout", "kl", arm, style)
        if arm != FIXED:
            left.axhline(float(arm.split()[1]), color="0.8", linewidth=0.8, zorder=0)
    name_axes(left, "PPO with a learned reward", "rollout", "KL to the reference (nats / response)")
    bars(right, arms, [[r["kl"] for r in pick(rows, kind="end", arm=arm)] for arm in arms])
    name_axes(right, "Mean of the last 60, each seed", "", "KL (nats / response)", legend=False)


FIGURE = Figure(
    name="kl_controller",
    title="Adaptive KL controller",
    paper="Ziegler et al. 1909.08593, section 2.2",
    claim="adapting β by the measured KL steers PPO to a chosen KL; a fixed β ends where the "
    "reward model takes it",
    criterion="mean KL of the last 60 rollouts within 15 % of 1, 2 and 4 nats; spread over seeds "
    "< 10 %, with fixed β > 25 %",
    settings=Settings(),
    measure=measure,
    judge=judge,
    judge_all=judge_all,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
