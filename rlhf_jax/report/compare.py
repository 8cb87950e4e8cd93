"""Several runs on one page: curves with intervals over the seeds of a config, paired tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.curves import SMOOTHED_FROM, dress, series_of, smooth, thinned
from rlhf_jax.report.differences import differences, shown, without_seed
from rlhf_jax.report.history import History
from rlhf_jax.report.page import HEADLINES, render
from rlhf_jax.report.paired import Difference, difference, holm, mean_interval
from rlhf_jax.report.panels import panels_for, svg, swatch, timed
from rlhf_jax.report.trends import Metrics
from rlhf_jax.report.words import plus_minus

FIRST_SHOWN = 9  # charts; the others are folded away
LONGEST_LABEL = 64
# outcome that is tested, where there is no watched score: the first of these that every group has
OUTCOMES = ("eval/score", "score", "eval/accuracy", "eval/loss", "loss")
COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "0.5")
DASHES, MARKERS = ("-", "--", "-.", ":"), ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Group:
    """Runs of one config, one a seed."""

    label: str
    runs: tuple[History, ...]

    @property
    def by_seed(self) -> dict[int, History]:
        return {run.config.get("seed", 0): run for run in self.runs}

    def outcomes(self, metric: str) -> dict[int, float]:
        """seed -> the metric at the end: the last of an evaluation, the last tenth of training."""
        found = {}
        for seed, run in self.by_seed.items():
            metrics = Metrics(run.lines)
            values, ends = metrics.values(metric), metrics.ends(metric)
            if len(values):
                held_out = metric.startswith("eval/") or ends is None
                found[seed] = float(values[-1] if held_out else ends.late)
        return found


def grouped(runs: Sequence[History], labels: Sequence[str] | None = None) -> list[Group]:
    """Runs that differ by their seed alone, together; the first run's group is the base.

    Args:
        runs: at least one.
        labels: of each run: those of one label are a group. None: told by the configs.

    Raises:
        ConfigError: a folder is given twice, or two runs of a group have the same seed.
    """
    keys = labels or [json.dumps(without_seed(run.config), sort_keys=True) for run in runs]
    found: dict[str, list[History]] = {}
    for key, run in zip(keys, runs, strict=True):
        found.setdefault(key, []).append(run)
    for group in found.values():
        for left, right in pairwise(sorted(group, key=lambda run: run.config.get("seed", 0))):
            if left.config.get("seed", 0) == right.config.get("seed", 0):
                raise ConfigError(
                    f"{left.path} and {right.path} are the same config with the same seed "
                    f"{left.config.get('seed', 0)}; name one of them"
                )
    names = list(found) if labels else _labels([group[0] for group in found.values()])
    return [Group(name, tuple(group)) for name, group in zip(names, found.values(), strict=True)]


def _labels(runs: Sequence[History]) -> list[str]:
    """What tells each config from the others, in few words; else the name of its folder."""
    configs = [without_seed(run.config) for run in runs]
    options = list(dict.fromkeys(n for c in configs[1:] for n in differences(configs[0], c)))
    labels = [
        ", ".join(f"{name.split('.')[-1]}={shown(_at(config, name))}" for name in options)
        for config in configs
    ]
    if options and len(set(labels)) == len(labels) and max(map(len, labels)) <= LONGEST_LABEL:
        return labels
    names = [run.path.resolve().name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{run.path.resolve().parent.name}/{run.path.resolve().name}" for run in runs]


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        if isinstance(config, Mapping):
            config = config.get(name)
        elif isinstance(config, Sequence) and not isinstance(config, str):
            config = config[int(name)]
        else:
            return None
    return config


@dataclass(frozen=True)
class Row:
    """One group of the table: mean and half of its interval, and what tells it from the base."""

    label: str
    seeds: int
    mean: float
    half: float
    against: Difference | None
    corrected: float | None


def paired_rows(groups: Sequence[Group]) -> tuple[str, list[Row]]:
    """The outcome and a row of each group: paired tests against the first, corrected by Holm.

    Args:
        groups: the base first.

    Raises:
        ConfigError: no outcome is common to all groups.
    """
    gold = Metrics(groups[0].runs[0].lines).names("eval/watch/")  # says more than the proxy
    for name in (*gold, *OUTCOMES):
        outcomes = [group.outcomes(name) for group in groups]
        if all(outcomes):
            break
    else:
        labels = ", ".join(group.label for group in groups)
        raise ConfigError(
            f"these runs have none of {', '.join(OUTCOMES)} in common ({labels}): "
            "has each of them logged a step?"
        )
    against = [None, *(difference(outcomes[0], other) for other in outcomes[1:])]
    corrected = holm([found and found.p for found in against])
    rows = []
    for group, outcome, *told in zip(groups, outcomes, against, corrected, strict=True):
        mean, half = mean_interval(np.array(list(outcome.values())))
        rows.append(Row(group.label, len(outcome), float(mean), float(half), *told))
    return name, rows


def compare_page(
    runs: Sequence[History],
    *,
    labels: Sequence[str] | None = None,
    title: str = "Comparison of runs",
    note: str = "",
) -> str:
    """The HTML of several runs.

    Args:
        runs, labels: as for `grouped`.
        title: of the page.
        note: below it: what was asked.

    Raises:
        ConfigError: see `grouped` and `paired_rows`.
    """
    groups = grouped(runs, labels)
    outcome, rows = paired_rows(groups)
    pictures = _pictures(groups)
    return render(
        "compare.html",
        title=title,
        note=note,
        outcome=outcome,
        rows=[(row, cells(row)) for row in rows],
        legend=[(group.label, swatch(style_of(i))) for i, group in enumerate(groups)],
        first=pictures[:FIRST_SHOWN],
        more=pictures[FIRST_SHOWN:],
        others=_others(groups),
        unfinished=[str(run.path) for run in runs if run.state != "finished"],
        groups=[(group.label, _links(group)) for group in groups],
        apart=[(group.label, _apart(groups[0], group)) for group in groups[1:]],
    )


def style_of(number: int) -> dict[str, Any]:
    """Colour, dash and marker of a group: no two alike, and told apart without colour."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "linewidth": 1.4,
        "markersize": 4,
    }


def _pictures(groups: Sequence[Group]) -> list[tuple[str, str]]:
    lines = {id(run): timed(run.lines) for group in groups for run in group.runs}
    panels = panels_for([line for of_run in lines.values() for line in of_run])
    pictures = []
    for panel in panels:
        for metric, label in panel.series:
            curves = [_curve([lines[id(run)] for run in group.runs], metric) for group in groups]
            if any(curve is not None and np.any(curve[1]) for curve in curves):
                name = f"{panel.title}, {label}"
                pictures.append((name, svg(_draw, name, panel.unit, curves)))
    return pictures


def _curve(runs: Sequence[list], metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Steps that all runs have, and the mean and half-interval there; None without any."""
    series = [series_of(lines, metric) for lines in runs]
    series = [(steps, values) for steps, values in series if len(steps)]
    if not series:
        return None
    common = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in series)))
    if not common:
        return None
    rows = []
    for steps, values in series:
        if len(values) > SMOOTHED_FROM:
            values = smooth(values, len(values) // 20)
        rows.append(values[np.isin(steps, common)])
    return np.array(common), *mean_interval(np.array(rows))


def _draw(axes, title: str, unit: str, curves: Sequence[tuple | None]) -> None:
    for number, curve in enumerate(curves):
        if curve is None:
            continue
        steps, mean, half = curve
        style = style_of(number)
        if not np.isnan(half).any():
            axes.fill_between(
                steps, mean - half, mean + half, color=style["color"], alpha=0.15, linewidth=0
            )
        steps, mean = thinned(steps, mean)
        axes.plot(steps, mean, markevery=max(1, len(steps) // 8), **style)
    axes.set_title(title, fontsize=10)
    dress(axes, unit=unit)


def _others(groups: Sequence[Group]) -> list[tuple[str, list[tuple[float, float] | None]]]:
    """(what, mean and half-interval of each group) of the other measured numbers at the end."""
    names = Metrics(groups[0].runs[0].lines).names("eval/watch/")
    watched = [(name, f"held-out {name.removeprefix('eval/')}") for name in names]
    named = [(f"eval/{name}", f"held-out {title}") for name, title in HEADLINES]
    logged = [("score", "training score"), ("entropy", "entropy"), ("seconds", "seconds a step")]
    table = []
    for metric, title in (*named, *watched, *logged):
        outcomes = [group.outcomes(metric) for group in groups]
        if any(outcomes):
            values = [np.array(list(outcome.values())) for outcome in outcomes]
            table.append(
                (title, [tuple(map(float, mean_interval(v))) if len(v) else None for v in values])
            )
    return table


def _links(group: Group) -> list[tuple[int, str, str]]:
    return [(seed, str(run.path), run.state) for seed, run in sorted(group.by_seed.items())]


def _apart(base: Group, other: Group) -> list[tuple[str, str, str]]:
    configs = [without_seed(group.runs[0].config) for group in (base, other)]
    return [(n, shown(old), shown(new)) for n, (old, new) in differences(*configs).items()]


def text_table(outcome: str, rows: Sequence[Row]) -> str:
    """The tested outcome as a table in Markdown."""
    head = f"| | seeds | {outcome} | difference to the first, 95 % | p, paired t | p, Holm |"
    lines = [head, "|---" * 6 + "|"]
    for row in rows:
        lines.append(f"| {' | '.join(cells(row))} |")
    return "\n".join(lines) + "\n"


def cells(row: Row) -> list[str]:
    """A row of the table in words."""
    found = row.against
    return [
        row.label,
        str(row.seeds),
        plus_minus(row.mean, row.half),
        "–" if found is None else f"{plus_minus(found.mean, found.half, sign='+')} (n = {found.n})",
        *("–" if p is None else f"{p:.3g}" for p in (found and found.p, row.corrected)),
    ]
