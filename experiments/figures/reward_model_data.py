"""A reward model's accuracy, and what best-of-n can get from it, against the pairs it saw.

Paper: Stiennon et al. 2009.01325, figure 6; Gao et al. 2210.10760, data scaling.
Claim: validation accuracy rises steadily with the number of comparisons, and with it the gold
reward that optimising against the model reaches.
Criterion, in a seed: accuracy rises from each of 100, 500, 2,500 and 12,500 pairs to the next, by
at least .03 in the first two steps; the peak of best-of-n's gold reward rises from each to the
next. Pairs of an enumerable language, labelled by gold; a reward model with one layer of 32.
Seeds 10 to 14: it does not hold. Accuracy rises at every step in all five (by .03 in the first two
in three). The gold peak falls at one step or two in every seed: from 100 to 500 pairs in three,
from 2,500 to 12,500 in four. Nothing was tuned afterwards.

    python -m experiments.figures.reward_model_data     (about 1 minute on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from experiments.figures.drawing import name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.language import best_of_n, draw_pairs, fit_proxy, make_language

HELD_OUT = 1_000_000  # added to the seed of held-out pairs


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Pairs seen, held-out pairs, and the n of best-of-n (evenly in log n)."""

    pairs: tuple[int, ...] = (100, 500, 2500, 12500)
    held_out: int = 20_000
    largest_n: float = 60_000
    points: int = 40
    hidden: int = 32
    updates: int = 600


def measure(seed: int, settings: Settings) -> list[dict]:
    language = make_language(seed)
    gold_N = language.gold_N
    held_out_BS = draw_pairs(language, gold_N, settings.held_out, HELD_OUT + seed, noisy=False)
    held_out_BS = held_out_BS[held_out_BS[:, 0] != held_out_BS[:, 1]]
    seen_BS = draw_pairs(language, gold_N, max(settings.pairs), seed, noisy=False)
    rows = []
    for pairs in settings.pairs:
        proxy_N = fit_proxy(
            seen_BS[:pairs], language, seed, hidden=settings.hidden, updates=settings.updates
        )
        right = proxy_N[held_out_BS[:, 0]] > proxy_N[held_out_BS[:, 1]]
        curve = [
            best_of_n(proxy_N, language, n, gold_N)
            for n in np.geomspace(1, settings.largest_n, settings.points)
        ]
        rows += [dict(kind="bon", pairs=pairs, kl=kl, gold=gold) for kl, gold in curve]
        peak = max(gold for _, gold in curve)
        rows.append(dict(kind="model", pairs=pairs, accuracy=right.mean(), peak=peak))
    return rows


def judge(rows: list[Row]) -> dict[str, Part]:
    of = sorted(pick(rows, kind="model"), key=lambda row: row["pairs"])
    gains = np.diff([row["accuracy"] for row in of])
    peaks = np.diff([row["peak"] for row in of])
    return {
        "least gain of accuracy": Part(gains.min(), "> 0", gains.min() > 0),
        "least gain, first two steps": Part(gains[:2].min(), "≥ .03", gains[:2].min() >= 0.03),
        "least gain of the gold peak": Part(peaks.min(), "> 0", peaks.min() > 0),
    }


def draw(canvas, rows: list[Row]) -> None:
    left, right = panels(canvas, 2, width=5.0)
    plot_curve(left, pick(rows, kind="model"), "pairs", "accuracy", "one hidden layer of 32", 0)
    left.set_xscale("log")
    name_axes(left, "Held-out accuracy", "pairs seen", "share of pairs ranked right", legend=False)
    for style, pairs in enumerate(sorted({row["pairs"] for row in rows})):
        of = pick(rows, kind="bon", pairs=pairs)
        plot_curve(right, of, "kl", "gold", f"{pairs:,.0f} pairs", style)
    name_axes(
        right, "Best-of-n", "KL to the reference, log n − (n − 1)/n (nats)", "gold reward (SD)"
    )


FIGURE = Figure(
    name="reward_model_data",
    title="Reward-model accuracy against data",
    paper="Stiennon et al. 2009.01325, figure 6; Gao et al. 2210.10760",
    claim="accuracy on held-out pairs rises steadily with the comparisons seen, and with it the "
    "gold reward that best-of-n reaches",
    criterion="accuracy rises at each fivefold step from 100 to 12,500 pairs, by ≥ .03 in the "
    "first two; so does the gold peak of best-of-n",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
