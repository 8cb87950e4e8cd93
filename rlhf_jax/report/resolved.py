"""A config as JSON, and what else a run depended on: versions, commit, devices."""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import math
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rlhf_jax
from rlhf_jax.bind import Bound
from rlhf_jax.report.differences import PLACES, differences

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "transformers")


def resolved(value: Any) -> Any:
    """The value in JSON's types, every default written out.

    Dataclasses and dicts become objects, a `Bound` {"fn": "module:name", its arguments}, a
    function "module:name", an enum its name, a dtype its name, arrays and NumPy scalars numbers,
    tuples lists, NaN and infinities null (JSON has no word for them).

    Raises:
        TypeError: a value of another type: a config that cannot be written cannot be repeated.
    """
    if isinstance(value, Bound):
        arguments = {name: resolved(item) for name, item in value.kw.items()}
        return {"fn": _path_of(value.fn), **arguments}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: resolved(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(name): resolved(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolved(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(resolved(item) for item in value)
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return resolved(np.asarray(value).tolist())
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if callable(value):
        # jnp.float32 is a callable that stands for a dtype
        dtype = getattr(value, "dtype", None)
        return dtype.name if isinstance(dtype, np.dtype) else _path_of(value)
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written as JSON")


def changed_options(config: Any) -> dict[str, tuple[Any, Any]] | None:
    """Option -> (the experiment's default, this run's), where they differ.

    The default is the `CONFIG` of the file that was run, or the part of it of the same class.
    None where there is none, or several such parts.
    """
    default = getattr(sys.modules.get("__main__"), "CONFIG", None)
    parts = list(_parts(default, type(config)))
    if len(parts) != 1:
        return None
    changed = differences(resolved(parts[0]), resolved(config))
    return {name: pair for name, pair in changed.items() if name not in PLACES}


def _parts(value: Any, kind: type) -> Iterator[Any]:
    if type(value) is kind:
        yield value
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _parts(getattr(value, field.name), kind)


def _path_of(fn: Any) -> str:
    return f"{fn.__module__}:{fn.__qualname__}"


def surroundings() -> dict[str, Any]:
    """Versions, commit and devices of this process. Starts the jax backend."""
    device = jax.devices()[0]
    return {
        "versions": {
            "python": platform.python_version(),
            "rlhf_jax": rlhf_jax.__version__,
            **{name: _version(name) for name in PACKAGES},
        },
        "commit": commit(Path(rlhf_jax.__file__)),
        "devices": {
            "kind": device.device_kind,
            "platform": device.platform,
            "count": jax.device_count(),
            "processes": jax.process_count(),
        },
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit(file: Path) -> str | None:
    """The commit of the checkout that tracks `file`, "+dirty" where tracked files differ from it.

    None outside a checkout, and where the file lies in one that does not track it (a virtual
    environment inside another project's repository), and without git.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(file.parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", file.name)
        head = git("rev-parse", "HEAD")
        dirty = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return head + "+dirty" if dirty else head
