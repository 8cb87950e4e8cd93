"""The table of all experiments: every row parses and measures alike; rows are run once, apart."""

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments import grpo_stories, stories_table
from experiments.launch import launch, parse
from experiments.stories_table import (
    ROWS,
    Row,
    StoriesTableConfig,
    command_of,
    main,
    run_through,
    with_needs,
)
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import replace


def config_of(row, tmp_path):
    cfg = StoriesTableConfig(out=str(tmp_path), seed=7, text="stories.txt", model="folder")
    module, *argv = command_of(row, cfg, tmp_path)
    return parse(importlib.import_module(module).CONFIG, argv)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.module)
def test_every_row_is_an_experiment_that_takes_its_options(row, tmp_path):
    cfg = config_of(row, tmp_path)
    assert (cfg.out, cfg.seed, cfg.model) == (str(tmp_path / row.module), 7, "folder")
    assert "runs/" not in repr(cfg), "a row reads what another command has made"
    assert "../shared" not in repr(cfg), "a path that the table does not set"
    for need in row.needs:
        assert f"{tmp_path}/{need}" in repr(cfg)


@pytest.mark.parametrize("row", [r for r in ROWS if r.gold], ids=lambda row: row.module)
def test_every_row_measures_the_same_answers_to_the_same_openings(row, tmp_path):
    wanted, cfg = grpo_stories.CONFIG, config_of(row, tmp_path)
    prompts = wanted.prompts.replace(path="stories.txt")
    lengths = ("max_prompt_tokens", "max_new_tokens")
    answers = getattr(getattr(cfg, "dpo", cfg), "answers", None)
    if answers is None:
        asked, sampling, temperature = cfg.prompts, cfg.sampling, cfg.evaluation.temperature
        scored = cfg.watch if row.gold == "watch/vader" else cfg.rewards
    else:
        asked, sampling, temperature = answers.prompts, answers.sampling, answers.temperature
        scored = answers.rewards
    assert asked == prompts and temperature == 1.0 and scored == wanted.rewards
    assert [getattr(sampling, n) for n in lengths] == [getattr(wanted.sampling, n) for n in lengths]
    assert sampling.top_k is sampling.top_p is sampling.min_p is None


def test_what_is_read_comes_before_who_reads_it():
    order = [row.module for row in ROWS]
    assert len(set(order)) == len(order)
    for row in ROWS:
        assert all(order.index(need) < order.index(row.module) for need in row.needs)
    names = [row.module for row in with_needs(["ppo_reward_model_stories", "grpo_stories"])]
    assert names == ["sample_stories", "reward_stories", "ppo_reward_model_stories", "grpo_stories"]
    assert with_needs(None) == list(ROWS)


@pytest.fixture
def tiny_rows(monkeypatch, tmp_path):
    """Four rows that are one quick process each; "broken" fails and "after" reads it."""

    def command(row, cfg, out):
        plain = command_of(row, cfg, out)
        return ["tiny_row", *plain[1:]]

    (tmp_path / "stories.txt").write_text("")
    rows = (
        Row("GRPO", "one"),
        Row("broken", "broken", ("--prompts.path", "{out}/none")),
        Row("reads it", "after", needs=("broken",)),
        Row("PPO, learned", "two", gold="watch/vader"),
    )
    monkeypatch.setattr(stories_table, "ROWS", rows)
    monkeypatch.setattr(stories_table, "command_of", command)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return StoriesTableConfig(out=str(tmp_path / "t"), text=str(tmp_path / "stories.txt"))


def test_a_failed_row_is_named_and_stops_only_its_readers(tiny_rows, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(tiny_rows)
    assert left.value.code == 1
    said = capsys.readouterr()
    assert "failed: broken, after" in said.err
    assert (
        "broken: FAILED, exit code 1\n    error: " in said.out and "none is not a file" in said.out
    )
    assert "after: not run, broken failed" in said.out
    lines = (tmp_path / "t" / "table.md").read_text().splitlines()
    grpo, ppo = (line.split(" | ") for line in lines if line.startswith(("| GRPO", "| PPO")))
    assert grpo[1:6] == ["0.600 → 1.750", "5.5", "0.94", "3.90 → 3.90", "12 / 1"]
    assert grpo[7:] == ["10 / 40", "0", "`one` |"]
    assert ppo[1] == "0.600 → 0.920"  # VADER, not the score that it is trained on
    assert ppo[5] == "– / 0"
    assert "* PPO, learned (`two`): the score it is trained on 0.6 → 1.75" in lines
    assert "* broken (`broken`): no result" in lines
    assert all(line.count("|") == 11 for line in lines if line.startswith("|"))


def test_what_is_finished_is_not_run_again(tiny_rows, tmp_path):
    few = replace(tiny_rows, only=("one", "two"))
    main(few)
    main(few)
    with pytest.raises(SystemExit):
        main(tiny_rows)
    assert (tmp_path / "t" / "one" / "runs").read_text() == "x"
    with pytest.raises(ConfigError, match="was begun with other options"):
        main(replace(few, seed=1))
    main(replace(few, seed=1, restart=True))
    assert (tmp_path / "t" / "one" / "runs").read_text() == "x"
    assert (tmp_path / "t.1" / "table.md").exists()


def test_a_lost_attempt_leaves_a_lower_bound_of_the_time(tiny_rows, tmp_path, monkeypatch):
    few = replace(tiny_rows, only=("one",))
    plain = stories_table.subprocess.Popen

    def killed(*args, **kw):
        raise MemoryError

    monkeypatch.setattr(stories_table.subprocess, "Popen", killed)
    with pytest.raises(MemoryError):
        main(few)
    monkeypatch.setattr(stories_table.subprocess, "Popen", plain)
    main(few)
    assert "| > 0 s |" in (tmp_path / "t" / "table.md").read_text()


def test_a_killed_row_is_told_as_such(tiny_rows, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stories_table, "command_of", lambda *args: ["tiny_row", "--die"])
    with pytest.raises(SystemExit):
        main(replace(tiny_rows, only=("one",)))
    assert "one: FAILED, killed by SIGKILL (is there too little memory?)" in capsys.readouterr().out


def test_sigterm_reaches_the_row_that_runs(tmp_path):
    """It is waited for: no orphan goes on in the folder of the next attempt."""
    child = "import pathlib, signal, sys, time\n"
    child += "signal.signal(signal.SIGTERM, lambda *a: (time.sleep(0.3), sys.exit(130)))\n"
    child += f"pathlib.Path({str(tmp_path / 'began')!r}).touch()\ntime.sleep(60)"
    threading.Thread(target=terminate_when, args=(tmp_path / "began",), daemon=True).start()
    with open(tmp_path / "log", "w") as log:
        assert run_through([sys.executable, "-c", child], log) == (130, True)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def terminate_when(file):
    while not file.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def test_no_row_is_not_all_rows():
    with pytest.raises(ConfigError, match="only names no row; name one, or leave it out"):
        StoriesTableConfig(only=())
    with pytest.raises(SystemExit) as left:
        launch(stories_table.CONFIG, main, ["--only"])
    assert left.value.code == 2


def test_an_unknown_row():
    with pytest.raises(ConfigError, match="did you mean grpo_stories"):
        StoriesTableConfig(only=("grpo_storys",))
