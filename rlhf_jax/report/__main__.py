"""See what became of runs: one HTML page that needs nothing beside it, and no network.

    python -m rlhf_jax.report RUN                 # writes RUN/report.html
    python -m rlhf_jax.report compare RUN RUN …   # writes compare.html

Of one run: headline numbers, warnings in words, curves, samples to sort and search, what differs
from the experiment's default. Of several: curves with intervals over seeds, a table with paired
tests against the first. Runs may be finished, running or killed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlhf_jax.errors import ConfigError
from rlhf_jax.report.compare import compare_page
from rlhf_jax.report.history import read_run
from rlhf_jax.report.page import run_page, write_page


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 2 for what a user can mend, else 0."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        compares = arguments[:1] == ["compare"]
        path = _compare(arguments[1:]) if compares else _report(arguments)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"written: {path}")
    return 0


def _parser(name: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"python -m rlhf_jax.report{name}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _report(arguments: list[str]) -> Path:
    parser = _parser("")
    parser.add_argument("run", help="folder of a run, or compare")
    parser.add_argument("--out", help="file to write; default: RUN/report.html")
    options = parser.parse_args(arguments)
    run = read_run(options.run)
    path = Path(options.out or run.path / "report.html")
    write_page(path, run_page(run))
    return path


def _compare(arguments: list[str]) -> Path:
    parser = _parser(" compare")
    parser.add_argument("runs", nargs="+", help="folders; the first one's config is the base")
    parser.add_argument("--out", default="compare.html", help="file to write")
    options = parser.parse_args(arguments)
    path = Path(options.out)
    write_page(path, compare_page([read_run(run) for run in options.runs]))
    return path


if __name__ == "__main__":
    sys.exit(main())
