"""Libraries that are not installed with the package: imported late, missed with a clear word."""

from __future__ import annotations

import importlib.util

from rlhf_jax.errors import ConfigError


def require(module: str, package: str) -> None:
    """Refuse to go on without `module`, naming the extra that installs it.

    Raises:
        ConfigError: it is not installed.
    """
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"this needs {package}: pip install 'rlhf_jax[rewards]'")
