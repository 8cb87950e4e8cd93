"""How an answer is written, whatever it says: tags, patterns, JSON, length, repetition.

Only the completion is looked at, so an example in the prompt earns nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from rlhf_jax.errors import ConfigError, check_choice, check_number, require
from rlhf_jax.rewards.notes import note

PATTERN_SECONDS = 1.0


def think_format(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    answer_tag: bool = False,
    opened: bool = False,
) -> list[float | None]:
    """1.0 for <think>...</think> at the very beginning, exactly one pair, and an answer after it.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        answer_tag: whether the answer must be one <answer>...</answer>, with nothing but white
            space round it (as in 2501.12948).
        opened: whether the prompt's template ends in <think>, so that the completion only closes.
    """
    return [float(_thinks(text, answer_tag, opened)) for text in completions]


def _thinks(text: str, answer_tag: bool, opened: bool) -> bool:
    text = f"<think>{text}" if opened else text
    thought = re.fullmatch(r"<think>(.*?)</think>(.*)", text, re.DOTALL)
    if not thought or text.count("<think>") != 1 or text.count("</think>") != 1:
        return False
    if not answer_tag:
        return bool(thought.group(2).strip())
    answers = text.count("<answer>"), text.count("</answer>")
    return answers == (1, 1) and bool(
        re.fullmatch(r"\s*<answer>.*\S.*</answer>\s*", thought.group(2), re.DOTALL)
    )


def matches(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]], *, pattern: str
) -> list[float | None]:
    """1.0 where the whole completion matches a regular expression (. matches a newline too).

    Raises:
        ConfigError: the pattern is none. A match that takes more than a second scores 0 and is
            counted as timeouts.
    """
    require("regex", extra="rewards")
    import regex

    try:
        compiled = regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ConfigError(f"pattern={pattern!r} is no regular expression: {error}") from None
    scores: list[float | None] = []
    for completion in completions:
        try:
            found = compiled.fullmatch(completion, timeout=PATTERN_SECONDS)
        except TimeoutError:
            note("timeouts")
            found = None
        scores.append(float(found is not None))
    return scores


def json_format(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]]
) -> list[float | None]:
    """1.0 where the completion is one JSON value and nothing else, or holds it in its only fence.

    Strict: no NaN or Infinity, no key twice in an object.
    """
    return [float(parsed_json(completion) is not None) for completion in completions]


def parsed_json(text: str) -> tuple[Any] | None:
    """(value,) of a text that is JSON, alone or in its only fence; None where it is not."""
    fences = re.findall(r"```(?:json)?[ \t]*\n(.*?)```", text, re.DOTALL | re.IGNORECASE)
    try:
        whole = fences[0] if len(fences) == 1 else text
        return (json.loads(whole, object_pairs_hook=_once, parse_constant=_refused),)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def length_penalty(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    free: int,
    limit: int,
    unit: str = "characters",
) -> list[float | None]:
    """0 up to `free` characters or words, then falling linearly to −1 at `limit` and beyond.

    In tokens, see `ops.shaping.overlong_penalty`: a reward function sees text alone.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        free: length without penalty, at least 0.
        limit: length of the full penalty, above `free`.
        unit: "characters" or "words".
    """
    check_choice("unit", unit, ("characters", "words"))
    check_number("free", free, low=0)
    check_number("limit", limit, low=free, open_low=True)
    sizes = [len(text if unit == "characters" else text.split()) for text in completions]
    return [-min(max(size - free, 0) / (limit - free), 1.0) for size in sizes]


def repetition_penalty(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]], *, ngram: int = 3
) -> list[float | None]:
    """Minus the share of word n-grams that repeat an earlier one, in (−1, 0]: 1 − distinct / all.

    In the manner of 2502.03373; 0 where there are fewer than `ngram` words.
    """
    check_number("ngram", ngram, low=1)
    scores: list[float | None] = []
    for completion in completions:
        words = completion.lower().split()
        grams = list(zip(*(words[i:] for i in range(ngram)), strict=False))
        scores.append(len(set(grams)) / len(grams) - 1.0 if grams else 0.0)
    return scores
