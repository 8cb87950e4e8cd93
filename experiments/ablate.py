"""One driver for all ablations: variants over seeds, on sums, with intervals and paired tests.

    python -m experiments.ablate_clip                      # or ablate_group, ablate_kl, …
    python -m experiments.ablate_clip --seeds 0 1 2 3 4 --only "clip higher"

Each `ablate_*.py` is a dict of variants, one line each, the first of which the others are compared
with. For every seed a small decoder imitates a teacher of sums (the quickstart's warm-up, made once
and shared by all ablations); every variant starts from it. Runs that are finished are not run
again, one that was stopped goes on. After each seed OUT/comparison.html and OUT/table.md are
written anew. A variant whose numbers overflow is named at the end (exit code 1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.quickstart import RL, SIZES, WARMUP
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.loops import online, sft
from rlhf_jax.loops.evaluate import EvalConfig
from rlhf_jax.loops.run import begin_anew
from rlhf_jax.report.compare import compare_page, grouped, paired_rows, text_table
from rlhf_jax.report.history import read_run
from rlhf_jax.report.page import write_page
from rlhf_jax.rollout.sampler import SamplingConfig

BASE = replace(
    RL,
    objective=grpo(beta=None),
    num_steps=60,
    num_prompts=32,
    sampling=SamplingConfig(num_samples=8, max_new_tokens=5, max_prompt_tokens=7),
    minibatch_rows=128,  # two updates a rollout: the second is off-policy
    evaluation=EvalConfig(every=20),
)


def base_with(base: online.OnlineConfig = BASE, **parts) -> online.OnlineConfig:
    """`base` with other parts of its objective."""
    return replace(base, objective=replace(base.objective, **parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateConfig:
    """Which variants run, on which seeds, where."""

    out: str
    """Holds a run folder of each variant and seed, comparison.html and table.md."""
    warmups: str = "runs/ablate_warmups"
    """Holds the policies that variants start from, by seed; shared by all ablations."""
    warmup: sft.SFTConfig = WARMUP
    """How they are made; out and seed are set from above."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of problems, initial weights and samples: each variant runs once with each."""
    only: tuple[str, ...] = ()
    """Run these variants alone, beside the first; empty: all."""
    share_of_steps: float = 1.0
    """Make so much of each variant's steps (.1 for a quick look)."""
    restart: bool = False
    """Move what OUT holds aside (to OUT.1, OUT.2, …) and begin anew."""

    def __post_init__(self):
        check_number("share_of_steps", self.share_of_steps, low=0, high=1, open_low=True)
        for seed in self.seeds:
            check_number("seeds", seed, low=0, high=2**31 - 1)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds={self.seeds} must be different numbers, one or more")


def ablate(variants: Mapping[str, online.OnlineConfig], cfg: AblateConfig) -> None:
    """Run what is missing, draw the comparison, and say what failed.

    Args:
        variants: name -> config, whose out, seed, model and seed of the prompts are set here; the
            first is compared with the others.
        cfg: which of them, and where.

    Raises:
        ConfigError: `cfg.only` names no variant.
        SystemExit: 1 if a variant's numbers overflowed.
    """
    for name in cfg.only:
        check_choice("only", name, variants)
    out, base = Path(cfg.out), next(iter(variants))
    chosen = [n for n in variants if not cfg.only or n == base or n in cfg.only]
    if cfg.restart:
        begin_anew(out)
    failed, runs = [], []
    for seed in cfg.seeds:
        model = warmed_up(cfg, seed)
        for name in chosen:
            runs.append((name, out / slug(name) / f"seed_{seed}"))
            try:
                online.run(settled(variants[name], cfg, runs[-1][1], seed, model))
            except FloatingPointError as error:
                failed.append(f"{name}, seed {seed}: {error}")
        print(compared(runs, out))
    if failed:
        print("not finished:", *failed, sep="\n  ")
        raise SystemExit(1)


def slug(name: str) -> str:
    """A variant's name as the name of a folder."""
    return re.sub(r"[^\w.+-]+", "_", name).strip("_")


def warmed_up(cfg: AblateConfig, seed: int) -> str:
    """The folder of the policy that the variants of this seed start from; made if missing."""
    out = Path(cfg.warmups) / slug(told(cfg.warmup.demonstrations)) / f"seed_{seed}"
    sft.run(
        replace(
            cfg.warmup,
            out=str(out),
            seed=seed,
            demonstrations=cfg.warmup.demonstrations.replace(seed=seed),
        )
    )
    return str(out / "policy")


def told(demonstrations: Bound) -> str:
    """Names a set of demonstrations: those of another set start another policy."""
    changed = {n: v for n, v in demonstrations.kw.items() if n != "seed" and SIZES.get(n) != v}
    return "_".join([demonstrations.fn.__name__, *(f"{n}_{v}" for n, v in changed.items())])


def settled(
    variant: online.OnlineConfig, cfg: AblateConfig, out: Path, seed: int, model: str
) -> online.OnlineConfig:
    """One run of a variant."""
    return replace(
        variant,
        out=str(out),
        seed=seed,
        model=model,
        prompts=variant.prompts.replace(seed=seed),
        num_steps=max(1, round(variant.num_steps * cfg.share_of_steps)),
    )


def compared(runs: list[tuple[str, Path]], out: Path) -> str:
    """Write OUT/comparison.html and OUT/table.md of the runs so far; the table."""
    labels, found = zip(*((name, read_run(path)) for name, path in runs), strict=True)
    page = compare_page(found, labels=labels, title=out.name)
    write_page(out / "comparison.html", page)
    table = text_table(*paired_rows(grouped(found, labels)))
    write_page(out / "table.md", table)
    return table
