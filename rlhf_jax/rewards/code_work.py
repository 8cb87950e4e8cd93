"""One program against its tests, each in a process of its own: what a worker of `code` runs.

The runner encloses itself once. For each item it forks a process that divides off, and there the
tests' process is number 1: when it ends, the kernel kills whatever the program has left behind.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import sys
import types
import unittest
from typing import Any

from rlhf_jax.rewards import sandbox
from rlhf_jax.rewards.nursery import die_with_parent
from rlhf_jax.rewards.remote import AnswerGone, Peer, Remote

# Imported before the walls stand, so that a program finds them at once.
_COMMON = ("bisect", "copy", "functools", "heapq", "itertools", "math", "operator", "random")
_COMMON += ("re", "string", "typing", "statistics", "hashlib", "array", "ast", "textwrap", "time")

_state: dict[str, Any] = {}


def load() -> None:
    """See `sandbox.load`."""
    sandbox.load()
    for name in _COMMON:
        __import__(name)


def enter(options: dict[str, Any]) -> None:
    """Enclose this runner.

    Raises:
        Unavailable: the kernel lacks a wall.
    """
    _state["null"] = os.open(os.devnull, os.O_RDWR)  # not to be found inside
    names = ("program_seconds", "program_memory", "output")
    _state["limits"] = {name: options[name] for name in names}
    sandbox.enclose()
    probe = work({"starter": "", "program": "def f(): return 1", "tests": "assert f() == 1"})
    if probe != {"passed": True}:
        raise sandbox.Unavailable(f"a trivial program does not pass within the walls: {probe}")


def work(item: dict[str, Any]) -> dict[str, Any]:
    """{"passed": bool, "error": ...}, or {"broken": why} where the tests themselves are at fault.

    Args:
        item: "starter" and "program", executed one after the other; "tests"; maybe "entry_point".
    """
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent()
            os.close(read_fd)
            sandbox.divide()
            tests = os.fork()
            if tests == 0:
                die_with_parent()
                _test(item, write_fd)
            os.waitpid(tests, 0)
        except BaseException as error:
            _say(write_fd, {"broken": f"{type(error).__name__}: {error}", "wall": True})
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as answers:
        lines = answers.read().splitlines()
    os.waitpid(pid, 0)
    return json.loads(lines[0]) if lines else {"passed": False, "error": "no verdict"}


def _say(fd: int, verdict: dict[str, Any]) -> None:
    os.write(fd, json.dumps(verdict).encode() + b"\n")


def _restrict() -> None:
    sys.set_int_max_str_digits(0)  # whole numbers cross the line as text
    limits = _state["limits"]
    sandbox.restrict(
        cpu_seconds=limits["program_seconds"],
        memory=limits["program_memory"],
        output=limits["output"],
    )


def _test(item: dict[str, Any], verdict_fd: int) -> None:
    """Process 1: start the program's process, then run the tests; never returns."""
    try:
        there, here = os.pipe(), os.pipe()
        if os.fork() == 0:
            _answer(item, there[0], here[1])
        os.close(there[0])
        os.close(here[1])
        _keep((verdict_fd, there[1], here[0]))
        _restrict()
        sys.setrecursionlimit(10_000)
        verdict = _verdict(item, Peer(here[0], there[1], trusting=False))
    except BaseException as error:  # AnswerGone and a SystemExit of the tests too
        verdict = {"passed": False, "error": _brief(error)}
    try:
        _say(verdict_fd, verdict)
    finally:
        os._exit(0)


def _verdict(item: dict[str, Any], peer: Peer) -> dict[str, Any]:
    try:
        starter = _compiled_head(item["starter"])
        tests = compile(item["tests"], "<tests>", "exec")
    except (SyntaxError, ValueError) as error:
        return {"broken": _brief(error)}
    ready = peer.receive()
    if ready[0] != "ready":
        return {"passed": False, "error": str(ready[1])}
    module = types.ModuleType("tests")
    sys.modules["tests"] = module
    names = module.__dict__
    for name, value in ready[1].items():
        with contextlib.suppress(ImportError):
            names[name] = peer.decode(value)
    entry = names.get(item.get("entry_point"))
    if item.get("entry_point") and not isinstance(entry, Remote):
        return {"passed": False, "error": f"it defines no {item['entry_point']}"}
    if starter is not None:  # helpers of the task, not the answer's own versions of them
        exec(starter, names)
        if entry is not None:
            names[item["entry_point"]] = entry
    exec(tests, names)
    _run_functions(names, entry)
    return {"passed": True}


def _compiled_head(starter: str) -> types.CodeType | None:
    """The starter where it is whole statements; a head whose body is missing is left out."""
    try:
        return compile(starter, "<starter>", "exec")
    except SyntaxError:
        return None


def _run_functions(names: dict[str, Any], entry: Any) -> None:
    """Tests that are only defined by the test code: check(candidate), test_*(), unittest cases."""
    check = names.get("check")
    if entry is not None and inspect.isfunction(check) and _num_required(check) == 1:
        check(entry)
    for name, value in list(names.items()):
        if name.startswith("test") and inspect.isfunction(value) and not _num_required(value):
            value()
        elif isinstance(value, type) and issubclass(value, unittest.TestCase):
            suite = unittest.defaultTestLoader.loadTestsFromTestCase(value)
            result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
            if not result.wasSuccessful():
                raise AssertionError(f"{name}: {len(result.failures + result.errors)} failed")


def _num_required(function: Any) -> int:
    parameters = inspect.signature(function).parameters.values()
    return sum(p.default is p.empty for p in parameters)


def _answer(item: dict[str, Any], read_fd: int, write_fd: int) -> None:
    """The program's process: run it, then answer calls; never returns."""
    try:
        program = item["starter"] + item["program"]
        item.clear()  # the tests are not here to be found in a frame above
        null = _state["null"]
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd, to in ((null, 0), (output, 1), (output, 2)):
            os.dup2(fd, to)
        _keep((read_fd, write_fd))
        _restrict()
        peer = Peer(read_fd, write_fd, trusting=True)
        module = types.ModuleType("answer")
        sys.modules["answer"] = module
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        try:
            exec(compile(program, "<answer>", "exec"), module.__dict__)
        except BaseException as error:
            peer.send(["failed", _brief(error)])
            return
        named = {k: v for k, v in module.__dict__.items() if k[:2] != "__"}
        peer.send(["ready", {name: peer.encode(value) for name, value in named.items()}])
        while True:
            peer.serve(peer.receive())
    except AnswerGone:
        pass
    finally:
        os._exit(0)


def _keep(kept: tuple[int, ...]) -> None:
    """Close every descriptor but the standard ones and `kept`."""
    low = 3
    for fd in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, fd)
        low = fd + 1


def _brief(error: BaseException) -> str:
    with contextlib.suppress(BaseException):
        return f"{type(error).__name__}: {error}"[:300]
    return type(error).__name__
