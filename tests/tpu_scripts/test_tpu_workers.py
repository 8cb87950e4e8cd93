"""setup, run, status and fetch of tpu_scripts/: their commands run here, a folder a worker."""

import subprocess
import time

import pytest
from pod_cloud import EXTRA, executable


def wait_for(files, text=""):
    limit = time.monotonic() + 20
    while not all(file.exists() and text in file.read_text() for file in files):
        assert time.monotonic() < limit, [file.read_text() for file in files if file.exists()]
        time.sleep(0.02)


# ---- setup


def worker_tools(cloud):
    """A pip and a uv for the workers that install nothing."""
    executable(
        cloud.folder / "worker_bin/python3",
        '#!/bin/sh\n[ "$2" = site ] && echo "$HOME/.local"\nexit 0\n',
    )
    uv = """#!/bin/sh
echo "uv $*" >>"$HOME/uv"
if [ "$1" = venv ]; then
  mkdir -p venv/bin
  printf '#!/bin/sh\\necho jax 1.2.3\\n' >venv/bin/python
  chmod +x venv/bin/python
fi
"""
    for home in cloud.homes():
        executable(home / ".local/bin/uv", uv)


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit, and a file that is not in it."""
    folder = tmp_path / "my checkout"
    folder.mkdir()
    (folder / "setup.py").write_text("")
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "setup.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    (folder / "secret").write_text("")
    return folder


def test_the_committed_code_is_installed_on_every_worker(cloud, checkout):
    worker_tools(cloud)
    (cloud.homes()[0] / "rlhf_jax/work/runs").mkdir(parents=True)
    for _ in range(2):  # the second time nothing is lost
        told = cloud.run("setup", "--source", str(checkout))
        assert told.returncode == 0, told.stderr
    assert "what is not committed is not copied" in told.stderr
    for home in cloud.homes():
        assert {f.name for f in (home / "rlhf_jax/current/").iterdir()} == {"setup.py"}
        assert "-e current[tpu,rewards]" in (home / "uv").read_text()
        assert (home / "uv").read_text().count("uv venv") == 1
    assert (cloud.homes()[0] / "rlhf_jax/work/runs").exists()
    assert told.stdout.count("jax 1.2.3") == 4 and "pod-1:1  jax" in told.stdout


@pytest.mark.parametrize(
    "trouble", [dict(unreachable=["pod-1:0"]), dict(failing={"pod-1:0": "uv venv"})]
)
def test_a_worker_that_is_not_set_up_is_named(cloud, checkout, trouble):
    worker_tools(cloud)
    cloud.change(**trouble)
    said = cloud.run("setup", "--source", str(checkout))
    assert said.returncode == 5
    assert "worker pod-1:0 failed to" in said.stderr and said.stderr.count("failed to") == 1


@pytest.mark.parametrize("script", ["setup", "run", "status", "fetch"])
@pytest.mark.parametrize(
    ("slices", "told"),
    [({}, "there is no slice pod-0"), ({"pod-0": ["PREEMPTED", 2]}, "pod-0 is PREEMPTED")],
)
def test_a_pod_that_is_not_ready_is_told(cloud, script, slices, told):
    cloud.now(slices=slices | {"mypod-0": ["READY", 1], "pod-a-0": ["READY", 1]})
    said = cloud.run(script, *EXTRA.get(script, ()))
    assert said.returncode == 3 and told in said.stderr
    assert not cloud.calls("tpu-vm ssh", "tpu-vm scp")


# ---- run, status, fetch

PROGRAM = """
import os, signal, sys, time
def leave(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
names = sorted(n for n in os.environ if n.startswith(("RLHF", "MY")))
print(os.getcwd(), sys.argv[1:], [(n, os.environ[n]) for n in names], flush=True)
while "stay" in sys.argv:
    time.sleep(0.05)
sys.exit(3)
"""


def start(cloud, *options, words=("stay", "a b", "it's", "$HOME", '"')):
    program = cloud.folder / "program.py"
    program.write_text(PROGRAM)
    return cloud.run("run", "--job", "j", *options, "--", "python", str(program), *words)


def files(cloud, name):
    return [home / "rlhf_jax/jobs/j" / name for home in cloud.homes()]


def test_the_same_command_runs_on_every_worker_until_it_is_stopped(cloud):
    cloud.set_up()
    told = start(cloud, "--env", "MY_OPTION=1 2")
    assert told.returncode == 0, told.stderr
    logs = files(cloud, "log")
    wait_for(logs, "stay")
    for home, log in zip(cloud.homes(), logs, strict=True):
        assert str(home / "rlhf_jax/work") in log.read_text()
        assert str(["stay", "a b", "it's", "$HOME", '"']) in log.read_text()
        names = [("MY_OPTION", "1 2"), ("RLHF_JAX_DISTRIBUTED", "auto")]
        assert str([*names, ("RLHF_JAX_NUM_PROCESSES", "4")]) in log.read_text()

    said = cloud.run("status")
    assert said.returncode == 0 and said.stdout.count("job j: running as process") == 4
    assert "request pod: ACTIVE" in said.stdout and "slice pod-1: READY, 2 workers" in said.stdout
    again = start(cloud)
    assert again.returncode == 5 and "job j is running here" in again.stderr

    assert cloud.run("run", "--job", "j", "--stop").stdout.count("asked to stop") == 4
    wait_for(files(cloud, "code"), "75")
    said = cloud.run("status", "--lines", "2")
    assert said.stdout.count("job j: ended with code 75") == 4 and said.stdout.count("| saved") == 4
    assert cloud.run("run", "--job", "j", "--stop").stdout.count("is not running") == 4

    assert start(cloud, words=()).returncode == 0  # the same job again: its log goes on
    wait_for(files(cloud, "code"), "3")
    assert all("saved" in log.read_text() for log in logs)


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (dict(unreachable=["pod-0:1"]), "worker pod-0:1 failed to be ready"),
        (dict(slices={"pod-0": ["READY", 2], "pod-1": ["READY", 3]}), "not set up: run setup.sh"),
    ],
)
def test_nothing_is_started_unless_every_worker_can(cloud, trouble, told):
    cloud.set_up()
    cloud.change(**trouble)
    said = start(cloud)
    assert said.returncode == 5 and told in said.stderr and "nothing was started" in said.stderr
    assert not any(file.exists() for file in files(cloud, "pid"))


def test_workers_with_different_code_are_told_apart(cloud):
    cloud.set_up()
    link = cloud.homes()[2] / "rlhf_jax/current"
    link.unlink()
    link.symlink_to(link.parent / "code/fedcba987654")
    said = start(cloud)
    assert said.returncode == 5 and "different code" in said.stderr
    assert "pod-1:0  fedcba987654" in said.stderr
    assert not any(file.exists() for file in files(cloud, "pid"))


def test_where_one_worker_fails_to_start_the_others_are_stopped(cloud):
    cloud.set_up()
    cloud.change(failing={"pod-1:1": "nohup"})
    said = start(cloud)
    assert said.returncode == 5
    assert "worker pod-1:1 failed to start" in said.stderr and "no space left" in said.stderr
    # asked before it could read the signal, or after
    wait_for(files(cloud, "code")[:3])
    assert all(file.read_text().strip() in ("75", "143") for file in files(cloud, "code")[:3])


def test_status_names_the_worker_that_does_not_answer(cloud):
    cloud.set_up()
    cloud.change(unreachable=["pod-1:1"])
    said = cloud.run("status")
    assert said.returncode == 5 and "worker pod-1:1 failed to answer" in said.stderr
    assert said.stdout.count("commit abc123def456") == 3


@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_run_and_all_logs_come_back(cloud, checkpoints):
    cloud.set_up()
    run = cloud.homes()[0] / "rlhf_jax/work/runs/my run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "metrics.jsonl").write_bytes(b"\x00\xff")
    for home in cloud.homes():
        (home / "rlhf_jax/jobs/j").mkdir(parents=True)
        (home / "rlhf_jax/jobs/j/log").write_text(home.name)
    cloud.change(unreachable=["pod-1:0"])
    options = ("--run", "runs/my run", "--job", "j", "--to", "back here")
    said = cloud.run("fetch", *options, *["--with-checkpoints"] * checkpoints)
    assert said.returncode == 5 and "worker pod-1:0 failed to send its log" in said.stderr
    back = cloud.folder / "back here"
    assert (back / "my run/metrics.jsonl").read_bytes() == b"\x00\xff"
    assert (back / "my run/checkpoints").exists() == checkpoints
    logs = {file.name: file.read_text() for file in (back / "logs/j").iterdir()}
    assert logs == {f"{name}.log": name for name in ("pod-0.0", "pod-0.1", "pod-1.1")}
    assert cloud.run("fetch", "--run", "nowhere").returncode == 5
