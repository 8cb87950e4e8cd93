import json

import pytest
from made_up_runs import write_run

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.__main__ import main
from rlhf_jax.report.history import read_run


def test_finished_stopped_and_running(tmp_path):
    assert read_run(write_run(tmp_path / "a")).state == "finished"
    assert read_run(write_run(tmp_path / "b", finished=False)).state == "stopped"
    writer = write_run(tmp_path / "c", finished=False, lock=True)
    assert read_run(writer.path).state == "running"
    writer.log(81, {})  # reading has not taken the folder from who writes it
    writer.close()
    found = read_run(tmp_path / "c")
    assert found.state == "stopped" and found.step == 81


def test_a_killed_run_with_a_torn_line_can_be_read(tmp_path):
    path = write_run(tmp_path / "run", finished=False)
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 81, "sco')
    assert read_run(path).step == 80


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("grop", "did you mean grpo"),  # no such folder, its neighbour is a run
        ("", "choose from grpo, ppo"),  # a folder of runs
        ("grpo/inside", "holds no runs"),
        ("ppo/config.json", "is not a folder"),
    ],
)
def test_what_is_no_run_is_refused_by_name(tmp_path, capsys, name, told):
    write_run(tmp_path / "grpo")
    write_run(tmp_path / "ppo")
    (tmp_path / "grpo" / "inside").mkdir()
    assert main([str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and told in error
    assert main(["compare", str(tmp_path / "grpo"), str(tmp_path / name)]) == 2


def test_damage_is_named(tmp_path, capsys):
    path = write_run(tmp_path / "run")
    lines = (path / "metrics.jsonl").read_text().splitlines()
    (path / "metrics.jsonl").write_text("\n".join([lines[0], "{]", *lines[1:]]) + "\n")
    assert main([str(path)]) == 2
    assert "metrics.jsonl:2 is damaged" in capsys.readouterr().err
    (path / "config.json").write_text(json.dumps({"earlier": []}))
    with pytest.raises(ConfigError, match="it has no 'config'"):
        read_run(path)
