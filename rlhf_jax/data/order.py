"""Which rows a step sees: a pure function of (seed, step), so the position of a run is its step."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grain
import jax
import numpy as np

from rlhf_jax.data.mixture import Shares
from rlhf_jax.errors import ConfigError, check_divides, check_number


def shuffled_batches(
    num_rows: int,
    batch_rows: int,
    seed: int,
    take: Callable[[np.ndarray], Any],
    *,
    shares: Shares | None = None,
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
        shares: of the datasets in a mixture: each is shuffled by itself, and every batch holds as
            many rows of each as `Shares.rows_of` says, one dataset after the other. An epoch of
            one may end while another's goes on.

    Raises:
        ConfigError: a batch does not fit into the dataset, or the seed is negative.
    """
    check_number("seed", seed, low=0)
    if not 1 <= batch_rows <= num_rows:
        raise ConfigError(
            f"a batch of {batch_rows} rows cannot be drawn without repeats from {num_rows}; "
            f"choose 1 to {num_rows}"
        )
    if shares is None:
        return _shuffled(num_rows, batch_rows, seed, 0).map(take)
    counts = shares.rows_of(batch_rows)
    parts = [
        _shuffled(len(member), count, seed, part)
        for part, (member, count) in enumerate(zip(shares.members, counts, strict=True))
    ]

    def join(step: int) -> Any:
        chosen = [member[rows[step]] for member, rows in zip(shares.members, parts, strict=True)]
        return take(np.concatenate(chosen))

    return grain.MapDataset.range(1).repeat().map_with_index(lambda step, _: join(step))


def _shuffled(num_rows: int, batch_rows: int, seed: int, part: int) -> grain.MapDataset:
    """Row numbers [batch_rows] of every step."""
    # grain gives epoch e the seed s + e: plain seeds 0 and 1 would share all but one epoch
    state = np.random.SeedSequence(seed).generate_state(part + 1)
    whole = num_rows // batch_rows * batch_rows
    rows = grain.MapDataset.range(num_rows).shuffle(int(state[part]))
    return rows.slice(slice(0, whole)).repeat().batch(batch_rows)


@contextmanager
def ahead(batches: Sequence[Any], first: int) -> Iterator[Iterator[Any]]:
    """`batches[first]`, `batches[first + 1]`, …, each made while the one before is worked on.

    The position is the step: an iterator begun at `first` gives what one begun at 0 gives there.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:

        def feed():
            coming = pool.submit(batches.__getitem__, first)
            for step in itertools.count(first + 1):
                batch = coming.result()
                if step < len(batches):
                    coming = pool.submit(batches.__getitem__, step)
                yield batch
                if step >= len(batches):
                    return

        yield feed()


def rows_of_host(batch: Any, host: int, hosts: int) -> Any:
    """One host's rows of a batch, the host-th of equal parts of every array.

    The order of rows is that of the whole batch, made alike on every host: how many there are
    changes who holds a row, never which step it is in.

    Args:
        batch: record of arrays that lead with B.
        host: its number, from 0.
        hosts: how many there are.

    Raises:
        ConfigError: `hosts` does not divide B, or there is no such host.
    """
    check_number("host", host, low=0, high=hosts - 1)

    def part(x):
        check_divides("rows of a batch", len(x), "hosts", hosts)
        size = len(x) // hosts
        return x[host * size : (host + 1) * size]

    return jax.tree.map(part, batch)


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
