"""The folder of a run: all that is left of it when the process is gone.

    config.json     resolved config, versions, commit, devices, command
    metrics.jsonl   one line a logged step: {"step", "time", metrics}
    samples.jsonl   {"step", fields of one completion}
    tensorboard/    the same metrics as events
    checkpoints/    what the run resumes from
    policy/         the policy as a Hugging Face folder
    curves.png      report.html     result.json
    .lock           held by the process that writes

`step` counts finished steps: 0 is before the first.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.files import damaged, read_lines, read_object, write_atomically
from rlhf_jax.report.resolved import changed_options, resolved, surroundings

LABELS = ("step", "time")
LOCK = ".lock"


def check_unused(folder: Path) -> None:
    """Refuse a folder into which, or somewhere below, another process is writing.

    Raises:
        ConfigError: it names the run.
    """
    for file in folder.rglob(LOCK):
        held = os.open(file, os.O_RDWR)
        try:
            _hold(held, file.parent)
        finally:
            os.close(held)


def _hold(held: int, folder: Path) -> None:
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"another process is writing {folder}") from None
    except OSError:
        pass  # a file system without locks: better unguarded than no run


class RunFolder:
    """Writes the files above; reads back what a resumed run needs.

    The writer holds the folder until `close`, or until its process ends: two would mix their
    lines.

    Args:
        path: the folder, made if missing.
        writes: False on every process but the first: nothing is then written.

    Raises:
        ConfigError: the folder cannot be made or written, another writer holds it, or a log in
            it is damaged.
    """

    def __init__(self, path: str | Path, *, writes: bool = True):
        self.path = Path(path)
        self.writes = writes
        self.checkpoints = self.path / "checkpoints"
        self.policy = self.path / "policy"
        self.curves = self.path / "curves.png"
        self._metrics = self.path / "metrics.jsonl"
        self._samples = self.path / "samples.jsonl"
        self._board: Any = None
        self._last: tuple[int, set[str]] = (0, set())  # the last step, names it has
        self._release: Callable[[], Any] = lambda: None
        if writes:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.path):
                    pass  # a folder that cannot be written says so now, not after the first step
                self._lock()
                self._rewrite(keep=lambda line: True)  # ends a line that a crash has torn
            except OSError as error:
                self.close()
                raise ConfigError(
                    f"the run folder {path} cannot be made or written: {error}"
                ) from None
            except ConfigError:
                self.close()
                raise

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def config(self) -> dict[str, Any] | None:
        """The resolved config that the folder was begun with; None if it is new."""
        record = self._record()
        return None if record is None else record["config"]

    def write_config(self, config: Any) -> None:
        """Record the config of this run, resolved, and what it runs on.

        "changed" says where the config differs from the experiment's default.
        Where the run is resumed, the record of the processes before it is kept under "earlier".
        """
        earlier = []
        before = self._record()
        if before is not None:
            del before["config"]
            earlier = [*before.pop("earlier"), before]
        self._write_json(
            "config.json",
            {
                "config": resolved(config),
                "changed": changed_options(config),
                **surroundings(),
                "command": [sys.executable, *sys.orig_argv[1:]],
                "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
                "earlier": earlier,
            },
        )

    def write_result(self, result: Mapping[str, Any]) -> None:
        """The headline numbers of the finished run."""
        self._write_json("result.json", resolved(dict(result)))

    def result(self) -> dict[str, Any] | None:
        """What `write_result` was given, resolved; None before that.

        Raises:
            ConfigError: the file is damaged.
        """
        return read_object(self.path / "result.json")

    def metrics(self) -> list[dict[str, Any]]:
        """Every logged line, in order."""
        return read_lines(self._metrics)

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append the metrics of one step; they are on disk when this returns.

        Args:
            step: finished steps, never less than at the last call.
            metrics: name -> number; a value that is not finite is written as null. Names may be
                spread over several calls of one step, each once.

        Raises:
            ValueError: the step goes back, or one of its metrics is logged already.
        """
        if not self.writes:
            return
        last, names = self._last
        if step < last:
            raise ValueError(f"step {step} comes after step {last}")
        taken = set(LABELS) | (names if step == last else set())
        if taken & metrics.keys():
            raise ValueError(f"step {step} has {sorted(taken & metrics.keys())} already")
        numbers = resolved(dict(metrics))
        line = {"step": step, "time": round(time.time(), 3), **numbers}
        self._append(self._metrics, [line])
        self._note(line)
        for name, value in numbers.items():
            if isinstance(value, (int, float)):
                self._events().add_scalar(name, value, step)

    def sample(self, step: int, samples: Iterable[Mapping[str, Any]]) -> None:
        """Append completions of one step, each with its prompt, scores and what else is told."""
        self._append(self._samples, [{"step": step, **resolved(dict(s))} for s in samples])

    def cut_back(self, step: int) -> None:
        """Forget what was logged past a restored checkpoint, so that no step is logged twice.

        Kept are the lines up to `step`; −1 keeps none. A line torn by a crash goes too.
        """
        if not self.writes:
            return
        self._rewrite(lambda line: line["step"] <= step)
        self._close_board()
        if (self.path / "tensorboard").exists():
            self._events(purge_step=step + 1)

    def close(self) -> None:
        """Close the event files and let another writer in; the folder can still be read."""
        self._close_board()
        self._release()

    def _lock(self) -> None:
        """Hold .lock, which stays in the folder: removing it would let two in at once."""
        held = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        # closing the file lets go of it: in close(), with this object, or with the process
        self._release = weakref.finalize(self, os.close, held)
        _hold(held, self.path)

    def _record(self) -> dict[str, Any] | None:
        """config.json, None if it is missing."""
        file = self.path / "config.json"
        found = read_object(file)
        if found is None:
            return None
        for name, kind in (("config", dict), ("earlier", list)):
            if not isinstance(found.get(name), kind):
                raise damaged(str(file), f"it has no {name!r}")
        return found

    def _close_board(self) -> None:
        if self._board is not None:
            self._board.close()
        self._board = None

    def _events(self, purge_step: int | None = None):
        if self._board is None:
            # imported here: where torch is installed, tensorboardX imports it
            from tensorboardX import SummaryWriter

            folder = self.path / "tensorboard"
            # TensorBoard drops what older files hold from purge_step on. Files are named by the
            # second, and a second writer in that second would overwrite the first.
            suffix = f".{len(list(folder.glob('*')))}" if folder.exists() else ".0"
            self._board = SummaryWriter(str(folder), purge_step=purge_step, filename_suffix=suffix)
        return self._board

    def _note(self, line: dict[str, Any]) -> None:
        last, names = self._last
        names = names if line["step"] == last else set()
        self._last = line["step"], names | line.keys()

    def _rewrite(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        for file in (self._metrics, self._samples):
            if file.exists():
                kept = [json.dumps(line) + "\n" for line in read_lines(file) if keep(line)]
                write_atomically(file, "".join(kept))
        self._last = (0, set())
        for line in self.metrics():
            self._note(line)

    def _append(self, path: Path, lines: list[dict[str, Any]]) -> None:
        if self.writes and lines:
            with open(path, "a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        if self.writes:
            write_atomically(self.path / name, json.dumps(content, indent=2) + "\n")
