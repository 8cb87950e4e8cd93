"""The page of all figures: pictures, verdicts, numbers, commands, in Markdown and in HTML."""

from __future__ import annotations

import base64
import html
import os
from pathlib import Path
from typing import Any

from experiments.figures.frame import NOT_RUN, Figure, read_result
from rlhf_jax.report.files import write_atomically

INTRO = (
    "Each figure opens with its paper's claim and a criterion that was fixed beforehand, on other "
    "seeds. It is measured on five fresh seeds and holds where all parts of the criterion hold in "
    "at least four of them (and the parts that only all seeds together can tell do too). Intervals "
    "are 95 %, Student's t over seeds. A claim that failed is shown as failed."
)
STYLE = (
    "body{font:16px/1.5 sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "img{max-width:100%}table{border-collapse:collapse;display:block;overflow-x:auto}"
    "td,th{border-bottom:1px solid #ccc;padding:.2rem .6rem;text-align:left}"
)


def write_page(figures: list[Figure], out: Path, folder: Path) -> None:
    """README.md and index.html in `folder`, of the results in `out`; the HTML holds all of it."""
    found = [(figure, read_result(figure.name, out)) for figure in figures]
    write_atomically(folder / "README.md", markdown(found, os.path.relpath(out, folder)))
    write_atomically(folder / "index.html", page(found, out))


def line_of(figure: Figure, result: dict[str, Any] | None) -> list[str]:
    """Columns of the overview: title, paper, verdict, seeds, time."""
    if result is None:
        return [figure.title, figure.paper, NOT_RUN, "", ""]
    seeds = f"{len(result['seeds_held'])} of {len(result['seeds'])}"
    return [figure.title, figure.paper, result["verdict"], seeds, f"{result['seconds']:.0f} s"]


HEAD = ["figure", "paper", "verdict", "seeds", "time"]
PARTS = ["part of the criterion", "asked", "measured", "seeds"]


def parts_of(result: dict[str, Any]) -> list[list[str]]:
    """Rows of a figure's table: every part with its number, its interval, and in how many seeds."""
    rows = [
        [name, p["asked"], f"{p['mean']:.4g} ± {p['half_width']:.2g}", f"{p['held']} of "
         f"{len(p['values'])}"]
        for name, p in result["parts"].items()
    ]  # fmt: skip
    return rows + [
        [name, p["asked"], f"{p['value']:.4g}", "yes, together" if p["held"] else "no, together"]
        for name, p in result["parts_of_all_seeds"].items()
    ]


def facts_of(result: dict[str, Any]) -> str:
    """Seeds, command, time, machine, commit, in a line."""
    return (
        f"Seeds {', '.join(map(str, result['seeds']))}; `{result['command']}`; "
        f"{result['seconds']:.0f} s on {result['machine']}; jax {result['versions']['jax']}; "
        f"commit {result['commit']}."
    )


def markdown(found: list[tuple[Figure, dict[str, Any] | None]], pictures: str) -> str:
    """The page in Markdown, its pictures in the folder `pictures`."""
    lines = ["# Figures", "", INTRO, "", *_table(HEAD, [line_of(*pair) for pair in found])]
    for figure, result in found:
        lines += ["", f"## {figure.title}", "", f"{figure.paper}. Claim: {figure.claim}.", ""]
        lines += [f"Criterion: {figure.criterion}.", ""]
        if result is None:
            lines.append(f"{NOT_RUN.capitalize()}: `python -m experiments.figures.{figure.name}`.")
            continue
        lines += [f"**{result['verdict'].capitalize()}** ({line_of(figure, result)[3]} seeds).", ""]
        lines += [
            f"![{figure.title}]({pictures}/{figure.name}.png)",
            "",
            *_table(PARTS, parts_of(result)),
        ]
        lines += ["", *([result["note"], ""] if result["note"] else []), facts_of(result)]
    return "\n".join(lines) + "\n"


def page(found: list[tuple[Figure, dict[str, Any] | None]], out: Path) -> str:
    """The same as one HTML file that needs no other."""
    say = html.escape
    body = [f"<h1>Figures</h1><p>{say(INTRO)}</p>", _html_table(HEAD, [line_of(*p) for p in found])]
    for figure, result in found:
        body.append(f"<h2>{say(figure.title)}</h2><p>{say(figure.paper)}. {say(figure.claim)}.</p>")
        body.append(f"<p>Criterion: {say(figure.criterion)}.</p>")
        if result is None:
            body.append(f"<p>{NOT_RUN.capitalize()}.</p>")
            continue
        picture = base64.b64encode((out / f"{figure.name}.png").read_bytes()).decode()
        seeds = line_of(figure, result)[3]
        body.append(f"<p><strong>{result['verdict'].capitalize()}</strong> ({seeds} seeds).</p>")
        body.append(f'<img alt="{say(figure.title)}" src="data:image/png;base64,{picture}">')
        body.append(_html_table(PARTS, parts_of(result)))
        body += [f"<p>{say(text)}</p>" for text in (result["note"], facts_of(result)) if text]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>Figures</title>'
        f"<style>{STYLE}</style>{''.join(body)}</html>\n"
    )


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [
        [cell.replace("|", "\\|") for cell in row] for row in (head, ["---"] * len(head), *rows)
    ]
    return ["| " + " | ".join(row) + " |" for row in cells]


def _html_table(head: list[str], rows: list[list[str]]) -> str:
    cell = lambda tag, text: f"<{tag}>{html.escape(text)}</{tag}>"  # noqa: E731
    lines = ["".join(cell("th", text) for text in head)]
    lines += ["".join(cell("td", text) for text in row) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
