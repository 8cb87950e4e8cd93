import io

import pytest
from rich.console import Console

from rlhf_jax.report.progress import COMPILING, Progress, duration


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def run(terminal, *, start=0, total=40, seconds=0.5, every=10, width=120):
    clock, out = Clock(), io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width)
    progress = Progress("GRPO", total=total, start=start, every=every, console=console, clock=clock)
    with progress:
        for step in range(start + 1, total + 1):
            # the first step compiles: the rate must forget it
            clock.now += 60 if step == start + 1 else seconds
            progress.update(step, {"score": step / 100, "kl": None, "length": 12.25})
            if step == start + 2:
                progress.print("[saved] step 2")
    return out.getvalue()


def test_plain_lines_without_a_terminal():
    lines = run(terminal=False).splitlines()
    assert lines == [
        f"GRPO: {COMPILING}",
        "[saved] step 2",
        "GRPO 10/40  6.45 s/step  ETA 3:14  score 0.1  length 12.25",
        "GRPO 20/40  3.48 s/step  ETA 1:10  score 0.2  length 12.25",
        "GRPO 30/40  2.00 steps/s  ETA 0:05  score 0.3  length 12.25",
        "GRPO 40/40  2.00 steps/s  ETA 0:00  score 0.4  length 12.25",
    ]


def test_the_last_step_is_always_shown_and_a_resume_counts_its_own_steps():
    lines = run(terminal=False, start=35, total=43, every=20).splitlines()
    assert lines[2].startswith("GRPO 40/43") and lines[3].startswith("GRPO 43/43")
    assert "7.94 s/step" in lines[3]  # 60 s and seven half seconds over 8 steps


def test_a_bar_in_a_terminal():
    out = run(terminal=True)
    assert "\x1b[" in out and "40/40" in out and "score 0.4" in out and "2.00 steps/s" in out
    assert "[saved] step 2" in out


def test_a_narrow_terminal_keeps_the_count_and_the_time_left():
    out = run(terminal=True, width=50)
    assert "40/40" in out and "ETA 0:00" in out and "length 12.25" not in out


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (754, "12:34"), (3 * 3600 + 61, "3:01:01")]
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_before_the_first_step_there_is_no_rate():
    out = io.StringIO()
    with Progress("a", total=0, console=Console(file=out, width=80)) as progress:
        progress.update(0, {})
    assert out.getvalue().splitlines() == [f"a: {COMPILING}", "a 0/0  - steps/s"]
