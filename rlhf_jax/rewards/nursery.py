"""The far side of a pool: one clean process that forks a runner, watches it, and replaces it.

Runs in a process of its own (see `pool`) that has no threads and never sees JAX, so a fork is safe
here and costs milliseconds: a runner that hangs is killed, and the next one is there at once, with
everything imported that was imported before. Lines of JSON come in on stdin and go out on stdout.

A module of work has `load()`, called once before the first fork, `enter(options)`, called in
each new runner, and `work(item)`, called for each item; items and results are JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import resource
import select
import signal
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """SIGKILL for this process as soon as its parent is gone."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it went before we asked
        os._exit(1)


def read_line(fd: int, held: bytearray, seconds: float | None, also: int | None = None) -> bytes:
    """The next line of `fd`.

    Args:
        fd: what to read from.
        held: bytes read beyond earlier lines; kept from call to call.
        seconds: wall-clock limit of each wait; None: none.
        also: a descriptor whose end means that nobody waits for the line any more.

    Raises:
        TimeoutError: nothing came in time.
        EOFError: the other side is gone.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    if also is not None:
        poll.register(also, 0)  # its hang-up alone
    while b"\n" not in held:
        ready = dict(poll.poll(None if seconds is None else max(seconds, 0) * 1000))
        if also in ready:
            raise EOFError("nobody is waiting")
        if not ready:
            raise TimeoutError(f"no answer in {seconds} s")
        read = os.read(fd, 1 << 16)
        if not read:
            raise EOFError("the process is gone")
        held += read
    line, _, rest = bytes(held).partition(b"\n")
    held[:] = rest
    return line


def write_line(fd: int, value: Any) -> None:
    """One JSON value and a newline."""
    data = memoryview(json.dumps(value).encode() + b"\n")
    while data:
        data = data[os.write(fd, data) :]


class Runner:
    """A forked process that does the work, item by item."""

    def __init__(self, module: Any, options: dict[str, Any], close: tuple[int, ...]):
        here, there = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            for fd in (here[1], there[0], *close):
                os.close(fd)
            try:
                _run(module, options, here[0], there[1])
            finally:
                os._exit(1)
        os.close(here[0])
        os.close(there[1])
        self.write_fd, self.read_fd, self.held = here[1], there[0], bytearray()

    def ask(self, item: Any, seconds: float, also: int) -> dict[str, Any]:
        """{"value": ...}, or {"failed": why}; after a failure that ended it, `pid` is None."""
        try:
            write_line(self.write_fd, item)
            return json.loads(read_line(self.read_fd, self.held, seconds, also))
        except TimeoutError:
            self.end()
            return {"failed": "timeout"}
        except (EOFError, BrokenPipeError, ValueError):
            code = self.end()
            killed = os.WTERMSIG(code) if os.WIFSIGNALED(code) else None
            if killed == signal.SIGPROF:
                return {"failed": "timeout"}
            return {"failed": "died", "status": code}

    def entered(self, seconds: float = 60.0) -> dict[str, Any]:
        """What became of `enter`."""
        try:
            return json.loads(read_line(self.read_fd, self.held, seconds))
        except (EOFError, TimeoutError) as error:
            return {"failed": "enter", "error": f"the runner did not start: {error}"}

    def end(self) -> int:
        """Kill it and whatever it started; its status."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.pid = None
        return status


def _run(module: Any, options: dict[str, Any], read_fd: int, write_fd: int) -> None:
    os.setsid()
    die_with_parent()
    if options["memory"] is not None:
        resource.setrlimit(resource.RLIMIT_AS, (options["memory"], options["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The default action ends the process from the kernel, also amid a long computation in C
    # that no Python handler could interrupt.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    try:
        module.enter(options)
    except Exception as error:
        write_line(write_fd, {"failed": "enter", "error": str(error)})
        return
    write_line(write_fd, {"value": None})
    held = bytearray()
    while True:
        try:
            item = json.loads(read_line(read_fd, held, None))
        except EOFError:
            return
        signal.setitimer(signal.ITIMER_PROF, options["cpu_seconds"] or 0)
        try:
            result = {"value": module.work(item)}
        except Exception as error:  # of this item alone
            result = {"failed": "raised", "error": f"{type(error).__name__}: {error}"[:500]}
        except BaseException as error:  # such as a timeout that does not derive from Exception
            result = {"failed": "raised", "error": type(error).__name__}
        signal.setitimer(signal.ITIMER_PROF, 0)
        write_line(write_fd, result)


def serve(module_name: str, options: dict[str, Any]) -> None:
    """Answer every line on stdin, until it ends.

    Args:
        module_name: the module of work.
        options: "seconds" and "cpu_seconds" of an item (None: no limit of the CPU), "memory" of a
            runner in bytes (None: no limit), and whatever else its `enter` reads.
    """
    # what a library prints must not get among the answers
    answers = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    try:
        module = importlib.import_module(module_name)
        module.load()
        runner = _started(module, options, answers)
    except Exception as error:
        write_line(answers, {"failed": "start", "error": f"{type(error).__name__}: {error}"})
        return
    write_line(answers, {"value": None})
    held = bytearray()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            item = json.loads(read_line(0, held, None))
            if runner is None:
                runner = _started(module, options, answers)
            result = runner.ask(item, options["seconds"], 0)
            if runner.pid is None:
                runner = None
            write_line(answers, result)
    if runner is not None and runner.pid is not None:
        runner.end()


def _started(module: Any, options: dict[str, Any], answers: int) -> Runner:
    runner = Runner(module, options, (0, answers))
    entered = runner.entered()
    if "failed" in entered:
        runner.end()
        raise RuntimeError(entered["error"])
    return runner
