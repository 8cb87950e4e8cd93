"""What a person watches while a run runs: a bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

COMPILING = "the first step compiles its programs …"
WINDOW = 20  # steps that the rate is measured over: the first ones compile


def duration(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Progress:
    """Step, rate, time left and live numbers of one phase of a run.

    Args:
        title: of the phase.
        total: steps of the whole phase.
        start: steps that were finished before (a resumed run).
        every: steps between two lines where the output is not a terminal.
        console: where to write; None: standard output.
        clock: seconds, for the rate.
    """

    def __init__(
        self,
        title: str,
        *,
        total: int,
        start: int = 0,
        every: int = 10,
        console: Console | None = None,
        clock=time.monotonic,
    ):
        self.console = console or Console()
        self._title, self._total, self._every, self._clock = title, total, every, clock
        self._times = deque([(start, clock())], maxlen=WINDOW + 1)
        self._bar = None
        if self.console.is_terminal:
            self._bar = RichProgress(
                TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
                MofNCompleteColumn(table_column=Column(no_wrap=True)),
                BarColumn(bar_width=24 if self.console.width >= 120 else 8),
                # in a narrow terminal the last numbers go first, never the count or the time left
                TextColumn(
                    "{task.fields[live]}",
                    markup=False,
                    table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
                ),
                console=self.console,
                refresh_per_second=4,
                expand=True,
            )
            self._task = self._bar.add_task(title, total=total, completed=start, live=COMPILING)

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        else:
            self.print(f"{self._title}: {COMPILING}")
        return self

    def __exit__(self, *exc) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """`step` steps are finished; `numbers` stand beside the bar (None: left out)."""
        self._times.append((step, self._clock()))
        shown = [f"{name} {value:.4g}" for name, value in numbers.items() if value is not None]
        live = "  ".join([self._pace(step), *shown])
        if self._bar:
            self._bar.update(self._task, completed=step, live=live)
        elif step % self._every == 0 or step == self._total:
            self.print(f"{self._title} {step}/{self._total}  {live}")

    def print(self, *what: Any) -> None:
        """Text or a table, above the bar; text is printed as it is."""
        for item in what:
            is_text = isinstance(item, str)
            self.console.print(item, markup=False, highlight=False, soft_wrap=is_text)

    def _pace(self, step: int) -> str:
        (first, begun), (_, now) = self._times[0], self._times[-1]
        if step == first or now <= begun:
            return "- steps/s"
        rate = (step - first) / (now - begun)
        pace = f"{rate:.2f} steps/s" if rate >= 1 else f"{1 / rate:.2f} s/step"
        return f"{pace}  ETA {duration((self._total - step) / rate)}"
