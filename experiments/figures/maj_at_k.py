"""What reinforcement learning changes: Maj@K rises, Pass@K does not.

Paper: DeepSeekMath, 2402.03300, figure 7.
Claim: after RL the right answer comes more often among K samples' majority, not more often at all:
RL sharpens the distribution rather than adding to what it can do.
Criterion, in a seed, before and after 200 updates of GRPO: maj@32 rises by at least .10, pass@32 by
at most .02, pass@1 rises. On 128 held-out prompts with 64 samples each; pass@k is the unbiased
1 − C(n − c, k)/C(n, k), maj@k the mean over 50 draws of k samples without replacement. The run is
the GRPO arm of `supervision`. At this scale pass@32 is near its ceiling of 1 from the beginning.

    python -m experiments.figures.maj_at_k     (about 5 minutes on 2 CPU cores)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from experiments.figures.drawing import name_axes, panels, pick, plot_curve
from experiments.figures.frame import Figure, Part, Row, main
from experiments.figures.sums import answers
from experiments.figures.supervision import OUTCOME, train
from experiments.figures.supervision import Settings as Runs

WHEN = ("before", "after")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The runs, and the samples of an evaluation."""

    runs: Runs = field(default_factory=Runs)
    prompts: int = 128
    samples: int = 64
    draws: int = 50
    ks: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)


def pass_at_k(right_PG: np.ndarray, k: int) -> float:
    """Mean over prompts of 1 − C(n − c, k)/C(n, k)   (2107.03374, eq. 1)."""
    n, wrong_P = right_PG.shape[1], (~right_PG).sum(axis=1)
    i = np.arange(k)
    # a factor below 0 means fewer than k wrong ones: then no draw misses
    factors_PK = np.maximum(wrong_P[:, None] - i[None], 0) / (n - i)[None]
    return float(1 - factors_PK.prod(axis=1).mean())


def maj_at_k(last_PG: np.ndarray, right_PG: np.ndarray, k: int, draws: int, seed: int) -> float:
    """How often the most frequent answer of k samples is right; ties go to the lower digit."""
    draw, hits = np.random.default_rng(seed), []
    for _ in range(draws):
        chosen_PK = draw.permuted(np.tile(np.arange(last_PG.shape[1]), (len(last_PG), 1)), axis=1)
        last_PK = np.take_along_axis(last_PG, chosen_PK[:, :k], axis=1)
        votes_PV = (last_PK[:, :, None] == np.arange(11)).sum(axis=1)
        truth_P = np.where(right_PG, last_PG, -1).max(axis=1)  # −1: no sample is right
        hits.append(votes_PV.argmax(axis=1) == truth_P)
    return float(np.mean(hits))


def measure(seed: int, settings: Settings) -> list[dict]:
    seen, rows = train(OUTCOME, seed, settings.runs), []
    for when, (_, params) in zip(WHEN, (seen[0], seen[-1]), strict=True):
        size = dict(prompts=settings.prompts, num_samples=settings.samples)
        last_PG, right_PG = map(np.asarray, answers(params, seed, **size))
        for k in settings.ks:
            maj = maj_at_k(last_PG, right_PG, k, settings.draws, seed)
            rows.append(dict(when=when, k=k, maj=maj, **{"pass": pass_at_k(right_PG, k)}))
    return rows


def judge(rows: list[Row]) -> dict[str, Part]:
    def change(k, column):
        before, after = (pick(rows, when=when, k=k)[0][column] for when in WHEN)
        return after - before

    maj, most, one = change(32, "maj"), change(32, "pass"), change(1, "pass")
    return {
        "change of maj@32": Part(maj, "≥ .10", maj >= 0.10),
        "change of pass@32": Part(most, "≤ .02", most <= 0.02),
        "change of pass@1": Part(one, "> 0", one > 0),
    }


def draw(canvas, rows: list[Row]) -> None:
    for axes, column in zip(panels(canvas, 2, width=4.8), ("maj", "pass"), strict=True):
        for style, when in enumerate(WHEN):
            plot_curve(axes, pick(rows, when=when), "k", column, f"{when} RL", style)
        axes.set_xscale("log", base=2)
        axes.set_ylim(0, 1.05)
        name = f"{column.capitalize()}@K"
        name_axes(axes, name, "K (samples)", "share of held-out prompts", loc="lower right")


FIGURE = Figure(
    name="maj_at_k",
    title="Maj@K and Pass@K before and after RL",
    paper="DeepSeekMath, 2402.03300, figure 7",
    claim="RL raises Maj@K and not Pass@K: it sharpens what the policy can do already",
    criterion="maj@32 rises ≥ .10, pass@32 ≤ .02, pass@1 rises",
    settings=Settings(),
    measure=measure,
    judge=judge,
    draw=draw,
)

if __name__ == "__main__":
    main(FIGURE)
