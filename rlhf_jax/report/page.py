"""One run as one HTML page that needs nothing beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.differences import shown
from rlhf_jax.report.files import write_atomically
from rlhf_jax.report.history import History, read_run
from rlhf_jax.report.panels import draw_each, panels_for, timed
from rlhf_jax.report.progress import duration
from rlhf_jax.report.signs import RULES
from rlhf_jax.report.trends import Metrics
from rlhf_jax.report.words import number, plus_minus

TEMPLATES = Path(__file__).parent / "templates"
MOST_SAMPLES = 1000  # rows of the table: a page of some megabytes at most
MOST_CHARACTERS = 4000  # of a text in it
HEADLINES = (  # metric of an evaluation -> what it is called
    ("score", "score"),
    ("greedy_score", "greedy score"),
    ("accuracy", "preferred side ahead"),
    ("loss", "loss"),
    ("kl", "KL, nats / completion"),
    ("length", "length, tokens"),
    ("distinct_2", "distinct-2"),
    ("ref_perplexity", "reference's perplexity"),
)


def run_page(run: History) -> str:
    """The HTML of a run: headlines, warnings, curves, samples, config."""
    lines = timed(run.lines)
    panels = panels_for(lines)
    curves, zero = draw_each(lines, panels)
    sampling = run.config.get("sampling") or {}
    metrics = Metrics(run.lines, sampling.get("num_samples"))
    judged = [(rule, rule.judge(metrics)) for rule in RULES]
    return render(
        "run.html",
        title=run.path.resolve().name,
        state=_state(run),
        headlines=_headlines(run),
        facts=_facts(run),
        warnings=[(rule, words) for rule, words in judged if words],
        rules=judged,
        curves=curves,
        zero=zero,
        others=_others(run.lines),
        samples=sample_rows(run.samples),
        changed=_changed(run.record.get("changed")),
        config=json.dumps(run.config, indent=2, ensure_ascii=False),
        surroundings=json.dumps(
            {k: v for k, v in run.record.items() if k not in ("config", "changed")}, indent=2
        ),
    )


def render(template: str, **values: Any) -> str:
    """A template of `templates/`, filled in; every value is escaped, except pictures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "plus_minus": lambda pair: plus_minus(*pair)}
    return environment.get_template(template).render(**values)


def report_finished(folder: Path) -> None:
    """Write FOLDER/report.html of a run that has just ended and still holds its folder."""
    write_page(folder / "report.html", run_page(read_run(folder, state="finished")))


def write_page(path: Path, html: str) -> None:
    """Put a page where it belongs.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        # what is no Unicode text (half a surrogate pair in a sample) is shown as an escape
        text = html.encode("utf-8", "backslashreplace").decode("utf-8")
        write_atomically(path, text)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written ({error.strerror}); name another --out"
        ) from None


def sample_rows(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns and rows of the table of samples: at most `MOST_SAMPLES`, spread over the run."""
    total = len(samples)
    if total > MOST_SAMPLES:
        samples = [samples[i * (total - 1) // (MOST_SAMPLES - 1)] for i in range(MOST_SAMPLES)]
    scores = [n for n in dict.fromkeys(n for s in samples for n in s) if n not in _TEXTS]
    rows = [
        {
            "step": sample["step"],
            "kind": "held-out" if sample.get("held_out") else "training",
            "prompt": _cut(sample.get("prompt", "")),
            "completion": _cut(sample.get("completion", "")),
            "scores": [sample.get(name) for name in scores],
        }
        for sample in samples
    ]
    held_out = dict.fromkeys(row["prompt"] for row in rows if row["kind"] == "held-out")
    return {"scores": scores, "rows": rows, "total": total, "prompts": list(held_out)[:200]}


_TEXTS = ("step", "held_out", "prompt", "completion")


def _cut(text: Any) -> str:
    text = str(text)
    # control characters act on nothing in a page, and are not seen either
    text = "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]} … ({len(text) - MOST_CHARACTERS} characters more)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _state(run: History) -> dict[str, str]:
    asked = run.config.get("num_steps")
    done = f"{run.step} of {asked} steps" if asked else f"{run.step} steps"
    words = {
        "finished": f"finished, {done}",
        "running": f"running, {done} so far; make the page anew to see more",
        "stopped": f"not finished: stopped or killed after {done}; the same command goes on",
    }
    return {"name": run.state, "words": words[run.state]}


def _headlines(run: History) -> list[tuple[str, float, float]]:
    """(what, first, last) of each measured number."""
    metrics = Metrics(run.lines)
    watched = [(name.removeprefix("eval/"),) * 2 for name in metrics.names("eval/watch/")]
    of_k = [(n.removeprefix("eval/"),) * 2 for n in metrics.names("eval/") if "@" in n]
    score, *others = HEADLINES
    found = []
    for name, title in (score, *watched, *of_k, *others):
        values = metrics.values(f"eval/{name}")
        if len(values):
            found.append((title, float(values[0]), float(values[-1])))
    return found


def _facts(run: History) -> list[tuple[str, str]]:
    record, result = run.record, run.result or {}
    last = {name: value for line in run.lines for name, value in line.items()}
    updates = result.get("updates", last.get("updates"))
    seconds = sum(line["seconds"] for line in run.lines if line.get("seconds"))
    tokens = last.get("tokens_drawn", last.get("tokens"))
    memory = [(name, last.get(f"memory/{name}")) for name in ("device", "host")]
    devices = record.get("devices") or {}
    facts = [
        ("seed", run.config.get("seed")),
        ("updates", None if updates is None else number(updates)),
        ("time in steps", duration(seconds) if seconds else None),
        ("tokens", None if tokens is None else number(tokens)),
        ("tokens / s", number(tokens / seconds) if tokens and seconds else None),
        *((f"memory, {name}", f"{gib:.2f} GiB") for name, gib in memory if gib),
        ("devices", f"{devices.get('count')} × {devices.get('kind')}" if devices else None),
        ("commit", (record.get("commit") or "")[:12]),
        ("begun", record.get("started")),
        ("resumed", len(record.get("earlier") or ()) or None),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "")]


def _others(
    lines: Iterable[Mapping[str, Any]],
) -> list[tuple[str, int, float, float, float, float]]:
    """(name, values, first, last, least, greatest) of every metric."""
    metrics = Metrics(lines)
    table = []
    for name in metrics.names(""):
        values = metrics.values(name) if name not in ("step", "time") else ()
        if len(values):
            told = (values[0], values[-1], values.min(), values.max())
            table.append((name, len(values), *map(float, told)))
    return table


def _changed(changed: Mapping[str, Any] | None) -> list[tuple[str, str, str]] | None:
    if changed is None:
        return None
    return [(name, shown(old), shown(new)) for name, (old, new) in changed.items()]
