"""Story openings from a plain TinyStories text: prompts to be continued."""

from __future__ import annotations

import hashlib
import re
from itertools import pairwise
from pathlib import Path

from rlhf_jax.data.texts import read_text
from rlhf_jax.errors import ConfigError, check_choice, check_number

# The text joins stories by blank lines and stories hold blank lines: a paragraph is known to
# open a story only by how stories begin.
_OPENS = re.compile(r"Once upon a time\b|Once(,| there (was|were|lived)\b)|There once (was|lived)")


def find_stories(text: str, *, words: int) -> dict[str, str]:
    """Opening (first `words` words) -> the rest of its story, in the order of the text.

    A story begins with a paragraph that begins as stories do ("Once upon a time", "Once there
    was", …) and is longer than the opening; it goes on to the next such paragraph, and a story
    that begins otherwise hangs on to it. Of two stories with one opening the first stands.
    """
    starts = [0, *(found.end() for found in re.finditer(r"\n\s*\n", text)), len(text)]
    paragraphs = [text[a:b] for a, b in pairwise(starts)]
    stories: dict[str, str] = {}
    rest: list[str] = []
    opening = None
    for paragraph in [*paragraphs, None]:
        opens = paragraph is None or _OPENS.match(paragraph.lstrip())
        if opens and opening is not None:
            stories.setdefault(opening, "".join(rest).rstrip())
            opening = None
        found = list(re.finditer(r"\S+", paragraph or ""))
        if opens and len(found) > words:
            opening = " ".join(word.group() for word in found[:words])
            rest = [paragraph[found[words - 1].end() :]]
        elif paragraph and opening is not None:
            rest.append(paragraph)
    return stories


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
    rows = [{"prompt": opening} for opening, _ in _by_content(path, words, held_out)]
    return rows[held_out:], rows[:held_out]


def story_continuations(
    *, path: str, words: int = 16, held_out: int = 100, part: str = "train"
) -> list[dict[str, str]]:
    """Demonstrations {"prompt": opening, "completion": the rest of its story}.

    Args:
        path, words, held_out: as of `story_openings`, which holds out the same openings.
        part: "train" or "held_out".

    Raises:
        ConfigError: as `story_openings`.
    """
    check_choice("part", part, ("train", "held_out"))
    found = _by_content(path, words, held_out)
    rows = [{"prompt": opening, "completion": rest} for opening, rest in found]
    return rows[held_out:] if part == "train" else rows[:held_out]


def _by_content(path: str, words: int, held_out: int) -> list[tuple[str, str]]:
    """Every story, in the order of the digests of their openings."""
    check_number("words", words, low=1)
    check_number("held_out", held_out, low=1)
    stories = find_stories(read_text(Path(path), expected="a text of stories"), words=words)
    if len(stories) <= held_out:
        raise ConfigError(
            f"{path} holds {len(stories)} distinct openings of {words} words, "
            f"too few to hold out {held_out}"
        )
    return sorted(stories.items(), key=lambda story: hashlib.sha256(story[0].encode()).digest())
