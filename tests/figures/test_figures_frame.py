"""The frame of the figures: verdicts, intervals, resuming, the page; no language model runs."""

import csv
import json

import numpy as np
import pytest

from experiments.figures import __main__ as listing
from experiments.figures.frame import Figure, Part, interval, read_result, run, verdict_of
from experiments.figures.page import write_page


def draw(canvas, rows):
    canvas.add_subplot().plot([row["x"] for row in rows])


def judge(rows):
    return {"x": Part(rows[0]["x"], "> 0", rows[0]["x"] > 0)}


def figure(measure=lambda seed, settings: [{"x": seed - settings}], **more):
    return Figure(
        name="toy",
        title="A toy | with a bar",
        paper="none",
        claim="x > 0",
        criterion="x > 0",
        settings=11,
        measure=measure,
        judge=judge,
        draw=draw,
        **more,
    )


@pytest.mark.parametrize(("held", "verdict"), [(5, "holds"), (4, "holds"), (3, "does not hold")])
def test_four_of_five_seeds_hold(held, verdict):
    rows = {seed: [{"x": 1.0 if seed < held else -1.0}] for seed in range(5)}
    result = verdict_of(figure(), rows)
    assert result["verdict"] == verdict
    assert result["seeds_held"] == list(range(held))
    assert result["parts"]["x"]["held"] == held


def test_a_part_of_all_seeds_together_can_refuse():
    together = figure(judge_all=lambda rows: {"spread": Part(0.3, "< .1", False)})
    result = verdict_of(together, {seed: [{"x": 1.0}] for seed in range(5)})
    assert result["verdict"] == "does not hold"
    assert result["parts_of_all_seeds"]["spread"] == {"asked": "< .1", "value": 0.3, "held": False}


def test_the_interval_is_students():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    mean, half = interval(values)
    # t(.975, 4 degrees) = 2.776445; s = √2.5
    assert mean == 3.0
    assert half == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)
    assert np.isnan(interval([1.0])[1])


def test_a_run_writes_numbers_picture_and_verdict(tmp_path):
    result = run(figure(), (10, 11, 12, 13, 14), tmp_path)
    assert result["verdict"] == "does not hold"  # 12, 13 and 14 alone
    assert read_result("toy", tmp_path) == json.loads(json.dumps(result))
    with (tmp_path / "toy.csv").open() as file:
        assert [(r["seed"], r["x"]) for r in csv.DictReader(file)][:2] == [
            ("10", "-1.0"),
            ("11", "0.0"),
        ]
    assert (tmp_path / "toy.png").read_bytes()[:4] == b"\x89PNG"


def test_an_interrupted_run_measures_only_what_is_missing(tmp_path):
    measured = []

    def measure(seed, settings):
        if seed == 12 and 12 not in measured:
            measured.append(seed)
            raise KeyboardInterrupt
        measured.append(seed)
        return [{"x": float(seed)}]

    with pytest.raises(KeyboardInterrupt):
        run(figure(measure), (10, 11, 12), tmp_path)
    run(figure(measure), (10, 11, 12), tmp_path)
    assert measured == [10, 11, 12, 12]
    assert not (tmp_path / ".parts").exists()


def test_the_page_shows_verdicts_and_what_was_not_run(tmp_path):
    run(figure(), (10, 11, 12, 13, 14), tmp_path)
    never = Figure(**{**vars(figure()), "name": "never", "title": "Never run"})
    write_page([figure(), never], tmp_path, tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "| A toy \\| with a bar | none | does not hold | 3 of 5 |" in text
    assert "| Never run | none | not run yet |" in text
    assert "![A toy | with a bar](./toy.png)" in text
    page = (tmp_path / "index.html").read_text()
    assert "data:image/png;base64," in page
    assert "http" not in page.split("</style>")[1]


def test_every_figure_is_listed_and_says_what_it_claims(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["figures", "--out", str(tmp_path)])
    listing.main()
    shown = capsys.readouterr().out
    found = listing.figures()
    assert len({f.name for f in found}) == len(found) >= 12
    for f in found:
        assert f"{f.name:24} not run yet" in shown
        module = __import__(f"experiments.figures.{f.name}", fromlist=["FIGURE"])
        assert "Criterion" in module.__doc__
        assert f"python -m experiments.figures.{f.name}" in module.__doc__
