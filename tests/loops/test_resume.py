"""A run that is killed, interrupted and resumed ends as one that never stopped, to the bit."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from toy import online_config, saved, share_of_low_bytes

from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.loops import online
from rlhf_jax.types import replace

TESTS = Path(__file__).parents[1]
CLOCKS = {"time", "memory", "seconds", "reward_seconds", "tokens_per_second"}  # all that may differ
PATIENCE = 120.0


def start(*options):
    argv = [sys.executable, "-m", "tiny_quickstart", *options]
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    env["XLA_FLAGS"] = env["XLA_FLAGS"].replace("device_count=8", "device_count=1")
    return subprocess.Popen(
        argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def steps_saved(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def kill_after_a_checkpoint(process, run: Path, delay: float):
    """SIGKILL some time after the first checkpoint of a run."""
    limit = time.monotonic() + PATIENCE
    while not steps_saved(run / "checkpoints"):
        assert process.poll() is None and time.monotonic() < limit, process.communicate()
        time.sleep(0.005)
    time.sleep(delay)
    process.kill()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert not (run / "result.json").exists(), "it finished before it was killed"


def finish(process):
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of the straight run and of the one that was killed twice."""
    root = tmp_path_factory.mktemp("runs with a space")
    straight, stopped = root / "straight", root / "stopped"
    other = start("--out", str(straight))
    rng = random.Random(0)
    options = ("--out", str(stopped))
    for run in (stopped / "warmup", stopped):  # the imitation, then the reinforcement learning
        kill_after_a_checkpoint(start(*options), run, rng.uniform(0, 0.3))
    finish(start(*options))
    finish(other)
    return straight, stopped


def lines_of(file: Path):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k.split("/")[0] not in CLOCKS} for line in lines]


@pytest.mark.parametrize(("part", "steps"), [("warmup", 20), (".", 10)])
def test_every_step_is_logged_once_with_the_same_numbers(runs, part, steps):
    straight, stopped = (run / part for run in runs)
    lines = lines_of(stopped / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, steps + 1))
    assert lines == lines_of(straight / "metrics.jsonl")
    if part == ".":
        assert [line["step"] for line in lines if "eval/score" in line] == [0, 3, 6, 9, 10]
        assert lines_of(stopped / "samples.jsonl") == lines_of(straight / "samples.jsonl")


@pytest.mark.parametrize("part", ["warmup", "."])
def test_trl_3185_nemo_rl_3171_the_end_is_the_same_to_the_bit(runs, part):
    """Samples, optimizer, schedule and token counts of a resumed run are the straight run's."""
    folders = [run / part for run in runs]
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        one, two = ((folder / "policy" / name).read_bytes() for folder in folders)
        assert one == two
    results = [json.loads((folder / "result.json").read_text()) for folder in folders]
    for result in results:
        for clock in CLOCKS & result.keys():
            del result[clock]
    assert results[0] == results[1]

    assert steps_saved(folders[0] / "checkpoints") == steps_saved(folders[1] / "checkpoints")
    last = steps_saved(folders[0] / "checkpoints")[-1]
    states, hosts = zip(*(saved(folder, last) for folder in folders), strict=True)
    for host in hosts:
        del host["seconds"]
    assert hosts[0] == hosts[1]
    assert hosts[0]["tokens" if part == "warmup" else "tokens_drawn"] > 0
    assert states[0].keys() == states[1].keys()
    assert any("opt_state" in name for name in states[0])
    for name, x in states[0].items():
        np.testing.assert_array_equal(x, states[1][name], err_msg=name)


def test_the_runs_learnt_something(runs):
    # equal numbers would mean little if nothing had changed
    loss = [line["loss"] for line in lines_of(runs[0] / "warmup" / "metrics.jsonl")]
    assert loss[-1] < 0.5 * loss[0]
    assert lines_of(runs[0] / "metrics.jsonl")[-1]["eval/kl"] > 0


def interrupting(prompts, completions, rows, *, at: int):
    """Ctrl-C while the at-th batch is judged."""
    interrupting.calls += 1
    if interrupting.calls == at:
        os.kill(os.getpid(), signal.SIGINT)
    return share_of_low_bytes(prompts, completions, rows)


@pytest.mark.usefixtures("one_device", "no_curves")
def test_ctrl_c_saves_says_how_to_go_on_and_goes_on(policy_folder, tmp_path, capsys):
    # two batches of held-out prompts are judged first: the third step is interrupted
    cfg = online_config(
        policy_folder, tmp_path / "run", num_steps=5, rewards=(bind(interrupting, at=5),)
    )
    interrupting.calls = 0
    with pytest.raises(SystemExit) as stop:
        launch(cfg, online.run, [])
    err = capsys.readouterr().err
    assert stop.value.code == 130
    assert f"stopped after step 3; saved in {cfg.out}\nresume with: python " in err
    # step 3 is no multiple of checkpoint.every
    assert steps_saved(Path(cfg.out, "checkpoints")) == [2, 3]
    launch(cfg, online.run, [])

    interrupting.calls = 100
    straight = replace(cfg, out=str(tmp_path / "straight"))
    online.run(straight)
    lines = [lines_of(Path(c.out, "metrics.jsonl")) for c in (cfg, straight)]
    assert lines[0] == lines[1]
    arrays = [saved(c.out, 5)[0] for c in (cfg, straight)]
    for name, x in arrays[0].items():
        np.testing.assert_array_equal(x, arrays[1][name], err_msg=name)
