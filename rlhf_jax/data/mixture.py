"""Several datasets in stated proportions."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError, check_number

Row = dict[str, Any]


class MixedRows(list):
    """Rows of several datasets, one dataset after the other.

    Attributes:
        part_of: the dataset's number of each row.
        weights: what the datasets' shares of a batch are proportional to.
    """

    def __init__(self, parts: Sequence[Sequence[Row]], weights: Sequence[float]):
        super().__init__(row for part in parts for row in part)
        self.part_of = [number for number, part in enumerate(parts) for _ in part]
        self.weights = tuple(weights)


def mixture(*, parts: tuple[Bound, ...], weights: tuple[float, ...]) -> MixedRows:
    """Rows of several datasets, of which every batch holds the same shares; see `Shares`.

    Args:
        parts: each returns the rows of one dataset, of the shape that the run reads.
        weights: numbers > 0, one a dataset, relative to each other.

    Raises:
        ConfigError: not one weight a dataset, a weight that is not above 0, or no rows.
    """
    if len(parts) != len(weights) or not parts:
        raise ConfigError(f"a mixture of {len(parts)} datasets has {len(weights)} weights")
    for number, weight in enumerate(weights):
        check_number(f"weights[{number}]", weight, low=0, open_low=True)
    found = [part() for part in parts]
    for part, rows in zip(parts, found, strict=True):
        if not rows:
            raise ConfigError(f"{part!r} returns no rows")
    return MixedRows(found, weights)


@dataclass(frozen=True)
class Shares:
    """The datasets in a mixture: positions of each one's rows, and their weights."""

    members: tuple[np.ndarray, ...]
    weights: tuple[float, ...]

    @classmethod
    def of(cls, rows: Sequence[Row], kept: Sequence[int]) -> Shares | None:
        """Of the rows that are left, at their new positions; None where they are of one dataset.

        Raises:
            ConfigError: nothing is left of a dataset.
        """
        if not isinstance(rows, MixedRows):
            return None
        part_of = np.asarray([rows.part_of[number] for number in kept])
        members = tuple(np.flatnonzero(part_of == part) for part in range(len(rows.weights)))
        for part, member in enumerate(members):
            if not len(member):
                raise ConfigError(f"dataset {part} of the mixture: no row of it is left")
        return cls(members, rows.weights)

    def rows_of(self, batch_rows: int) -> list[int]:
        """How many rows of each dataset a batch holds: w_i · B / Σw, rounded to whole rows.

        The largest remainders are rounded up, so that they add up to B. The same in every batch: a
        small dataset is spread evenly over the run, and no batch is without it.

        Raises:
            ConfigError: a dataset would get no row, or has fewer rows than a batch holds of it.
        """
        exact = np.asarray(self.weights) / sum(self.weights) * batch_rows
        counts = np.floor(exact + 1e-9).astype(int)
        short = batch_rows - counts.sum()
        counts[np.argsort(counts - exact, kind="stable")[:short]] += 1
        for part, (count, member) in enumerate(zip(counts, self.members, strict=True)):
            if not 1 <= count <= len(member):
                raise ConfigError(
                    f"dataset {part} of the mixture has {len(member)} rows and a share of {count} "
                    f"in a batch of {batch_rows}: from 1 to all of them are possible; change "
                    "weights or batch"
                )
        if not np.allclose(counts, exact):
            logging.getLogger(__name__).info(
                "a batch of %d holds %s rows of the datasets; the weights say %s",
                *(batch_rows, counts.tolist(), exact.round(2).tolist()),
            )
        return counts.tolist()
