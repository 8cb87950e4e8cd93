import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass

import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.files import read_lines, write_atomically
from rlhf_jax.report.run_folder import RunFolder


@dataclass(frozen=True)
class Config:
    seed: int = 3


def steps(run):
    return [line["step"] for line in run.metrics()]


def samples(run):
    return [s["step"] for s in read_lines(run.path / "samples.jsonl")]


def test_config_keeps_what_ran_before(tmp_path):
    with RunFolder(tmp_path / "a" / "run") as run:
        assert run.config() is None
        run.write_config(Config())
        run.write_config(Config())
        run.write_config(Config(seed=4))
        assert run.config() == {"seed": 4}
    found = json.loads((run.path / "config.json").read_text())
    assert found["versions"]["jax"] and found["devices"]["platform"] == "cpu"
    assert len(found["earlier"]) == 2
    assert all(entry["started"] and "earlier" not in entry for entry in found["earlier"])


def test_lines_are_on_disk_at_once(tmp_path):
    run = RunFolder(tmp_path)
    run.log(1, {"loss": 0.5, "bad": float("nan")})
    run.log(1, {"eval/score": 1})
    run.sample(1, [{"prompt": "é\n", "scores": {"exact": None}}])
    lines = RunFolder(tmp_path, writes=False).metrics()
    assert [m["step"] for m in lines] == [1, 1]
    assert lines[0]["loss"] == 0.5 and lines[0]["bad"] is None and lines[1]["eval/score"] == 1
    (sample,) = read_lines(tmp_path / "samples.jsonl")
    assert sample == {"step": 1, "prompt": "é\n", "scores": {"exact": None}}
    run.close()


def test_nothing_is_logged_twice(tmp_path):
    with RunFolder(tmp_path) as run:
        run.log(1, {"loss": 0.5})
        run.log(2, {"loss": 0.4})
        with pytest.raises(ValueError, match=r"step 2 has \['loss'\] already"):
            run.log(2, {"loss": 0.4, "kl": 0.0})
        with pytest.raises(ValueError, match="step 1 comes after step 2"):
            run.log(1, {"kl": 0.0})
        with pytest.raises(ValueError, match=r"\['time'\]"):
            run.log(3, {"time": 1.0})
    with RunFolder(tmp_path) as again, pytest.raises(ValueError, match="already"):
        again.log(2, {"loss": 0.4})


def test_cut_back_to_a_checkpoint(tmp_path):
    with RunFolder(tmp_path) as run:
        for step in range(1, 8):
            run.log(step, {"loss": step})
            run.sample(step, [{"prompt": "p"}])
    with RunFolder(tmp_path) as run:
        run.cut_back(4)
        assert steps(run) == [1, 2, 3, 4]
        assert samples(run) == [1, 2, 3, 4]
        run.log(5, {"loss": 50})
        assert [line["loss"] for line in run.metrics()] == [1, 2, 3, 4, 50]


def test_cut_back_to_the_beginning(tmp_path):
    with RunFolder(tmp_path) as run:
        for _ in range(2):
            run.cut_back(-1)
            for step in range(3):
                run.log(step, {"loss": step})
                run.sample(step, [{}])
        assert steps(run) == samples(run) == [0, 1, 2]


def test_a_torn_line_is_dropped_and_a_damaged_file_is_not(tmp_path):
    with RunFolder(tmp_path) as run:
        run.log(1, {"loss": 1})
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"st')
    with RunFolder(tmp_path) as run:
        assert steps(run) == [1]
        run.log(2, {"loss": 2})
        assert steps(run) == [1, 2]
    file.write_text("{}}\n" + file.read_text())
    with pytest.raises(ConfigError, match=r"metrics\.jsonl:1 is damaged"):
        RunFolder(tmp_path)


GOOD = b'{"step": 1}\n'


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize(
    "line",
    [b"[]", b'{"a": 1}', b'{"step": 1.5}', b'{"step": "1"}', b"\xff", b"",
     b"[" * 100_000, b'{"step": ' + b"1" * 5000 + b"}"],
    ids=range(8),
)  # fmt: skip
def test_a_damaged_line_is_named_and_the_folder_let_go(tmp_path, name, line):
    file = tmp_path / name
    file.write_bytes(GOOD + line + b"\n" + GOOD)
    with pytest.raises(ConfigError, match=rf"{name}:2 is damaged .*move it away.*--restart"):
        RunFolder(tmp_path)
    file.write_bytes(GOOD + line)  # not ended: what an interrupted write leaves
    with RunFolder(tmp_path):
        assert file.read_bytes() == GOOD


@pytest.mark.parametrize("content", [b"{", b"{}", b"[]", b"\xff", b'{"config": {}, "earlier": 1}'])
def test_a_damaged_config(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with RunFolder(tmp_path) as run:
        for use in (run.config, lambda: run.write_config(Config())):
            with pytest.raises(ConfigError, match=r"config\.json is damaged .*--restart"):
                use()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_a_damaged_result(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    damage = pytest.raises(ConfigError, match=r"result\.json is damaged .*move it away.*--restart")
    with RunFolder(tmp_path) as run, damage:
        run.result()


def test_a_folder_where_a_file_should_be(tmp_path):
    (tmp_path / "result.json").mkdir()
    with RunFolder(tmp_path) as run, pytest.raises(ConfigError, match=r"result\.json cannot be"):
        run.result()


def test_one_writer_at_a_time(tmp_path):
    with RunFolder(tmp_path) as run:
        with pytest.raises(ConfigError, match=f"another process is writing {tmp_path}"):
            RunFolder(tmp_path)
        RunFolder(tmp_path, writes=False).close()
        run.cut_back(-1)  # holds it still
        with pytest.raises(ConfigError, match="another process"):
            RunFolder(tmp_path)
    run.close()
    with RunFolder(tmp_path):
        run.close()  # a second close lets nobody in
        with pytest.raises(ConfigError, match="another process"):
            RunFolder(tmp_path)


def test_the_lock_ends_with_its_process(tmp_path):
    script = (
        "import sys\n"
        "from rlhf_jax.report.run_folder import RunFolder\n"
        "run = RunFolder(sys.argv[1])\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=os.getcwd(), **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match="another process"):
            RunFolder(tmp_path)
        other.kill()
        other.wait()
    RunFolder(tmp_path).close()


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with RunFolder(tmp_path) as run:
        run.log(1, {"loss": 1})
        assert steps(run) == [1]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def denied(**_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", denied)
    with pytest.raises(ConfigError, match=r"cannot be made or written: .*Permission denied"):
        RunFolder(tmp_path)
    RunFolder(tmp_path, writes=False).close()


def test_killed_while_logging_and_resumed(tmp_path):
    """kill −9 after step 3; the next process cuts back to 2 and repeats step 3 once."""
    script = (
        "import os, signal, sys\n"
        "from rlhf_jax.report.run_folder import RunFolder\n"
        "run = RunFolder(sys.argv[1])\n"
        "for step in (1, 2, 3): run.log(step, {'loss': step})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=os.getcwd())
    assert done.returncode == -9
    with RunFolder(tmp_path) as run:
        assert steps(run) == [1, 2, 3]
        run.cut_back(2)
        run.log(3, {"loss": 30})
        assert [line["loss"] for line in run.metrics()] == [1, 2, 30]


def test_events_and_what_a_resume_takes_back(tmp_path):
    """A second event file purges from the restored step on and leaves the first as it is."""
    with RunFolder(tmp_path) as run:
        run.log(1, {"loss": 0.5, "bad": None})
        run.cut_back(0)
        run.log(1, {"loss": 0.75})
    files = sorted((tmp_path / "tensorboard").iterdir(), key=lambda f: f.name[-1])
    assert len(files) == 2
    first, second = (list(events(file)) for file in files)
    assert [(e.step, v.tag, v.simple_value) for e in first for v in e.summary.value] == [
        (1, "loss", 0.5)
    ]
    assert [(e.step, v.simple_value) for e in second for v in e.summary.value] == [(1, 0.75)]
    starts = [e.step for e in second if e.session_log.status]
    assert starts == [1]


def events(file):
    """The events of a file: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = file.read_bytes(), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += length + 16


def test_result_and_atomic_writing(tmp_path, monkeypatch):
    with RunFolder(tmp_path) as run:
        assert run.result() is None
        run.write_result({"accuracy": 0.93, "tokens_per_second": float("inf")})
        assert run.result() == {"accuracy": 0.93, "tokens_per_second": None}
    file = tmp_path / "result.json"
    assert json.loads(file.read_text()) == {"accuracy": 0.93, "tokens_per_second": None}

    def dies(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", dies)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(file, "half")
    assert json.loads(file.read_text())["accuracy"] == 0.93


def test_other_processes_write_nothing(tmp_path):
    with RunFolder(tmp_path / "run", writes=False) as run:
        run.write_config(Config())
        run.cut_back(3)
        run.log(1, {"loss": 1.0})
        run.sample(1, [{"prompt": "p"}])
        run.write_result({"a": 1})
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_way(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ConfigError, match=r"run folder .* cannot be made"):
        RunFolder(tmp_path / "run")
