"""How figures look: told apart without colour, axes named with their units, bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.figures.frame import Row, interval

# by dash, shade and marker, so that a black-and-white print still tells them apart
STYLES = (
    {"color": "black", "linestyle": "-", "marker": "o"},
    {"color": "0.25", "linestyle": "--", "marker": "s"},
    {"color": "0.45", "linestyle": "-.", "marker": "^"},
    {"color": "0.6", "linestyle": ":", "marker": "D"},
    {"color": "0.35", "linestyle": (0, (5, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "0.7", "linestyle": (0, (1, 1)), "marker": "x"},
)
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++")


def panels(canvas, count: int, *, width: float = 4.4, height: float = 3.6) -> list:
    """`count` pairs of axes side by side."""
    canvas.set_size_inches(width * count, height)
    return [axes_of(canvas.add_subplot(1, count, i + 1)) for i in range(count)]


def axes_of(axes):
    """The house's axes: a pale grid, no box."""
    axes.grid(True, color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def name_axes(axes, title: str, x: str, y: str, *, legend: bool = True, **legend_kw) -> None:
    """Title, axis labels with units, and the legend."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if legend:
        axes.legend(frameon=False, fontsize=8, **legend_kw)


def pick(rows: Sequence[Row], **where) -> list[Row]:
    """The rows whose columns have these values."""
    return [row for row in rows if all(row.get(k) == v for k, v in where.items())]


def curve(rows: Sequence[Row], x: str, y: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the mean of y over seeds at each x, and the half width of its 95 % interval."""
    at = sorted({row[x] for row in rows})
    means, halves = zip(
        *(interval([row[y] for row in rows if row[x] == here]) for here in at), strict=True
    )
    return np.asarray(at), np.asarray(means), np.asarray(halves)


def plot_curve(axes, rows: Sequence[Row], x: str, y: str, label: str, style: int) -> None:
    """Mean over seeds with its 95 % band."""
    at, mean, half = curve(rows, x, y)
    every = max(1, len(at) // 8)
    look = STYLES[style]
    axes.plot(at, mean, label=label, markersize=4, linewidth=1.4, markevery=every, **look)
    axes.fill_between(at, mean - half, mean + half, color=look["color"], alpha=0.15, linewidth=0)


def bars(axes, labels: Sequence[str], values: Sequence[Sequence[float]]) -> None:
    """A bar a label: the mean over seeds, a whisker for the 95 % interval, a dot for each seed."""
    for i, of_seeds in enumerate(values):
        mean, half = interval(of_seeds)
        axes.bar(i, mean, yerr=half, color="0.8", edgecolor="black", capsize=3)
        axes.plot([i] * len(of_seeds), of_seeds, "k.", markersize=3)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
