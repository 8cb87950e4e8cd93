import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.pool import pool

GIB = 1 << 30


@pytest.fixture(scope="module")
def workers():
    return pool("pool_work", seconds=3.0, cpu_seconds=0.5, memory=4 * GIB, processes=2)


def is_alive(pid):
    """A zombie that nobody has waited for is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_results_keep_their_order_whatever_happens_to_their_neighbours(workers):
    items = [["echo", 0], ["spin"], ["echo", 2], ["die"], ["raise"], ["base"], ["grow"]]
    items += [["print"], ["echo", 8]]
    found = workers.map(items)
    assert [r.get("value") for r in found] == [0, None, 2, *[None] * 4, "printed", 8]
    assert [r.get("failed") for r in found] == [
        *(None, "timeout", None, "died", "raised", "raised", "raised", None, None)
    ]
    assert found[4]["error"] == "ValueError: this one" and found[5]["error"] == "NoException"


def test_verl_929_a_sleeper_is_killed_by_the_wall_clock(workers):
    began = time.monotonic()
    found = workers.map([["echo", 1], ["sleep", 1000], ["echo", 3]])
    assert 3 <= time.monotonic() - began < 20
    assert [r.get("value") for r in found] == [1, None, 3] and found[1] == {"failed": "timeout"}


def test_the_replacement_of_a_killed_runner_costs_no_new_start(workers):
    before = {tuple(r["value"][1:]) for r in workers.map([["where"]] * 8)}
    assert workers.map([["spin"]] * 2) == [{"failed": "timeout"}] * 2
    after = {tuple(r["value"][1:]) for r in workers.map([["where"]] * 8)}
    # the parent of the runner is where the work was loaded, and it is still the same
    assert after <= before | after and all(parent == loaded for parent, loaded in after)
    assert after & before


def test_a_worker_sees_neither_the_callers_environment_nor_jax(workers, monkeypatch):
    monkeypatch.setenv("SECRET", "1")
    fresh = pool("pool_work", seconds=5.0, processes=1)
    environment, modules = (r["value"] for r in fresh.map([["environment"], ["modules"]]))
    assert "SECRET" not in environment and "HOME" not in environment
    assert not {"jax", "numpy", "pytest"} & set(modules)
    fresh.close()


def test_threads_may_share_a_pool(workers):
    found = {}

    def ask(number):
        found[number] = [r["value"] for r in workers.map([["echo", number]] * 50)]

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == {number: [number] * 50 for number in range(4)}


def test_the_same_work_has_one_pool_and_no_process_before_the_first_item():
    lazy = pool("pool_work", seconds=7.0)
    assert lazy is pool("pool_work", seconds=7.0) is not pool("pool_work", seconds=8.0)
    assert not lazy.workers


def test_closing_ends_every_process():
    closing = pool("pool_work", seconds=9.0, processes=1)
    runner, nursery, _ = closing.map([["where"]])[0]["value"]
    assert is_alive(runner) and is_alive(nursery)
    closing.close()
    limit = time.monotonic() + 10
    while is_alive(runner) and time.monotonic() < limit:
        time.sleep(0.01)
    assert not is_alive(runner) and not is_alive(nursery)
    with pytest.raises(RuntimeError):
        closing.map([["echo", 1]])


@pytest.mark.parametrize("end", ["pass", "os.kill(os.getpid(), 9)", "sys.exit(3)"])
def test_no_process_outlives_the_caller_however_it_ends(end):
    script = f"""
import os, sys
from rlhf_jax.rewards.pool import pool
print(*pool("pool_work", seconds=9.0, processes=1).map([["where"]])[0]["value"][:2], flush=True)
{end}
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run([sys.executable, "-c", script], env=env, stdout=subprocess.PIPE)
    pids = found.stdout.split()
    assert len(pids) == 2
    limit = time.monotonic() + 20
    while any(is_alive(int(pid)) for pid in pids) and time.monotonic() < limit:
        time.sleep(0.02)
    assert not any(is_alive(int(pid)) for pid in pids)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        ("no_such_work", {}, "no_such_work: ModuleNotFoundError"),
        ("pool_work", {"refuse": "this kernel cannot"}, "this kernel cannot"),
    ],
)
def test_work_that_cannot_start_says_why(module, options, message):
    with pytest.raises(ConfigError, match=message):
        pool(module, seconds=5.0, processes=1, **options).map([["echo", 1]] * 20)


@pytest.mark.parametrize("limit", [{"seconds": 0.0}, {"seconds": 1.0, "cpu_seconds": -1.0}])
def test_limits_are_positive(limit):
    with pytest.raises(ConfigError, match="seconds"):
        pool("pool_work", **limit)
