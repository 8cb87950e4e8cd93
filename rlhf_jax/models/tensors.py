"""One tensor of a checkpoint and its place in our tree: name, layout, and the way between.

A tensor's layout on disk is written in the letters of `rlhf_jax/types.py`: `"(H K) D"` is a matrix
whose rows are heads × head width, `"() D"` one of a single row, which is a vector of ours. Our own
layout is the suffix of the leaf's name (`q_NDHK`), so the reshape and transpose between the two
follow from the letters and are written nowhere else. `"(H K)+(J K)+(J K) D"` is one tensor that
holds several of ours, one below the other; a rule says which of them is its own.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.typing import DTypeLike

Range = tuple[int, int]
Group = tuple[str, ...]

# Read at a time, in numbers: what a load holds besides the parameter that it is filling.
BLOCK = 2**20


@dataclass(frozen=True)
class TensorRule:
    """One tensor of the file, or one a layer when the name holds `{}`, and its place in ours."""

    name: str
    path: tuple[str, ...]
    axes: tuple[tuple[Group, ...], ...]  # of each axis on disk: what stands in it, in order
    part: int = 0  # where an axis holds several: which is ours
    when: str | None = None  # only in the file if this field of the config is true

    @property
    def layout(self) -> tuple[Group, ...]:
        """The letters of our part of each axis on disk."""
        return tuple(groups[self.part if len(groups) > 1 else 0] for groups in self.axes)

    @property
    def letters(self) -> str:
        """Our axes, the stacked layer axis N left out."""
        return self.path[-1].rsplit("_", 1)[1].replace("N", "")

    @property
    def stacked(self) -> bool:
        return "{}" in self.name

    @property
    def joined(self) -> int | None:
        """The axis on disk that holds several of ours, one after the other."""
        return next((n for n, groups in enumerate(self.axes) if len(groups) > 1), None)

    def shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Our shape, N first if stacked."""
        return tuple(sizes[a] for a in ("N" if self.stacked else "") + self.letters)

    def file_shape(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """Shape of one tensor in the file."""
        return tuple(sum(_size(g, sizes) for g in groups) for groups in self.axes)

    def names(self, num_layers: int) -> list[str]:
        return [self.name.format(n) for n in range(num_layers)] if self.stacked else [self.name]

    def to_file(self, block: np.ndarray, sizes: dict[str, int]) -> np.ndarray:
        """One layer's array in our axes, turned into what the file holds of it."""
        block = block[tuple(slice(sizes[a]) for a in self.letters)]  # padded vocabulary stays
        order = [self.letters.index(a) for group in self.layout for a in group]
        return block.transpose(order).reshape([_size(g, sizes) for g in self.layout])

    def read(self, view: Any, sizes: dict[str, int], ranges: dict[str, Range]) -> np.ndarray:
        """Read a block [start, stop) of each of our axes and turn it into them."""
        index, shape, then = [], [], []
        for groups, group in zip(self.axes, self.layout, strict=True):
            if not group:  # an axis of one, which is none of ours
                index.append(slice(None))
                continue
            before = groups[: self.part] if len(groups) > 1 else ()
            offset = sum(_size(g, sizes) for g in before)
            outer, *rest = group
            # Rows of a group are contiguous for a range of its outer letter; the inner ones are
            # cut after reading.
            stride = _size(tuple(rest), sizes)
            start, stop = ranges[outer]
            index.append(slice(offset + start * stride, offset + stop * stride))
            shape += [stop - start, *(sizes[a] for a in rest)]
            then += [slice(None), *(slice(*ranges[a]) for a in rest)]
        block = view[tuple(index)].reshape(shape)[tuple(then)]
        order = [a for group in self.layout for a in group]
        return block.transpose([order.index(a) for a in self.letters])


def rule(name: str, path: str, layout: str, part: int = 0, when: str | None = None) -> TensorRule:
    """`layout` as in the module's docstring; axes are apart by spaces outside brackets."""
    axes = []
    for axis in re.findall(r"(?:\([^)]*\)|[^\s()])+", layout):
        groups = re.findall(r"\(([^)]*)\)|(\w)", axis)
        axes.append(tuple(tuple((many or one).split()) for many, one in groups))
    return TensorRule(name, tuple(path.split("/")), tuple(axes), part, when)


def read_piece(
    view_of: Any,
    rule: TensorRule,
    sizes: dict[str, int],
    ranges: tuple[Range, ...],
    dtype: DTypeLike,
) -> np.ndarray:
    """The block [start, stop) of each of our axes; zeros past the end of the file's vocabulary.

    Args:
        view_of: name of a tensor -> what reads the part of it that is indexed.
        rule: the parameter, stacked over layers or not.
        sizes: of the axes on disk.
        ranges: of our axes, N first if stacked.
        dtype: to return, whatever the file's.
    """
    out = np.zeros([stop - start for start, stop in ranges], dtype)
    inner = dict(zip(rule.letters, ranges[1:] if rule.stacked else ranges, strict=True))
    inner = {a: (start, min(stop, sizes[a])) for a, (start, stop) in inner.items()}
    if any(start >= stop for start, stop in inner.values()):
        return out
    layers = range(*ranges[0]) if rule.stacked else (None,)
    for n, layer in enumerate(layers):
        view = view_of(rule.name.format(layer))
        into = out[n] if rule.stacked else out
        for block in _blocks(rule, inner):
            held = tuple(
                slice(start - inner[a][0], stop - inner[a][0]) for a, (start, stop) in block.items()
            )
            into[held] = rule.read(view, sizes, block)
    return out


def _blocks(rule: TensorRule, ranges: dict[str, Range]):
    """`ranges` cut along the outermost letter on disk into blocks of about `BLOCK` numbers."""
    outer = next(group[0] for group in rule.layout if group)
    start, stop = ranges[outer]
    total = math.prod(b - a for a, b in ranges.values())
    step = max(1, BLOCK * (stop - start) // total)
    for first in range(start, stop, step):
        yield {**ranges, outer: (first, min(first + step, stop))}


def _size(group: Group, sizes: dict[str, int]) -> int:
    return math.prod(sizes[a] for a in group)
