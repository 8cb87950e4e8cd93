"""Log-probs of a reference, asked once for a whole dataset and kept on disk.

    FOLDER/KEY.npz     the arrays, a record of what they are of, and a digest

The name is a digest of everything that the numbers depend on, so those of another model, other
data or another precision are never found. A file that is damaged is told and made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_jax.errors import ConfigError
from rlhf_jax.parallel.multihost import barrier, is_first_process, to_host

_LAYOUT = 1  # one more whenever what is computed or stored changes


def cached_logprobs(
    folder: str | os.PathLike, key: dict[str, Any], compute: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """`compute()`, or what it gave before for the same key.

    Every process must call it; they read one file system, and the first one writes.

    Args:
        folder: made if missing.
        key: JSON values that tell model, data and arithmetic apart.
        compute: the arrays, float32, whole on every process.

    Raises:
        ConfigError: the folder cannot be written.
    """
    record = json.dumps({"layout": _LAYOUT, **key}, sort_keys=True)
    file = Path(folder) / f"{hashlib.sha256(record.encode()).hexdigest()[:16]}.npz"
    found = _read(file, record)
    # all or none: a process that computes alone would wait for the others for ever
    if np.all(to_host(np.asarray([found is not None]))):
        return found
    arrays = [np.asarray(x, np.float32) for x in compute()]
    if is_first_process():
        try:
            _write(file, record, arrays)
        except OSError as error:
            raise ConfigError(f"reference_cache={folder} cannot be written: {error}") from None
    barrier(f"reference {file.name}")
    return arrays


def _write(file: Path, record: str, arrays: list[np.ndarray]) -> None:
    """Whole or not at all: written beside, then renamed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    with open(beside, "wb") as stream:
        np.savez(stream, *arrays, record=record, digest=_digest(record, arrays))
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(beside, file)


def _read(file: Path, record: str) -> list[np.ndarray] | None:
    """The arrays; None where there is no such file, or it does not hold what it says."""
    if not file.exists():
        return None
    try:
        with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
            arrays = [stored[f"arr_{i}"] for i in range(len(stored.files) - 2)]
            whole = str(stored["digest"]) == _digest(record, arrays)
    # RuntimeError: a flipped bit may say "encrypted", or name another compression
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
        whole, arrays = False, None
        logging.getLogger(__name__).debug("%s: %s", file, error)
    if not whole:
        logging.getLogger(__name__).warning("%s is damaged: asking the reference anew", file)
        return None
    return arrays


def _digest(record: str, arrays: list[np.ndarray]) -> str:
    digest = hashlib.sha256(record.encode())
    for x in arrays:
        digest.update(f"{x.dtype} {x.shape}".encode())
        digest.update(np.ascontiguousarray(x).tobytes())
    return digest.hexdigest()
