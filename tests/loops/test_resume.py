"""A run that is killed, interrupted and resumed ends as one that never stopped, to the bit."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

TESTS = Path(__file__).parents[1]
CLOCKS = {"time", "seconds", "tokens_per_second"}  # all that may differ
PATIENCE = 120.0


def start(*options, argv=None):
    argv = argv or [sys.executable, "-m", "tiny_quickstart", *options]
    env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}  # one device
    env |= {
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    return subprocess.Popen(
        argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def stop_after_a_checkpoint(process, run: Path, sign, delay: float):
    """Send a signal some time after the next checkpoint of a run that has begun or goes on."""
    before = steps_saved(run / "checkpoints")[-1:]
    limit = time.monotonic() + PATIENCE
    while steps_saved(run / "checkpoints")[-1:] == before:
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(sign)
    out, err = process.communicate(timeout=PATIENCE)
    assert not (run / "result.json").exists(), "it finished before the signal came"
    return process.returncode, out, err


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(folder of the straight run, folder of the stopped one, what its Ctrl-C said)."""
    root = tmp_path_factory.mktemp("runs with a space")
    straight, stopped = root / "straight", root / "stopped"
    other = start("--out", str(straight))
    rng = random.Random(0)
    options = ("--out", str(stopped))
    for run in (stopped / "warmup", stopped):  # the imitation, then the reinforcement learning
        killed = stop_after_a_checkpoint(start(*options), run, signal.SIGKILL, rng.uniform(0, 0.3))
        assert killed[0] == -signal.SIGKILL
    asked = stop_after_a_checkpoint(start(*options), stopped, signal.SIGINT, rng.uniform(0, 0.3))
    assert asked[0] == 130, asked
    program, *argv = shlex.split(asked[2].splitlines()[-1].removeprefix("resume with: "))
    assert program == "python"
    finish(start(argv=[sys.executable, *argv]))
    finish(other)
    return straight, stopped, asked[2]


def lines_of(file: Path):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in CLOCKS} for line in lines]


def test_ctrl_c_says_where_it_stands_and_how_to_go_on(runs):
    _, stopped, err = runs
    step = re.search(r"stopped after step (\d+); saved in (.+)", err)
    assert 2 < int(step[1]) < 10 and step[2] == str(stopped)
    assert f"resume with: python -m tiny_quickstart --out '{stopped}'" in err


@pytest.mark.parametrize(("part", "steps"), [("warmup", 20), (".", 10)])
def test_every_step_is_logged_once_with_the_same_numbers(runs, part, steps):
    straight, stopped, _ = (Path(r) / part for r in (runs[0], runs[1], ""))
    lines = lines_of(stopped / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, steps + 1))
    assert lines == lines_of(straight / "metrics.jsonl")
    if part == ".":
        assert [line["step"] for line in lines if "eval/score" in line] == [0, 3, 6, 9, 10]
        assert lines_of(stopped / "samples.jsonl") == lines_of(straight / "samples.jsonl")


def last_checkpoint(run: Path):
    """(arrays, the loop's own record) as they lie on the disk."""
    path = run / "checkpoints" / f"step_{steps_saved(run / 'checkpoints')[-1]:08d}"
    host = json.loads((path / "host.json").read_text())["host"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the arrays come where they were saved from
        return ocp.load(path / "state"), {k: v for k, v in host.items() if k not in CLOCKS}


@pytest.mark.parametrize("part", ["warmup", "."])
def test_the_end_is_the_same_to_the_bit(runs, part):
    folders = [run / part for run in runs[:2]]
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        one, two = ((folder / "policy" / name).read_bytes() for folder in folders)
        assert one == two
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    for result in results:
        for clock in CLOCKS & result.keys():
            del result[clock]
    assert results[0] == results[1]

    assert steps_saved(folders[0] / "checkpoints") == steps_saved(folders[1] / "checkpoints")
    states, hosts = zip(*map(last_checkpoint, folders), strict=True)
    assert hosts[0] == hosts[1] and hosts[0]["tokens"] > 0
    assert states[0].keys() == states[1].keys()
    assert any("opt_state" in name for name in states[0])
    for name, x in states[0].items():
        np.testing.assert_array_equal(x, states[1][name], err_msg=name)


def test_the_runs_learnt_something(runs):
    # equal numbers would mean little if nothing had changed
    loss = [line["loss"] for line in lines_of(runs[0] / "warmup" / "metrics.jsonl")]
    assert loss[-1] < 0.5 * loss[0]
    assert lines_of(runs[0] / "metrics.jsonl")[-1]["eval/kl"] > 0
