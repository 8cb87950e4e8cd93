"""The page of a run: what it says, of every kind of run, and that it needs nothing beside it."""

import json
import re

import pytest
from made_up_runs import write_run

from rlhf_jax.report.__main__ import main
from rlhf_jax.report.history import read_run
from rlhf_jax.report.page import MOST_SAMPLES, report_finished, run_page, sample_rows
from rlhf_jax.report.words import number


def page_of(path):
    return run_page(read_run(path))


def titles(html):
    return re.findall(r'<figure role="img" aria-label="([^"]*)"', html)


@pytest.fixture(scope="module")
def online(tmp_path_factory):
    return page_of(write_run(tmp_path_factory.mktemp("runs") / "online"))


def test_an_online_run(online):
    assert "finished, 80 of 80 steps" in online
    # held-out score: last, and first
    assert '<span class="to">0.7</span><span class="from">from 0.2</span>' in online
    found = titles(online)
    assert found[:3] == ["Score", "Watched: gold", "Response length"]
    assert {"Entropy", "Groups of equal scores", "Time of a step", "Memory, most so far"} <= set(
        found
    )
    assert "0 throughout: Clipped tokens." in online
    assert "None of the rules below has anything to say" in online
    assert "objective.surrogate.high" in online and "0.28" in online
    assert "160" in online and "8,000" in online  # updates, tokens


def test_it_needs_nothing_beside_it(online):
    assert not re.search(r'(?:src|href)="(?!data:,|#)', online)
    assert not re.search(r"url\((?!#)|@import|fetch\(|https?://(?!www\.w3\.org)", online)
    assert len(online) < 600_000


def test_texts_of_a_model_are_only_text(online):
    assert "<script>boom" not in online and "&lt;script&gt;boom(3)&lt;/script&gt;" in online
    assert "Say &lt;b&gt;hello&lt;/b&gt; &amp; go:" in online
    assert "\x1b" not in online and r"\x1b[2J" in online


def test_the_first_step_compiles_and_is_not_drawn(online):
    picture = online[online.index('aria-label="Time of a step"') :]
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", picture[: picture.index("</figure>")])
    assert "1.00" in labels or "1.0" in labels
    assert "10" not in labels[labels.index("seconds") - 1 :] and "rewards" in labels


def test_gaming_is_told_in_words(tmp_path):
    lines = [
        (s, {"score": s / 40, "length": 20.0 + s, "entropy": 1.0 - s / 41}) for s in range(1, 41)
    ]
    html = page_of(write_run(tmp_path / "run", lines, num_steps=40))
    assert 'class="warning gaming"><strong>Length moves with the score:' in html
    assert "Entropy collapse:" in html


@pytest.mark.parametrize(
    ("metrics", "wanted"),
    [
        (("loss", "eval/loss", "eval/perplexity", "learning_rate"), {"Loss", "Learning rate"}),
        (
            ("loss", "accuracy", "margin", "eval/accuracy", "eval/drift_chosen"),
            {"Loss", "Preferred side ahead", "Margin", "Log-prob since the start"},
        ),
        (("loss", "lead", "accuracy", "eval/accuracy_by_length"), {"Loss", "Preferred side ahead"}),
        (("eval/pass@1", "eval/pass@4", "eval/best@4"), {"pass@k", "best@k"}),
    ],
    ids=["sft", "preference", "reward model", "of k"],
)
def test_other_kinds_of_runs(tmp_path, metrics, wanted):
    lines = [(step, dict.fromkeys(metrics, 1.0 / step)) for step in (1, 2, 3)]
    html = page_of(write_run(tmp_path / "run", lines, samples=False, num_steps=3))
    assert wanted <= set(titles(html))
    assert "This run has logged no samples" in html
    assert f"All {len(metrics)} metrics" in html


def test_a_run_that_has_only_begun_and_one_that_goes_on(tmp_path, capsys):
    path = write_run(tmp_path / "run", [], finished=False)
    assert main([str(path)]) == 0
    html = (path / "report.html").read_text()
    assert "stopped or killed after 0 of 80 steps" in html and "No step has been logged yet" in html
    writer = write_run(tmp_path / "other", [(1, {"loss": 1.0})], finished=False, lock=True)
    assert "running, 1 of 80 steps so far" in page_of(writer.path)
    writer.close()


def test_a_run_writes_its_own_report_while_it_holds_the_folder(tmp_path):
    writer = write_run(tmp_path / "run", [(1, {"loss": 1.0})], lock=True)
    report_finished(writer.path)
    assert "finished, 1 of 80 steps" in (writer.path / "report.html").read_text()
    writer.close()


def test_a_page_that_cannot_be_written(tmp_path, capsys):
    path = write_run(tmp_path / "run", [])
    assert main([str(path), "--out", str(tmp_path / "missing" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_half_a_surrogate_pair_is_no_end(tmp_path):
    path = write_run(tmp_path / "run", [])
    sample = {"step": 1, "prompt": "p", "completion": "half \ud83d", "exact": 1.0}
    (path / "samples.jsonl").write_text(json.dumps(sample) + "\n")
    assert main([str(path)]) == 0
    assert r"half \ud83d" in (path / "report.html").read_text()


def test_of_many_samples_some_spread_over_the_run():
    rows = [{"step": s, "prompt": "p" * 5000, "completion": "c", "x": 1.0} for s in range(2500)]
    found = sample_rows(rows)
    steps = [row["step"] for row in found["rows"]]
    assert len(steps) == MOST_SAMPLES and found["total"] == 2500
    assert steps[0] == 0 and steps[-1] == 2499 and steps == sorted(set(steps))
    assert found["rows"][0]["prompt"].endswith("(1000 characters more)")


def test_numbers_for_people():
    told = [number(x) for x in (None, float("nan"), 0.12345678, 12345.6, 3.0, 1234567, 1e-7)]
    assert told == ["–", "–", "0.1235", "12,346", "3", "1,234,567", "1e-07"]
