"""Several demonstrations in one row, so that short ones leave no columns empty."""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.order import fingerprint
from rlhf_jax.data.rows import TokenRows
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import SFTBatch


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Best-fit decreasing: positions of documents, bin by bin, no bin above `capacity`.

    The longest document comes first; each goes where the least room is left that holds it, or
    into a new bin. At most 11/9 of the best possible number of bins, and 1 (Johnson, 1974). Of
    equal lengths the earlier comes first, of equal rooms the earlier bin.

    Args:
        lengths: of the documents, in tokens.
        capacity: tokens of a bin.

    Raises:
        ConfigError: a document is longer than a bin.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (room left, bin), ascending
    for document in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[document]
        if length > capacity:
            raise ConfigError(f"document {document} has {length} tokens, a row {capacity}")
        place = bisect_left(room, (length, -1))
        left, number = room.pop(place) if place < len(room) else (capacity, len(bins))
        if number == len(bins):
            bins.append([])
        bins[number].append(document)
        if left > length:
            insort(room, (left - length, number))
    return bins


@dataclass(frozen=True, kw_only=True)
class PackedDemonstrations(TokenRows):
    """Rows of whole demonstrations, each numbered as a segment of its row. Make one with `of`.

    `rows[i]` are the demonstrations in row i. They are packed once, from their lengths alone; the
    rows are shuffled every epoch.
    """

    demonstrations: DemonstrationSet
    rows: list[list[int]]

    @classmethod
    def of(cls, demonstrations: DemonstrationSet) -> PackedDemonstrations:
        """Pack demonstrations into rows of their `max_tokens`; the log tells how full they are.

        Raises:
            ConfigError: they are a mixture, whose shares are of demonstrations and not of rows.
        """
        if demonstrations.shares is not None:
            raise ConfigError("a mixture cannot be packed: its shares count demonstrations")
        lengths, capacity = [len(ids) for ids in demonstrations.ids], demonstrations.max_tokens
        rows = best_fit(lengths, capacity)
        logging.getLogger(__name__).info(
            "%d demonstrations packed into %d rows, %.1f%% full",
            *(
                len(lengths),
                len(rows),
                100 * sum(lengths) / (len(rows) * demonstrations.max_tokens),
            ),
        )
        return cls(
            demonstrations=demonstrations,
            rows=rows,
            pad_id=demonstrations.pad_id,
            num_dropped=demonstrations.num_dropped,
            num_cut=demonstrations.num_cut,
        )

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """Changes with any demonstration or with the rows."""
        return fingerprint([self.demonstrations.fingerprint, self.rows])

    def take(self, index_B: np.ndarray) -> SFTBatch:
        """The rows at these positions, as NumPy arrays [B, T]."""
        data = self.demonstrations
        shape = (len(index_B), data.max_tokens)
        tokens_BT = np.full(shape, data.pad_id, np.int32)
        mask_BT, segment_BT = np.zeros(shape, bool), np.zeros(shape, np.int32)
        for b, row in enumerate(index_B):
            start = 0
            for segment, i in enumerate(self.rows[int(row)], start=1):
                columns = slice(start, start + len(data.ids[i]))
                tokens_BT[b, columns], mask_BT[b, columns] = data.ids[i], data.learn[i]
                segment_BT[b, columns] = segment
                start = columns.stop
        return SFTBatch(
            tokens_BT=tokens_BT, attend_BT=segment_BT > 0, mask_BT=mask_BT, segment_BT=segment_BT
        )
