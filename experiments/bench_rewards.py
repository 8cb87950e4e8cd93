"""How many mathematical answers a second are judged, a few of them pathological.

    pip install 'rlhf_jax[rewards]'
    python -m experiments.bench_rewards

Half of the golds are whole numbers, the rest fractions, roots, polynomials, intervals, sets and
pairs; half of the answers are right, in another spelling where there is one, and one in a hundred
is meant to hang or to fill the memory. No answer and its gold come twice, so nothing is saved by
remembering. Prints the seconds of the first call, which starts the processes, and of a second one
on other answers. Number to reach on two CPU cores: 4,096 answers in under 10 s.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from experiments.launch import launch
from rlhf_jax.errors import check_number
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.maths import maths

# Some are refused at sight, the last five only by the limit of time.
PATHOLOGICAL = (
    r"9^{{9^{{9^{n}}}}}",
    r"10^{{10^{{{n}0}}}}",
    r"({n}0!)!",
    r"(1+x+y+z)^{{{n}00}}",
    r"\binom{{10^9}}{{{n}}}",
    r"\int_0^{n} \sin(\cos(x^x)) dx",
    r"\frac{{1}}{{1+" * 40 + "{n}" + r"}}" * 40,
    "1{n}" * 400,
    r"\sin(\cos(\tan(x^{{x^{{x}}}})))^{{99}}(x+{n})^{{60}}(x-y)^{{60}}",
    r"(x+y+z+{n})^{{60}}(x+y-z)^{{60}}",
    r"99999999999^{{99{n}99}}",
    r"\prod \sum_{{k=1}}^{{99{n}}} \frac{{1}}{{k+x}}",
    r"\gcd(7^{{99{n}99}},3^{{99999}})",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """How many answers, and how many of them are pathological."""

    answers: int = 4096
    """Answers of one call."""
    pathological: float = 0.01
    """Share of them that is meant to hang."""
    seed: int = 0
    """Of the answers."""

    def __post_init__(self):
        check_number("answers", self.answers, low=1)
        check_number("pathological", self.pathological, low=0, high=1)


CONFIG = BenchConfig()


def problem(rng: np.random.Generator, n: int) -> tuple[str, str, bool]:
    """A gold answer with the number `n` in it, an answer to it, and whether that is right."""
    right = bool(rng.integers(2))
    m = n if right else n + 1
    spelled = {
        "whole": (f"{n}", f"{m:,}"),
        "fraction": (rf"\frac{{{n}}}{{7}}", f"{m}/7"),
        "root": (rf"\frac{{{n}\sqrt{{3}}}}{{2}}", rf"{m}\sqrt{{3}}/2"),
        "polynomial": (f"x^2-{n}x", f"x(x-{m})"),
        "interval": (f"(-{n},3]", rf"\left(-{m},3\right]"),
        "set": (rf"\{{1,{n}\}}", rf"\{{{m},1\}}"),
        "pair": (f"({n},2)", rf"\left({m}, 2\right)"),
        "assignment": (f"{n}x", rf"y={m}x"),
    }
    kinds = list(spelled)
    kind = kinds[0] if rng.random() < 0.5 else kinds[rng.integers(1, len(kinds))]
    return *spelled[kind], right


def call(cfg: BenchConfig, seed: int) -> tuple[float, int, dict[str, float]]:
    """Seconds, wrong verdicts, and what the reward counted."""
    rng = np.random.default_rng(seed)
    problems = [problem(rng, 1000 + number) for number in range(cfg.answers)]
    bad = rng.permutation(cfg.answers)[: round(cfg.pathological * cfg.answers)]
    for place, number in enumerate(bad):
        kind = PATHOLOGICAL[place % len(PATHOLOGICAL)]
        problems[number] = (problems[number][0], kind.format(n=1 + place % 9), False)
    began = time.monotonic()
    found = score_completions(
        [maths],
        None,
        ["?"] * cfg.answers,
        [rf"The answer is \boxed{{{answer}}}." for _, answer, _ in problems],
        [{"answer": gold} for gold, _, _ in problems],
    )
    seconds = time.monotonic() - began
    wrong = sum(
        bool(score) != right
        for score, (_, _, right) in zip(found.score_BC[:, 0], problems, strict=True)
    )
    return seconds, wrong, found.numbers


def run(cfg: BenchConfig) -> None:
    """Measure and print."""
    for name, seed in (("first call", cfg.seed), ("second call", cfg.seed + 1)):
        seconds, wrong, numbers = call(cfg, seed)
        killed = int(numbers.get("reward_timeouts/maths", 0))
        print(
            f"{name}: {cfg.answers} answers in {seconds:.2f} s, {cfg.answers / seconds:.0f} a "
            f"second; {wrong} wrong verdicts, {killed} killed"
        )


if __name__ == "__main__":
    launch(CONFIG, run)
