"""Completions with their scores, as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text


def visible(text: str, limit: int) -> Text:
    """The text on one line: control characters as escapes, the middle of a long one left out.

    Model output may hold terminal escapes and [markup]; neither may act on the terminal.
    """
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if len(shown) > limit:
        tail = limit // 3
        shown = shown[: limit - tail - 3] + "..." + shown[len(shown) - tail :]
    return Text(shown)


def sample_table(
    prompts: Sequence[str],
    completions: Sequence[str],
    score_BC: np.ndarray,
    valid_BC: np.ndarray,
    names: Sequence[str],
    *,
    title: str,
    limit: int = 8,
    width: int = 160,
) -> Table:
    """One row a completion: prompt, completion, each function's weighted score, their sum.

    Args:
        prompts: B texts.
        completions: B texts.
        score_BC: weighted scores.
        valid_BC: False where a function does not apply, shown as "-".
        names: one a reward function.
        title: above the table.
        limit: rows at most, spread evenly over the batch (neighbours answer one prompt).
        width: characters at most of a prompt or a completion.
    """
    table = Table(title=Text(title), box=box.SIMPLE_HEAD, title_justify="left")
    table.add_column("prompt", overflow="fold", ratio=2)
    table.add_column("completion", overflow="fold", ratio=3)
    columns = list(names) if len(names) == 1 else [*names, "total"]
    for name in columns:
        table.add_column(Text(name), justify="right", no_wrap=True)
    rows = np.unique(np.linspace(0, len(prompts) - 1, min(limit, len(prompts))).round().astype(int))
    for b in rows:
        scores = [
            f"{score:.3g}" if valid else "-"
            for score, valid in zip(score_BC[b], valid_BC[b], strict=True)
        ]
        if len(names) > 1:
            scores.append(f"{score_BC[b][valid_BC[b]].sum():.3g}" if valid_BC[b].any() else "-")
        table.add_row(
            visible(prompts[b], width), visible(completions[b], width), *map(Text, scores)
        )
    return table
