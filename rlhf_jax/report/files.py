"""JSON files of a run: written so that a crash leaves the old or the new, read with checks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlhf_jax.errors import ConfigError

_REMEDY = "move it away, or pass --restart to move the whole run aside"


def write_atomically(path: Path, text: str) -> None:
    """The file holds the old text or the new, whenever the process dies."""
    new = path.with_name(path.name + ".new")
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def read_object(path: Path) -> dict[str, Any] | None:
    """The object that a JSON file holds; None if the file is missing.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    data = _read(path)
    return None if data is None else _object(data, str(path))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a log, one a line; [] if it is missing. A torn last line is left out.

    Raises:
        ConfigError: the log cannot be read, or another line is not an object with a
            "step", an integer. It names the line.
    """
    # what follows the last newline is empty, unless a write was interrupted
    *lines, _torn = (_read(path) or b"").split(b"\n")
    found = []
    for number, data in enumerate(lines, start=1):
        line = _object(data, f"{path}:{number}")
        if type(line.get("step")) is not int:
            raise damaged(f"{path}:{number}", "it has no step")
        found.append(line)
    return found


def damaged(where: str, why: str) -> ConfigError:
    """The error of a file that no run has written like this."""
    return ConfigError(f"{where} is damaged ({why}); {_REMEDY}")


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}); {_REMEDY}") from None


def _object(data: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, too long, too deep
        raise damaged(where, str(error)) from None
    if not isinstance(found, dict):
        raise damaged(where, f"a {type(found).__name__}, not an object")
    return found
