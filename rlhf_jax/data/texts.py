"""Texts from outside: read as UTF-8 or refused by place, never half understood."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from rlhf_jax.errors import ConfigError


def read_text(path: Path, *, expected: str) -> str:
    """The text of a UTF-8 file, a byte order mark left out and every line ended by a newline.

    Args:
        path: of the file.
        expected: what it should hold, for the message where there is no such file.

    Raises:
        ConfigError: no such file, one that cannot be read, or (with line and byte) not UTF-8.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; {expected} is expected")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if data.startswith(b"\x1f\x8b"):
        raise ConfigError(f"{path}:1 is gzip-compressed (byte 0); unpack it first")
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line} is not UTF-8 text: {error.reason} at byte {error.start} of the file"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def check_encodable(where: str, name: str, text: str) -> None:
    r"""Refuse half of a surrogate pair, which JSON can spell ("\ud800") and no file can hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{where}: {name!r} holds half of a surrogate pair, {text[error.start]!r}, "
            f"as character {error.start}"
        ) from None


def split_rendered(*texts: str, prompt: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The prompt that whole dialogues share, and what each has after it.

    A chat template may render a prompt alone otherwise than at the head of a dialogue (with an
    open thought, say), so a prompt's length says nothing of where a completion begins: what all
    texts begin with is the prompt, one and the same for every side.

    Args:
        texts: prompt and completion as one text each.
        prompt: rendered alone, if known; the shared beginning is no longer than it.
    """
    every = [*texts, *([] if prompt is None else [prompt])]
    least, most = min(every), max(every)  # what these two share, all between them share too
    agree = (a == b for a, b in zip(least, most, strict=False))
    shared = least[: sum(takewhile(bool, agree))]
    return shared, tuple(text[len(shared) :] for text in texts)
