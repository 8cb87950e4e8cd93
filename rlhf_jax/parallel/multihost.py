"""Several processes, one program: who writes files, who waits, and arrays brought to the host.

On one process each of these is a no-op or a plain copy, so the same code runs everywhere.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import multihost_utils


def is_first_process() -> bool:
    """True on the process that writes files and prints."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Wait until every process has come here; `name` must be the same on all."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def to_host(tree: Any) -> Any:
    """numpy copies of the whole arrays, on every process (all processes must call it)."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)
