"""What a report shows of any run, online or not: panels over the names that its metrics have."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlhf_jax.report.curves import ONLINE_PANELS, Panel, draw_panel, series_in

SIZE = (4.2, 2.7)  # inches of one panel
BOTH = (("training", ""), ("held-out", "eval/"))
ELSEWHERE = {"Score", "Response length", "Loss"}  # drawn here with more series

AFTER_SCORE = (
    Panel(
        "Response length",
        "tokens",
        (
            ("length", "training"),
            ("eval/length", "held-out"),
            ("length_better", "better than its group"),
            ("length_worse", "worse than its group"),
        ),
    ),
    *(panel for panel in ONLINE_PANELS if panel.title not in ELSEWHERE),
    Panel("KL to the reference, by token", "nats / token", (("kl_k1", "k1"), ("kl_k3", "k3"))),
    Panel("Groups of equal scores", "fraction", (("groups_equal", "all alike"),)),
    Panel("Sampler against trainer", "mean nats / token", (("sampler_gap", "|difference|"),)),
    Panel(
        "Answers without an end",
        "fraction",
        (("truncated", "training"), ("eval/truncated", "held-out")),
    ),
    Panel("Distinct-2 of the answers", "fraction", (("eval/distinct_2", "held-out"),)),
    Panel("Reference's perplexity", "of the answers", (("eval/ref_perplexity", "held-out"),)),
    Panel(
        "Loss",
        "loss",
        (("loss", "training"), ("eval/loss", "held-out"), ("value_loss", "critic")),
    ),
    Panel(
        "Preferred side ahead",
        "fraction of pairs",
        (
            ("accuracy", "training"),
            ("eval/accuracy", "held-out"),
            ("eval/accuracy_by_length", "by length"),
            ("eval/accuracy_true_score", "true score"),
        ),
    ),
    Panel("Margin", "implicit reward", (("margin", "training"), ("eval/margin", "held-out"))),
    Panel(
        "Log-prob since the start",
        "nats / completion",
        (("eval/drift_chosen", "preferred"), ("eval/drift_rejected", "other")),
    ),
    Panel("Explained by the critic", "1 − Var[R − V]/Var[R]", (("value_explained", "critic"),)),
    Panel("Learning rate", "rate", (("learning_rate", "policy"),)),
    Panel(
        "Time of a step",
        "seconds",
        (
            ("seconds", "whole"),
            ("seconds/draw", "answers judged"),
            (REWARD := "_rewards", "rewards"),
        ),
    ),
    Panel(
        "Memory, most so far",
        "GiB",
        (("memory/device", "fullest device"), ("memory/host", "this process")),
    ),
)


def panels_for(lines: Sequence[Mapping[str, Any]]) -> tuple[Panel, ...]:
    """Every panel that a run may have; those of single reward functions by the names it logged."""
    names = {name for line in lines for name in line}

    def by_function(kind: str, title: str) -> list[Panel]:
        found = {n.removeprefix("eval/") for n in names if n.startswith((kind, f"eval/{kind}"))}
        return [
            Panel(
                f"{title}: {name.removeprefix(kind)}",
                "score",
                tuple((prefix + name, label) for label, prefix in BOTH),
            )
            for name in sorted(found)
        ]

    of_k = [
        Panel(
            f"{kind}@k",
            "held-out",
            tuple(
                (name, name.removeprefix("eval/"))
                for name in sorted(names, key=_k)
                if _is(name, kind)
            ),
        )
        for kind in ("pass", "maj", "best")
    ]
    return (
        Panel(
            "Score",
            "score",
            (("score", "training"), ("eval/score", "held-out"), ("eval/greedy_score", "greedy")),
        ),
        *by_function("score/", "Score"),
        *by_function("watch/", "Watched"),
        *of_k,
        *AFTER_SCORE,
    )


def _is(name: str, kind: str) -> bool:
    return name.startswith(f"eval/{kind}@")


def _k(name: str) -> int:
    k = name.partition("@")[2]
    return int(k) if k.isdigit() else 0


def timed(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The lines with the seconds of all reward functions added up, and without the times of the
    first step, which compiles."""
    found, first = [], True
    for line in lines:
        line = dict(line)
        spent = [v for name, v in line.items() if name.startswith("reward_seconds/") and v]
        if spent:
            line[REWARD] = sum(spent)
        if first and line.get("seconds") is not None:
            for name in ("seconds", "seconds/draw", REWARD):
                line.pop(name, None)
            first = False
        found.append(line)
    return found


def draw_each(
    lines: Sequence[Mapping[str, Any]], panels: Iterable[Panel]
) -> tuple[list[tuple[str, str]], list[str]]:
    """(title, SVG) of each panel with something to see, and the titles of those that are 0."""
    drawn, zero = [], []
    for panel in panels:
        series = series_in(lines, panel)
        if any(np.any(values) for *_, values in series):
            drawn.append((panel.title, svg(draw_panel, panel, series)))
        elif any(len(values) for *_, values in series):
            zero.append(panel.title)
    return drawn, zero


def svg(draw: Callable[..., None], *what: Any) -> str:
    """An <svg> element of one pair of axes that `draw(axes, *what)` fills; text stays text."""

    def fill(figure: Figure) -> None:
        axes = figure.add_axes((0.17, 0.18, 0.8, 0.7))  # fixed: to fit them takes most of the time
        draw(axes, *what)
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))  # labels that fit on the left

    return _element(fill, SIZE)


def swatch(style: Mapping[str, Any]) -> str:
    """A short stretch of a line as an <svg> element, for a legend."""
    return _element(
        lambda figure: figure.add_artist(Line2D((0, 0.5, 1), (0.5,) * 3, markevery=[1], **style)),
        (0.5, 0.16),
    )


def _element(fill: Callable[[Figure], Any], size: tuple[float, float]) -> str:
    # names inside it are hashes of what they name: two pictures in a page do not get in each
    # other's way, and one picture is the same text every time
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "run", "font.size": 9}):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        fill(figure)
        file = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    return text[text.index("<svg") :]
