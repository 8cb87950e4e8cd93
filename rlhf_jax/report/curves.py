"""A run's curves as one picture, drawn from its metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# told apart without colour: dash and marker, in order of the series of a panel
STYLES = (
    {"color": "black", "linestyle": "-", "linewidth": 1.4},
    {"color": "black", "linestyle": "--", "linewidth": 1.2, "marker": "o", "markersize": 4},
    {"color": "0.45", "linestyle": "-.", "linewidth": 1.4},
    {"color": "0.45", "linestyle": ":", "linewidth": 1.6, "marker": "s", "markersize": 3},
)
SMOOTHED_FROM = 60  # points: with more, the running mean of a twentieth of them is drawn too
MOST_POINTS = 400  # of a line: more than a panel is wide


@dataclass(frozen=True)
class Panel:
    """One pair of axes: `series` is (metric name, label) pairs, drawn where they were logged."""

    title: str
    unit: str
    series: tuple[tuple[str, str], ...]


ONLINE_PANELS = (
    Panel("Score", "score", (("score", "training"), ("eval/score", "held-out"))),
    Panel(
        "KL to the reference",
        "nats / completion",
        (("kl_response", "training"), ("eval/kl", "held-out")),
    ),
    Panel("Response length", "tokens", (("length", "training"), ("eval/length", "held-out"))),
    Panel("Entropy", "nats / token", (("entropy", "training"),)),
    Panel("Gradient norm", "before clipping", (("grad_norm", "policy"),)),
    Panel(
        "Clipped tokens",
        "fraction",
        (("clip_low", "A < 0, below"), ("clip_high", "A > 0, above")),
    ),
    Panel("Loss", "loss", (("loss", "policy"), ("value_loss", "critic"))),
)


def series_of(lines: Iterable[Mapping[str, Any]], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of a metric, where it was logged as a number."""
    points = [(line["step"], line[metric]) for line in lines if line.get(metric) is not None]
    return tuple(np.asarray(column) for column in zip(*points, strict=True)) if points else ((), ())


def smooth(values: np.ndarray, window: int) -> np.ndarray:
    """Mean over the last `window` values, of as many as there are at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - window, 0)
    return (sums[end] - sums[begin]) / (end - begin)


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most `MOST_POINTS` points with the same outline: least and greatest of each stretch."""
    if len(values) <= MOST_POINTS:
        return steps, values
    stretches = np.array_split(np.arange(len(values)), MOST_POINTS // 2)
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    kept = np.unique(np.asarray(ends))
    return steps[kept], values[kept]


def draw_curves(
    lines: Sequence[Mapping[str, Any]],
    path: str | Path,
    *,
    title: str,
    panels: Sequence[Panel] = ONLINE_PANELS,
    columns: int = 3,
    max_panels: int = 6,
) -> list[str]:
    """Write a PNG with the first `max_panels` panels for which something but 0 was logged.

    Where a line has more than `SMOOTHED_FROM` points, it is the running mean of a twentieth of them
    over the raw values in pale grey.

    Args:
        lines: of metrics.jsonl.
        path: of the picture.
        title: above it: what was run.
        panels: what may be drawn, the most wanted first.
        columns: panels side by side.
        max_panels: at most so many.

    Returns:
        Titles of the panels drawn; none, and no file, if nothing was logged.
    """
    found = [(panel, series_in(lines, panel)) for panel in panels]
    # a curve that is 0 throughout says nothing
    found = [(panel, s) for panel, s in found if any(np.any(values) for *_, values in s)]
    found = found[:max_panels]
    if not found:
        return []
    across = min(columns, len(found))
    down = -(-len(found) // across)
    figure = Figure(figsize=(4.2 * across, 2.9 * down + 0.4), layout="constrained")
    FigureCanvasAgg(figure)  # no window system, and no global state as pyplot has
    figure.suptitle(title)
    for i, (panel, series) in enumerate(found):
        draw_panel(figure.add_subplot(down, across, i + 1), panel, series)
    figure.savefig(path, dpi=110)
    return [panel.title for panel, _ in found]


def series_in(lines: Sequence[Mapping[str, Any]], panel: Panel) -> list[tuple]:
    """(label, steps, values) of each series of a panel, empty where it was not logged."""
    return [(label, *series_of(lines, metric)) for metric, label in panel.series]


def draw_panel(axes, panel: Panel, series: Sequence[tuple]) -> None:
    """Draw `series_in` on these axes, smoothed where there are many points."""
    # a series keeps its style where the one before it was not logged
    for (label, steps, values), style in zip(series, STYLES, strict=False):
        if len(values) == 0:
            continue
        if len(values) > SMOOTHED_FROM:
            axes.plot(*thinned(steps, values), color="0.8", linewidth=0.7, zorder=1)
            values = smooth(values, len(values) // 20)
            steps, values = thinned(steps, values)
        if len(values) == 1:
            style = {"marker": "o", **style}
        every = max(1, len(values) // 12)  # markers that touch hide the line
        axes.plot(steps, values, label=label, zorder=2, markevery=every, **style)
    axes.set_title(panel.title, fontsize=10)
    dress(axes, unit=panel.unit)
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8)


def dress(axes, *, unit: str) -> None:
    """Names, grid and range of axes on which curves over steps have been drawn."""
    low, high = axes.get_ylim()
    least = 0.05 * max(abs(low), abs(high))  # a hair's breadth of noise should look like one
    if high - low < least:
        axes.set_ylim((low + high - least) / 2, (low + high + least) / 2)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
