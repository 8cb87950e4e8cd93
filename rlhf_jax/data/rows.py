"""What all tokenised datasets share: rows that fit their columns, and batches of them by step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grain
import numpy as np

from rlhf_jax.data.lengths import OVER_LONG, tell_lengths, too_long
from rlhf_jax.data.mixture import Shares
from rlhf_jax.data.order import batches_in_order, shuffled_batches
from rlhf_jax.errors import ConfigError, check_choice, check_number

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TokenRows:
    """Tokenised rows of one dataset, drawn by their positions.

    A kind of dataset says how many rows there are (`len`) and what a batch of them is (`take`).

    pad_id: fills the columns that are not attended to
    num_dropped, num_cut: rows that were too long
    shares: of the datasets in a mixture; None where the rows are of one
    """

    pad_id: int
    num_dropped: int
    num_cut: int
    shares: Shares | None = None

    def __len__(self) -> int:
        raise NotImplementedError

    def take(self, index_B: np.ndarray) -> Any:
        """The rows at these positions, as NumPy arrays."""
        raise NotImplementedError

    def batches(self, num_rows: int, seed: int) -> grain.MapDataset:
        """`batches(B, seed)[step]` is the step's batch; rules: `shuffled_batches`."""
        return shuffled_batches(len(self), num_rows, seed, self.take, shares=self.shares)

    def in_order(self, num_rows: int) -> Iterator[tuple[Any, np.ndarray]]:
        """Every row once, in batches of one size: (batch, weight_B); rules: `batches_in_order`."""
        return batches_in_order(len(self), num_rows, self.take)


@dataclass(frozen=True)
class Kept:
    """The rows that fit: `items[i]` came of row `numbers[i]`; the counts of the others."""

    numbers: list[int]
    items: list[Any]
    dropped: int
    cut: int
    shares: Shares | None

    def options(self, pad_id: int) -> dict[str, Any]:
        """The fields of `TokenRows`."""
        counts = {"num_dropped": self.dropped, "num_cut": self.cut}
        return {"pad_id": pad_id, "shares": self.shares, **counts}


def check_rows(rows: Any, name: str) -> None:
    """Refuse what is no sequence of records, or an empty one.

    Raises:
        ConfigError: it names the first row that is none.
    """
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ConfigError(f"{name}: {type(rows).__name__} is no list of rows")
    if not rows:
        raise ConfigError(f"{name}: there are no rows")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{name}: row {number} is {row!r:.60}, not a dict")


def fit_rows(
    rows: Sequence[Row],
    encode: Callable[[Row, str], Any],
    length: Callable[[Any], int],
    cut: Callable[[Any, str], Any | None],
    *,
    limit: int,
    over_long: str,
    name: str,
    option: str = "max_tokens",
    drop: Callable[[Any], Any | None] | None = None,
) -> Kept:
    """Encode rows and settle those that are too long; they are counted, and told in the log.

    Args:
        rows: records of a dataset, or a `MixedRows` of several.
        encode: (row, its name for messages) -> an item of ids; None: as if it were too long to cut.
        length: tokens of an item.
        cut: (item, "left" or "right") -> an item that fits, or None where nothing is left of it.
        limit: tokens that fit.
        over_long: "error", "drop", "left" or "right".
        name: of the dataset, for messages.
        option: that sets the limit, for messages.
        drop: item -> what "drop" leaves of it; None: nothing.

    Raises:
        ConfigError: what `check_rows` and `encode` raise, a row too long under "error", or no row
            left.
    """
    check_choice("over_long", over_long, OVER_LONG)
    check_number(option, limit, low=1 if option != "max_tokens" else 2)
    check_rows(rows, name)
    numbers, items, num_cut = [], [], 0
    for number, row in enumerate(rows):
        item = encode(row, f"{name}: row {number}")
        if item is not None and length(item) > limit:
            if over_long == "error":
                raise too_long(name, number, length(item), option, limit)
            if over_long == "drop":
                item = drop and drop(item)
            else:
                item = cut(item, over_long)
                num_cut += item is not None
        if item is not None:
            numbers.append(number)
            items.append(item)
    dropped = len(rows) - len(items)
    tell_lengths(name, len(rows), dropped, num_cut, limit)
    return Kept(numbers, items, dropped, num_cut, Shares.of(rows, numbers))
