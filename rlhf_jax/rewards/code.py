"""Programs that are right when their unit tests pass."""

from __future__ import annotations

import re
from typing import Any

from rlhf_jax.errors import require
from rlhf_jax.rewards.answers import after_thinking
from rlhf_jax.rewards.notes import note, overlaps
from rlhf_jax.rewards.pool import pool

WORK = "rlhf_jax.rewards.code_work"
MAX_PROGRAM = 100_000  # characters

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)

_LANGUAGES = ("", "py", "python", "python3")


def program_of(completion: str) -> str | None:
    """The last fenced block of Python (or of no language), after the thought; without any fence
    the whole text. None where it still thinks, or all fences hold something else."""
    text = after_thinking(completion)
    if text is None:
        return None
    blocks = _FENCE.findall(text)
    if not blocks:
        return text
    python = [body for language, body in blocks if language.lower() in _LANGUAGES]
    return python[-1] if python else None


@overlaps
def code(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    tests: str = "tests",
    starter: str = "starter",
    entry_point: str = "entry_point",
    seconds: float = 10.0,
    cpu_seconds: int = 5,
    memory: int = 1 << 30,
    output: int = 1 << 20,
) -> list[float | None]:
    """1.0 where the program passes its tests, else 0.0.

    The program runs in a process without files (but Python's own, read-only), network, child
    processes or the caller's environment; its tests run in another one and see nothing of it but
    plain data (see `remote`), so leaving early, printing "passed", patching builtins or returning
    an object that equals everything passes no test. What it cannot do is also refused to an
    honest program: starting processes, sockets, reading files of the machine, and a test of one
    of its own classes by ==.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        tests: the row's field with the test code, or a list of statements: asserts, a
            check(candidate), test_*() functions, unittest cases.
        starter: the row's field with code that goes before the program, such as imports, helpers
            and the function's head; may be missing.
        entry_point: the row's field with the function that check is given; may be missing.
        seconds: wall-clock limit of one program and its tests.
        cpu_seconds: whole seconds of CPU time for either of the two.
        memory: bytes of address space for either.
        output: bytes that a program may print or write into one file; beyond, writing fails.

    Returns:
        None where the row has no tests or they are not Python; the metrics count these as
        unreadable_gold, and as timeouts what ran over `seconds`.

    Raises:
        ConfigError: this kernel lacks a wall, or the extra is not installed; it says which.
    """
    require("pyseccomp", extra="rewards")
    workers = pool(
        WORK,
        seconds=seconds,
        program_seconds=cpu_seconds,
        program_memory=memory,
        output=output,
    )
    items = [
        _item(completion, row, tests, starter, entry_point)
        for completion, row in zip(completions, rows, strict=True)
    ]
    run = [item for item in items if isinstance(item, dict)]
    found = iter(workers.map(run))
    return [_score(next(found)) if isinstance(item, dict) else _noted(item) for item in items]


def _item(completion, row, tests, starter, entry_point) -> dict[str, Any] | float | None:
    """What a worker runs; or the score where there is nothing to run."""
    asserts = row.get(tests)
    if isinstance(asserts, (list, tuple)) and all(isinstance(line, str) for line in asserts):
        asserts = "\n".join(asserts)
    if not isinstance(asserts, str) or not asserts.strip():
        return None
    program = program_of(completion)
    if program is None or not program.strip() or len(program) > MAX_PROGRAM:
        return 0.0
    head = row.get(starter) or ""
    return {
        "program": program,
        "tests": asserts,
        "starter": head if not head or head.endswith("\n") else head + "\n",
        "entry_point": row.get(entry_point),
    }


def _noted(score: float | None) -> float | None:
    if score is None:
        note("unreadable_gold")
    return score


def _score(result: dict[str, Any]) -> float | None:
    if "failed" in result:
        note("timeouts" if result["failed"] == "timeout" else "crashes")
        return 0.0
    verdict = result["value"]
    if "broken" in verdict:
        return _noted(None)
    return float(verdict["passed"])
