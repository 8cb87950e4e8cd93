"""Story openings from a plain TinyStories text: prompts to be continued."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from rlhf_jax.data.texts import read_text
from rlhf_jax.errors import ConfigError, check_number

# The text joins stories by blank lines and stories hold blank lines: a paragraph is known to
# open a story only by how stories begin.
_OPENS = re.compile(r"Once upon a time\b|Once(,| there (was|were|lived)\b)|There once (was|lived)")


def find_openings(text: str, *, words: int) -> list[str]:
    """First `words` words of every story, each once, in the order of the text.

    A story is a paragraph that begins as stories do ("Once upon a time", "Once there was", …)
    and is longer than the opening.
    """
    openings = {}
    for paragraph in re.split(r"\n\s*\n", text):
        found = paragraph.split()
        if len(found) > words and _OPENS.match(paragraph.lstrip()):
            openings[" ".join(found[:words])] = None
    return list(openings)


def story_openings(
    *, path: str, words: int = 16, held_out: int = 100
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Training and held-out rows {"prompt": opening}, disjoint.

    Which openings are held out depends on their content alone (the smallest SHA-256 digests), so
    two runs, or two orders of the same stories, hold out the same ones.

    Args:
        path: a text of stories separated by blank lines.
        words: length of an opening.
        held_out: number of held-out openings.

    Raises:
        ConfigError: no such file, not UTF-8 text, or too few openings to leave one for training.
    """
    check_number("words", words, low=1)
    check_number("held_out", held_out, low=1)
    openings = find_openings(read_text(Path(path), expected="a text of stories"), words=words)
    if len(openings) <= held_out:
        raise ConfigError(
            f"{path} holds {len(openings)} distinct openings of {words} words, "
            f"too few to hold out {held_out}"
        )
    by_content = sorted(openings, key=lambda text: hashlib.sha256(text.encode()).digest())
    rows = [{"prompt": text} for text in by_content]
    return rows[held_out:], rows[:held_out]
