"""A run read back from its folder, finished or not; nothing here starts jax."""

from __future__ import annotations

import fcntl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_jax.errors import ConfigError, nearest
from rlhf_jax.report.files import damaged, read_lines, read_object


@dataclass(frozen=True)
class History:
    """What a run has left.

    path: its folder
    record: config.json: the resolved config, versions, commit, devices, command
    lines: of metrics.jsonl
    samples: of samples.jsonl
    result: result.json; None before the end
    state: "finished", "running" (a process holds the folder) or "stopped"
    """

    path: Path
    record: dict[str, Any]
    lines: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    result: dict[str, Any] | None
    state: str

    @property
    def config(self) -> dict[str, Any]:
        return self.record["config"]

    @property
    def step(self) -> int:
        """Finished steps, as far as they were logged."""
        return max((line["step"] for line in self.lines), default=0)


def read_run(path: str | Path, *, state: str | None = None) -> History:
    """Everything that a report needs of a run folder.

    Args:
        path: the folder.
        state: see `History`; None: told by the folder.

    Raises:
        ConfigError: there is no such folder, it is no run's, or a file in it is damaged; it names
            the folders that were probably meant.
    """
    path = Path(path)
    if not path.is_dir():
        raise ConfigError(f"{path} is not a folder; {_nearby(path.parent, path.name)}")
    record = read_object(path / "config.json")
    if record is None:
        raise ConfigError(
            f"{path} is not the folder of a run: it has no config.json; {_nearby(path, path.name)}"
        )
    if not isinstance(record.get("config"), dict):
        raise damaged(str(path / "config.json"), "it has no 'config'")
    result = read_object(path / "result.json")
    return History(
        path=path,
        record=record,
        lines=read_lines(path / "metrics.jsonl"),
        samples=read_lines(path / "samples.jsonl"),
        result=result,
        state=state or _state(path, result),
    )


def _state(path: Path, result: dict[str, Any] | None) -> str:
    if _is_held(path / ".lock"):
        return "running"
    return "finished" if result else "stopped"


def _nearby(folder: Path, name: str) -> str:
    runs = [child.parent.name for child in sorted(folder.glob("*/config.json"))]
    return f"in {folder}: {nearest(name, runs)}" if runs else f"{folder} holds no runs"


def _is_held(lock: Path) -> bool:
    """A writer of the run folder is alive."""
    try:
        with open(lock, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock file, or a file system without locks
        pass
    return False
