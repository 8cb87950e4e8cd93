"""What every figure shares: fresh seeds, a criterion fixed beforehand, a verdict, files on disk.

A figure measures each seed on its own (`measure`), and says of each seed's rows which parts of its
criterion held (`judge`). The verdict is "holds" where all parts hold in at least 4 of the 5 seeds
10–14. The thresholds were chosen on seeds 0–2 of earlier pilots and are not moved afterwards.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from scipy import stats

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.files import write_atomically

SEEDS = (10, 11, 12, 13, 14)
NEEDED = 0.8  # of the seeds: 4 of 5
RESULTS = Path(__file__).parent / "results"
NOT_RUN = "not run yet"

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One part of a criterion as one seed has it: the number, what is asked of it, and whether."""

    value: float
    asked: str
    held: bool


@dataclass(frozen=True)
class Figure:
    """A figure of a paper.

    name: of the module, and of its files
    title: as the list shows it
    paper: authors, arXiv id, which figure or equation
    claim: what the paper says, in a sentence
    criterion: what must hold in a seed, in words
    settings: every number that the measurement depends on
    measure: (seed, settings) -> rows of the CSV
    judge: rows of one seed -> the parts of the criterion
    draw: (canvas, rows of all seeds, each with "seed")
    judge_all: rows by seed -> parts that only all seeds together can tell; None: there are none
    note: rows by seed -> a sentence on what the criterion leaves open; None: nothing
    seeds: those of its verdict
    """

    name: str
    title: str
    paper: str
    claim: str
    criterion: str
    settings: Any
    measure: Callable[[int, Any], list[Row]]
    judge: Callable[[list[Row]], dict[str, Part]]
    draw: Callable[[Canvas, list[Row]], None]
    judge_all: Callable[[dict[int, list[Row]]], dict[str, Part]] | None = None
    note: Callable[[dict[int, list[Row]]], str] | None = None
    seeds: tuple[int, ...] = SEEDS


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half width of the 95 % interval of Student's t over seeds; NaN of a single one."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values.mean()), float("nan")
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)


def verdict_of(figure: Figure, rows_by_seed: dict[int, list[Row]]) -> dict[str, Any]:
    """Verdict, how many seeds held, and every part's number with its interval."""
    judged = {seed: figure.judge(rows) for seed, rows in rows_by_seed.items()}
    held = [seed for seed, parts in judged.items() if all(p.held for p in parts.values())]
    parts = {}
    for name in next(iter(judged.values())):
        of_seeds = [seed_parts[name] for seed_parts in judged.values()]
        mean, half = interval([part.value for part in of_seeds])
        parts[name] = {
            "asked": of_seeds[0].asked,
            "mean": mean,
            "half_width": half,
            "values": [float(part.value) for part in of_seeds],
            "held": sum(bool(part.held) for part in of_seeds),
        }
    together = {} if figure.judge_all is None else figure.judge_all(rows_by_seed)
    holds = len(held) >= NEEDED * len(judged) and all(p.held for p in together.values())
    return {
        "verdict": "holds" if holds else "does not hold",
        "seeds": list(judged),
        "seeds_held": held,
        "parts": parts,
        "parts_of_all_seeds": {
            name: {"asked": p.asked, "value": float(p.value), "held": bool(p.held)}
            for name, p in together.items()
        },
        "note": None if figure.note is None else figure.note(rows_by_seed),
    }


def run(figure: Figure, seeds: Sequence[int] | None = None, out: Path = RESULTS) -> dict[str, Any]:
    """Measure the seeds, judge, draw; write NAME.csv, NAME.png and NAME.json under `out`.

    Rows of a seed are kept as soon as it is measured and are used again by the next call with the
    same settings, so an interrupted figure goes on where it stopped.
    """
    seeds = figure.seeds if seeds is None else seeds
    out.mkdir(parents=True, exist_ok=True)
    parts_dir = out / ".parts"
    rows_by_seed, seconds = {}, {}
    for seed in seeds:
        kept = parts_dir / f"{figure.name}-{seed}.json"
        part = json.loads(kept.read_text()) if kept.exists() else {}
        if part.get("settings") != repr(figure.settings):
            began = time.monotonic()
            rows = [_plain(row) for row in figure.measure(seed, figure.settings)]
            part = {"settings": repr(figure.settings), "rows": rows}
            part["seconds"] = round(time.monotonic() - began, 1)
            parts_dir.mkdir(exist_ok=True)
            write_atomically(kept, json.dumps(part))
        rows_by_seed[seed], seconds[seed] = part["rows"], part["seconds"]
        print(f"{figure.name}: seed {seed}, {part['seconds']:.0f} s", flush=True)
    result = {
        "name": figure.name,
        "title": figure.title,
        "paper": figure.paper,
        "claim": figure.claim,
        "criterion": figure.criterion,
        **verdict_of(figure, rows_by_seed),
        "settings": repr(figure.settings),
        "command": f"python -m experiments.figures.{figure.name}",
        "seconds": sum(seconds.values()),
        "machine": f"{os.cpu_count()} CPU cores, {jax.default_backend()}, {platform.machine()}",
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "commit": commit(),
    }
    rows = [{"seed": seed, **row} for seed, of_seed in rows_by_seed.items() for row in of_seed]
    _write_csv(out / f"{figure.name}.csv", rows)
    draw(figure, rows, out / f"{figure.name}.png")
    text = json.dumps(result, indent=1, ensure_ascii=False)
    write_atomically(out / f"{figure.name}.json", text + "\n")
    for kept in parts_dir.glob(f"{figure.name}-*.json"):
        kept.unlink()
    if not any(parts_dir.iterdir()):
        parts_dir.rmdir()
    return result


def draw(figure: Figure, rows: list[Row], path: Path) -> None:
    """The picture from the rows of all seeds."""
    canvas = Canvas(layout="constrained")
    FigureCanvasAgg(canvas)  # no window system, and no global state as pyplot has
    figure.draw(canvas, rows)
    canvas.savefig(path, dpi=110)


def read_result(name: str, out: Path = RESULTS) -> dict[str, Any] | None:
    """What the last run wrote; None: there was none."""
    path = out / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def commit() -> str:
    """Abbreviated commit, with + where the tree differs from it; "unknown" outside a checkout."""
    try:
        here = Path(__file__).parent
        asked = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
        done = subprocess.run(asked, cwd=here, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def said(result: dict[str, Any]) -> str:
    """The verdict in a line: how many seeds, and every part's number."""
    head = f"{result['verdict']}: {len(result['seeds_held'])} of {len(result['seeds'])} seeds"
    lines = [
        f"    {name} = {part['mean']:.4g} ± {part['half_width']:.2g}"
        f" (asked: {part['asked']}; {part['held']} of {len(part['values'])})"
        for name, part in result["parts"].items()
    ]
    lines += [
        f"    {name} = {part['value']:.4g} (asked: {part['asked']}; {_yes(part['held'])})"
        for name, part in result["parts_of_all_seeds"].items()
    ]
    if result["note"]:
        lines.append(f"    {result['note']}")
    return "\n".join([head, *lines])


def main(figure: Figure, argv: Sequence[str] | None = None) -> None:
    """Run one figure from the command line; the exit code says that it ran, not what came out."""
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.figures.{figure.name}", description=figure.claim
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="in place of the figure's own")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args(argv)
    try:
        print(said(run(figure, options.seeds, options.out)))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _yes(held: bool) -> str:
    return "yes" if held else "no"


def _plain(row: Row) -> Row:
    """Numbers as Python's, six significant digits: the CSV is read by people and diffed by git."""
    return {k: v if isinstance(v, str) else float(f"{float(v):.6g}") for k, v in row.items()}


def _write_csv(path: Path, rows: list[Row]) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
