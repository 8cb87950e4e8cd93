"""What a worker of `reasoning_gym` runs: the task's own scorer.

Several scorers call eval() on the answer, so on whatever a policy has written. Theirs are scored
in a fork each that is walled in like a program (see `sandbox`); where the kernel has no such
walls, they are refused.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import pickle
import re
import sys
from functools import lru_cache
from typing import Any

from rlhf_jax.rewards import sandbox

_state: dict[str, Any] = {}
CPU_SECONDS = 3600  # the runner's own limits come first
OUTPUT = 1 << 20


def load() -> None:
    """Import the tasks before the first fork."""
    import reasoning_gym  # noqa: F401


def enter(options: dict[str, Any]) -> None:
    """Enclose this runner, where the kernel can."""
    _state["memory"] = options["memory"]
    try:
        sandbox.load()
        sandbox.enclose()
        _state["open"] = None
    except sandbox.Unavailable as error:
        _state["open"] = str(error)


def work(item: list[str]) -> dict[str, Any]:
    """{"score": ...} or {"refused": why}.

    Args:
        item: the row, pickled by this project's own process, and the answer.
    """
    row, answer = pickle.loads(base64.b64decode(item[0])), item[1]
    dataset = task_of(row["task"], json.dumps(row["options"], sort_keys=True), row["seed"])
    if not _evaluates(type(dataset)):
        return {"score": _scored(dataset, answer, row)}
    if _state["open"] is not None:
        return {"refused": f"the scorer of {row['task']} evaluates text: {_state['open']}"}
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.restrict(cpu_seconds=CPU_SECONDS, memory=_state["memory"], output=OUTPUT)
            os.write(write_fd, json.dumps({"score": _scored(dataset, answer, row)}).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with os.fdopen(read_fd, "rb") as answers:
        found = answers.read()
    os.waitpid(pid, 0)
    return json.loads(found) if found else {"score": 0.0}


@lru_cache(maxsize=64)
def task_of(task: str, options: str, seed: int) -> Any:
    """The data set of a task; its entries are generated on demand."""
    import reasoning_gym

    return reasoning_gym.create_dataset(task, size=1, seed=seed, **json.loads(options))


def _scored(dataset: Any, answer: str | None, row: dict[str, Any]) -> float:
    entry = {name: row[name] for name in ("question", "answer", "metadata")}
    try:
        return float(dataset.score_answer(answer, entry))
    except Exception:  # on text that the task's author did not foresee
        return 0.0


@lru_cache(maxsize=128)
def _evaluates(kind: type) -> bool:
    source = inspect.getsource(sys.modules[kind.__module__])
    return bool(re.search(r"\b(?:eval|exec|parse_expr|sympify)\(", source))
