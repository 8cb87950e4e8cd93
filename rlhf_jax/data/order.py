"""Which rows a step sees: a pure function of (seed, step), so the position of a run is its step."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grain
import numpy as np

from rlhf_jax.errors import ConfigError, check_number


def shuffled_batches(
    num_rows: int, batch_rows: int, seed: int, take: Callable[[np.ndarray], Any]
) -> grain.MapDataset:
    """An endless sequence of batches; `batches[step]` costs the same at any step.

    Each epoch is one shuffle of its own, cut into num_rows // batch_rows whole batches. The
    ragged rest of an epoch is left out (another rest every epoch), so a batch never holds a row
    twice: sampling keys fold the prompt's id, and a prompt met twice would give copies.

    Args:
        num_rows: rows of the dataset.
        batch_rows: rows of a batch, at most `num_rows`.
        seed: order of every epoch.
        take: row numbers [batch_rows] -> the batch.

    Raises:
        ConfigError: a batch does not fit into the dataset, or the seed is negative.
    """
    check_number("seed", seed, low=0)
    if not 1 <= batch_rows <= num_rows:
        raise ConfigError(
            f"a batch of {batch_rows} rows cannot be drawn without repeats from {num_rows}; "
            f"choose 1 to {num_rows}"
        )
    # grain gives epoch e the seed s + e: plain seeds 0 and 1 would share all but one epoch
    spread = int(np.random.SeedSequence(seed).generate_state(1)[0])
    whole = num_rows // batch_rows * batch_rows
    rows = grain.MapDataset.range(num_rows).shuffle(spread).slice(slice(0, whole)).repeat()
    return rows.batch(batch_rows).map(take)


def batches_in_order(
    num_rows: int, batch_rows: int, take: Callable[[np.ndarray], Any]
) -> Iterator[tuple[Any, np.ndarray]]:
    """Every row once, in batches of one size: (batch, weight_B).

    The last batch is filled up with its own last row at weight 0, so that one compiled program
    serves all and a mean weighted by weight_B counts each row once.

    Args: as in `shuffled_batches`; a batch may be larger than the dataset.
    """
    check_number("batch_rows", batch_rows, low=1)
    for start in range(0, num_rows, batch_rows):
        index_B = np.arange(start, start + batch_rows)
        weight_B = (index_B < num_rows).astype(np.float32)
        yield take(np.minimum(index_B, num_rows - 1)), weight_B


def fingerprint(records: Iterable[Any]) -> str:
    """A digest of records and their order: a resumed run can tell that its data changed.

    Args:
        records: of what JSON can hold, in dicts with keys of one type; other values count as
            the text that they show, arrays and sets by their content.
    """
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(record, sort_keys=True, default=_plain).encode() + b"\n")
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """The same in every process: without addresses, and sets in an order of their own."""
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if hasattr(value, "tolist"):  # an array, whose text leaves out the middle
        return value.tolist()
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
