"""What becomes of a row that is too long: the names of the policies, and how it is told."""

from __future__ import annotations

import logging

from rlhf_jax.errors import ConfigError

OVER_LONG = ("error", "drop", "left", "right")


def too_long(name: str, number: int, length: int, option: str, limit: int) -> ConfigError:
    """The error of the policy "error", which names the row."""
    return ConfigError(
        f"{name}: row {number} has {length} tokens, more than {option}={limit}; raise it, or "
        'choose over_long="drop", "left" or "right"'
    )


def tell_lengths(name: str, rows: int, dropped: int, cut: int, limit: int) -> None:
    """Log how many rows were dropped or cut.

    Raises:
        ConfigError: no row is left.
    """
    if dropped or cut:
        logging.getLogger(__name__).warning(
            "%s: %d of %d rows dropped, %d cut: longer than %d tokens",
            *(name, dropped, rows, cut, limit),
        )
    if dropped == rows:
        raise ConfigError(f"{name}: every row is longer than {limit} tokens")
