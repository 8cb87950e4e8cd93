import re

import numpy as np
import pytest
from made_up_runs import online_lines, write_run

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.__main__ import main
from rlhf_jax.report.compare import cells, compare_page, grouped, paired_rows, style_of, text_table
from rlhf_jax.report.history import read_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two configs on three seeds each, the second .1 better by and by, as folders."""
    folder = tmp_path_factory.mktemp("runs")
    paths = []
    for high, gain in ((0.2, 0.5), (0.28, 0.6)):
        for seed in range(3):
            lines = online_lines(80, seed=seed, gain=gain + 0.01 * seed * (high > 0.2))
            options = dict(high=high, seed=seed, samples=False)
            paths.append(write_run(folder / f"high{high}_s{seed}", lines, **options))
    return paths


def test_seeds_of_a_config_are_a_group_named_by_what_differs(runs):
    groups = grouped([read_run(path) for path in runs])
    assert [group.label for group in groups] == ["high=0.2", "high=0.28"]
    assert [sorted(group.by_seed) for group in groups] == [[0, 1, 2]] * 2
    one = grouped([read_run(path) for path in runs[:3]])
    assert len(one) == 1 and one[0].label == "high0.2_s0"
    named = grouped([read_run(path) for path in runs[1:3]], labels=["a", "b"])
    assert [group.label for group in named] == ["a", "b"]


def test_one_run_twice_is_not_two_seeds(runs):
    with pytest.raises(ConfigError, match="same config with the same seed 0"):
        grouped([read_run(path) for path in (runs[0], runs[1], runs[0])])


def test_differences_are_paired(runs):
    outcome, (base, other) = paired_rows(grouped([read_run(path) for path in runs]))
    assert outcome == "eval/score" and base.against is None and base.mean == pytest.approx(0.7)
    assert other.mean == pytest.approx(0.81) and other.against.mean == pytest.approx(0.11)
    # differences .10, .11, .12: t = .11/(.01/√3) = 19.05, p = 2·P(t₂ > 19.05) = .00274
    assert (
        other.against.p == pytest.approx(0.00274, abs=1e-5) and other.corrected == other.against.p
    )
    assert cells(other)[2:5] == ["0.810 ± 0.025", "+0.110 ± 0.025 (n = 3)", "0.00274"]
    assert "| high=0.28 | 3 | 0.810 ± 0.025 |" in text_table(outcome, [base, other])


def test_training_is_compared_where_nothing_was_evaluated(tmp_path):
    paths = [
        write_run(tmp_path / f"{high}", [(s, {"score": high}) for s in (1, 2)], high=high)
        for high in (0.2, 0.3)
    ]
    outcome, rows = paired_rows(grouped([read_run(path) for path in paths]))
    assert outcome == "score" and [row.mean for row in rows] == [0.2, 0.3]
    empty = write_run(tmp_path / "empty", [], high=0.4)
    with pytest.raises(ConfigError, match="has each of them logged a step"):
        paired_rows(grouped([read_run(path) for path in (paths[0], empty)]))


def test_a_watched_score_is_the_outcome(tmp_path):
    numbers = {"eval/score": 1.0, "eval/watch/gold": 0.25}
    path = write_run(tmp_path / "run", [(1, numbers)])
    outcome, rows = paired_rows(grouped([read_run(path)]))
    assert outcome == "eval/watch/gold" and rows[0].mean == 0.25
    assert "held-out watch/gold" in compare_page([read_run(path)])


def test_the_page(runs, tmp_path, capsys):
    out = tmp_path / "page.html"
    stopped = write_run(tmp_path / "late", online_lines(40), high=0.35, finished=False)
    assert main(["compare", *map(str, runs), str(stopped), "--out", str(out)]) == 0
    html = out.read_text()
    titles = re.findall(r'aria-label="([^"]*)"', html)
    assert titles[:2] == ["Score, training", "Score, held-out"]
    assert "more curves" in html and "+0.110 ± 0.025" in html
    assert f"Not finished:</strong> {stopped}" in html
    assert not re.search(r'(?:src|href)="(?!data:,|#)', html)


def test_curves_reach_as_far_as_all_seeds(tmp_path):
    paths = [
        write_run(
            tmp_path / f"s{seed}", [(s, {"score": float(s)}) for s in range(1, last)], seed=seed
        )
        for seed, last in ((0, 30), (1, 12))
    ]
    html = compare_page([read_run(path) for path in paths])
    picture = html[html.index('aria-label="Score, training"') :]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture[: picture.index("</figure>")])
    assert "10" in texts and "20" not in texts


def test_styles_are_told_apart():
    styles = [tuple(sorted(style_of(i).items())) for i in range(40)]
    assert len(set(styles)) == 40
    without_colour = {(style_of(i)["linestyle"], style_of(i)["marker"]) for i in range(20)}
    assert len(without_colour) == 20 and np.all([len(s) == 5 for s in styles])
