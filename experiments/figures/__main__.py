"""`python -m experiments.figures`: the figures with their last verdict; `--all` runs them all.

`--page` writes the page from the results that are there, without running anything.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from experiments.figures.frame import NOT_RUN, RESULTS, Figure, read_result, run, said
from experiments.figures.page import line_of, write_page
from rlhf_jax.errors import ConfigError

# in the order of the page
NAMES = (
    "response_length",
    "kl_estimators",
    "supervision",
    "maj_at_k",
    "overoptimisation",
    "dynamic_sampling",
    "gradient_variance",
    "likelihood_displacement",
    "ipo_bandit",
    "reward_kl_frontier",
    "kl_controller",
    "reward_model_data",
    "lander",
)


def figures() -> list[Figure]:
    """Every figure, in the order of the page."""
    return [import_module(f"experiments.figures.{name}").FIGURE for name in NAMES]


def main() -> None:
    """List, or run all and write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments.figures", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run every figure, then write the page")
    parser.add_argument("--page", action="store_true", help="write the page from what was run")
    parser.add_argument("--seeds", type=int, nargs="+", help="in place of the figures' own")
    parser.add_argument("--out", type=Path, help="folder of results and page; else this package's")
    options = parser.parse_args()
    out, folder = options.out or RESULTS, options.out or RESULTS.parent
    found = figures()
    if options.all:
        for figure in found:
            try:
                print(said(run(figure, options.seeds, out)), flush=True)
            except ConfigError as error:  # a library that an extra installs
                print(f"{figure.name}: {NOT_RUN}: {error}", flush=True)
    if options.all or options.page:
        write_page(found, out, folder)
    for figure in found:
        title, _, verdict, seeds, _ = line_of(figure, read_result(figure.name, out))
        print(f"{figure.name:24} {verdict:16} {seeds:8} {title}")


if __name__ == "__main__":
    main()
