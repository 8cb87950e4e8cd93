"""Look into a file of rows before a run does.

    python -m rlhf_jax.data inspect FILE [--model FOLDER] [--shape messages] [--rename new=old]
                                    [--chat] [--system TEXT]

Counts, bad rows with their lines, lengths in tokens, repeats, and rows with what is learnt of them.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlhf_jax.data.chats import as_chat
from rlhf_jax.data.files import BadRow, told
from rlhf_jax.data.inspect import PERCENTILES, Example, Findings, inspect_file
from rlhf_jax.data.shapes import SHAPES
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 2 for what a user can mend, 1 where rows are bad, else 0."""
    parser = argparse.ArgumentParser(prog="python -m rlhf_jax.data", description=__doc__)
    command = parser.add_subparsers(required=True).add_parser("inspect", help="what a file holds")
    command.add_argument("file", help=".jsonl, .json, .csv, .tsv, .parquet, .txt, or a folder")
    command.add_argument("--model", help="folder of the tokenizer; without it: bytes")
    command.add_argument("--shape", choices=list(SHAPES), help="default: told by the first row")
    command.add_argument("--rename", nargs="*", default=[], help="new=old names of fields")
    command.add_argument("--chat", action="store_true", help="ask texts through the chat template")
    command.add_argument("--system", help="with --chat: the system message")
    command.add_argument("--examples", type=int, default=3, help="rows to show")
    command.add_argument("--bad", type=int, default=20, help="reasons of bad rows to list")
    cfg = parser.parse_args(arguments)
    console = Console(soft_wrap=True, highlight=False)
    try:
        if cfg.system is not None and not cfg.chat:
            raise ConfigError("--system says how --chat begins: give both")
        tokenizer = Tokenizer.from_folder(cfg.model) if cfg.model else byte_tokenizer()
        ask = partial(as_chat, system=cfg.system) if cfg.chat else None
        options = dict(shape=cfg.shape, rename=cfg.rename, num_examples=cfg.examples, ask=ask)
        found = inspect_file(cfg.file, tokenizer, **options)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(console, found, bad=cfg.bad, unit="tokens" if cfg.model else "bytes")
    return 1 if found.bad else 0


def show(console: Console, found: Findings, *, bad: int, unit: str) -> None:
    """Print the findings; of bad rows `bad` reasons are listed, the others counted."""
    console.print(f"[bold]{escape(str(found.path))}[/bold]: {found.rows} rows of {found.shape}")
    console.print(
        f"repeated rows {found.same_rows}, repeated prompts {found.same_prompts}, "
        f"bad rows {len(found.bad)}"
    )
    alike: dict[str, list[BadRow]] = {}
    for row in found.bad:
        alike.setdefault(row.why, []).append(row)
    for first, *others in list(alike.values())[:bad]:
        more = f" ({len(others)} more rows alike)" if others else ""
        console.print(f"  [red]{escape(told(found.path, first))}[/red]{more}")
    if len(alike) > bad:
        console.print(f"  … and {len(alike) - bad} more")
    table = Table("length in " + unit, *(f"{p}%" for p in PERCENTILES))
    for name, lengths in found.percentiles():
        table.add_row(name, *map(str, lengths))
    if found.rows:
        console.print(table)
    for example in found.examples:
        console.print(rendered(example))


def rendered(example: Example) -> Text:
    """An example with what is learnt between ⟦ and ⟧ (and green, on a terminal)."""
    title = f"line {example.line}{example.name and f', {example.name}'}"
    learns = any(learnt for _, learnt in example.pieces)
    says = "learnt is what stands in ⟦ ⟧" if learns else "a prompt, to be answered"
    text = Text(f"── {title}: {says}\n", style="bold")
    for piece, learnt in example.pieces:
        text.append(f"⟦{piece}⟧" if learnt else piece, style="green" if learnt else "dim")
    return text


if __name__ == "__main__":
    sys.exit(main())
