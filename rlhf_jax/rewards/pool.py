"""Work that may hang, crash or lie, done in processes that can be killed.

A worker is a fresh interpreter (`subprocess`, never a fork of a process in which JAX has threads,
and unlike `multiprocessing`'s spawn it does not run the caller's main module again). It starts
with an empty environment, at the first use, and ends with this process, however that ends.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.rewards.nursery import read_line, write_line
from rlhf_jax.rewards.sandbox import SCRATCH

GRACE_SECONDS = 30.0  # what a worker has to notice that its runner is over time
START_SECONDS = 300.0
MOST_PROCESSES = 32  # a TPU host has hundreds of CPUs; each worker of maths takes 100 MB

_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlhf_jax.rewards.nursery import serve; serve(sys.argv[2], json.loads(sys.argv[3]))"
)


def num_cpus() -> int:
    """CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Worker:
    """One process with a nursery in it."""

    def __init__(self, module: str, options: dict[str, Any]):
        paths = [os.path.abspath(path) for path in sys.path]
        command = [sys.executable, "-I", "-c", _BOOT, json.dumps(paths), module]
        # one thread for linear algebra: there is a worker for every CPU
        environment = {"LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        environment["TMPDIR"] = SCRATCH
        environment |= {k: os.environ[k] for k in ("LD_LIBRARY_PATH",) if k in os.environ}
        self.seconds = options["seconds"] + GRACE_SECONDS
        self.process = subprocess.Popen(
            [*command, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the caller, who then closes the pool
        )
        self.held = bytearray()
        started = self._read(START_SECONDS)
        if "failed" in started:
            self.close()
            raise ConfigError(f"{module}: {started.get('error', 'its process did not start')}")

    def ask(self, item: Any) -> dict[str, Any]:
        """{"value": ...} or {"failed": why, ...}."""
        try:
            write_line(self.process.stdin.fileno(), item)
        except BrokenPipeError:
            self.close()
            return {"failed": "died"}
        return self._read(self.seconds)

    def _read(self, seconds: float) -> dict[str, Any]:
        try:
            return json.loads(read_line(self.process.stdout.fileno(), self.held, seconds))
        except TimeoutError:
            self.close()
            return {"failed": "timeout"}
        except EOFError:
            self.close()
            return {"failed": "died"}

    @property
    def alive(self) -> bool:
        return self.process.returncode is None

    def close(self) -> None:
        """End it; its runner ends with it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Pool:
    """Workers for one kind of work, a thread of this process talking to each. See `pool`."""

    def __init__(self, module: str, processes: int, options: dict[str, Any]):
        self.module, self.options, self.processes = module, options, processes
        self.threads = ThreadPoolExecutor(processes, thread_name_prefix=module.rsplit(".")[-1])
        self.local = threading.local()
        self.workers: set[Worker] = set()
        self.lock = threading.Lock()
        self.closed = False

    def map(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """What became of each item, in order: {"value": ...}, or {"failed": why, ...} with why
        "timeout", "died" (crashed, out of memory) or "raised" (then with "error").

        Raises:
            ConfigError: the workers cannot start; it says why.
        """
        return list(self.threads.map(self._one, items))

    def _one(self, item: Any) -> dict[str, Any]:
        worker = getattr(self.local, "worker", None)
        if worker is None or not worker.alive:
            worker = self.local.worker = self._start()
        return worker.ask(item)

    def _start(self) -> Worker:
        worker = Worker(self.module, self.options)
        with self.lock:
            self.workers = {w for w in self.workers if w.alive} | {worker}
            closed = self.closed
        if closed:
            worker.close()
            raise RuntimeError(f"the pool of {self.module} is closed")
        return worker

    def close(self) -> None:
        """End every process; what is under way fails."""
        with self.lock:
            self.closed, workers = True, self.workers
            self.workers = set()
        self.threads.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


@lru_cache(maxsize=16)
def _pool(module: str, processes: int, options: str) -> Pool:
    pool = Pool(module, processes, json.loads(options))
    atexit.register(pool.close)
    return pool


def pool(
    module: str,
    *,
    seconds: float,
    cpu_seconds: float | None = None,
    memory: int | None = None,
    processes: int | None = None,
    **options: Any,
) -> Pool:
    """The pool for a kind of work; the same arguments give the same one. Made at the first use.

    Args:
        module: of work, as `nursery` describes it.
        seconds: wall-clock limit of an item, in (0, ∞); what runs longer is killed.
        cpu_seconds: limit of its CPU time, which does not depend on how busy the machine is.
            None: no limit.
        memory: bytes of address space of a runner. None: no limit.
        processes: workers. None: one for each CPU, at most `MOST_PROCESSES`.
        **options: for the module's `enter`; JSON.

    Raises:
        ConfigError: a limit that is not positive.
    """
    limits = {"seconds": seconds, "cpu_seconds": cpu_seconds, "memory": memory}
    for name, limit in limits.items():
        if limit is not None:
            check_number(name, limit, low=0, open_low=True)
    if processes is not None:
        check_number("processes", processes, low=1)
    return _pool(
        module, processes or min(num_cpus(), MOST_PROCESSES), json.dumps({**limits, **options})
    )
