"""Mathematical answers: equal in value, not only as text. math-verify decides the hard ones."""

from __future__ import annotations

import math
import re
from typing import Any

from rlhf_jax.errors import require
from rlhf_jax.rewards.answers import choice_letter, final_answer, unwrapped
from rlhf_jax.rewards.notes import note, overlaps
from rlhf_jax.rewards.numbers import same_list, same_number
from rlhf_jax.rewards.pool import pool

WORK = "rlhf_jax.rewards.maths_work"
MEMORY = 4 << 30
MAX_LENGTH = 1000  # characters; a longer answer is no answer


@overlaps
def maths(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    answer: str = "answer",
    seconds: float = 5.0,
    cpu_seconds: float = 0.5,
) -> list[float | None]:
    r"""1.0 where the completion's final answer equals the row's in value, else 0.0.

    `answers.final_answer` says what the final answer is. Numbers and lists of numbers are compared
    here, exactly; everything else by math-verify in processes that are killed when an answer takes
    too long, which then scores 0 and leaves the others alone.

    Where scorers differ: 50\% equals 50 and also 0.5; x = 5 equals 5; intervals and tuples are
    ordered, sets and lists without brackets are not; 1,234 is 1234 and 1,2 is not 12; a word in
    \text{} is compared as text, so that an anagram is not a product of the same letters; a sum,
    product, integral or limit is no answer where the gold is none, nor is one out of all bounds
    (9^{9^{9}}), unless it is the gold to the letter.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        answer: the field of a row with the gold answer; a number, or a text that may be a whole
            solution with a box or ####.
        seconds: wall-clock limit of one answer.
        cpu_seconds: limit of its CPU time, the same on a busy machine.

    Returns:
        None where the gold answer is missing or cannot be read as mathematics ("see figure"); the
        metrics count these as unreadable_gold, and as timeouts what was killed.

    Raises:
        ConfigError: math-verify is not installed.
    """
    require("math_verify", extra="rewards")
    pairs = [
        (gold_answer(row.get(answer)), final_answer(completion))
        for completion, row in zip(completions, rows, strict=True)
    ]
    quick = {pair: quick_verdict(*pair) for pair in set(pairs)}
    hard = [pair for pair, verdict in quick.items() if verdict == "hard"]
    workers = pool(WORK, seconds=seconds, cpu_seconds=cpu_seconds, memory=MEMORY)
    found = dict(zip(hard, workers.map(hard), strict=True)) if hard else {}
    scores: list[float | None] = []
    for pair in pairs:
        result = found.get(pair)
        verdict = quick[pair] if result is None else result.get("value", False)
        if result is not None and "failed" in result:
            note("timeouts" if result["failed"] == "timeout" else "crashes")
        if verdict is None:
            note("unreadable_gold")
        scores.append(None if verdict is None else float(verdict))
    return scores


def gold_answer(value: Any) -> str | None:
    """The gold answer of a row: of a solution its final answer, else the text, wrappers off."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    text = str(value)
    if re.search(r"\\(boxed|fbox)\b|####|<answer>", text):
        found = final_answer(text)
        return found or None
    text = text.strip()
    words = re.fullmatch(r"\$?\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}\$?\.?", text)
    # the mark that it is a word goes with the text, or a bare word would become one
    return f"\\text{{{unwrapped(words.group(1))}}}" if words else unwrapped(text) or None


def quick_verdict(gold: str | None, answer: str | None) -> bool | str | None:
    """True, False, None (no gold to judge by), or "hard": for math-verify to say."""
    if gold is None:
        return None
    word = re.fullmatch(r"\\text\{(.*)\}", gold)
    if word:
        return answer is not None and _plain(word.group(1)) == _plain(answer)
    if _is_prose(gold):
        return None
    if not answer or len(answer) > MAX_LENGTH:
        return False
    if "=" not in gold:  # x = 5 says 5
        answer = re.sub(r"^\s*[A-Za-z](?:\([A-Za-z]\))?\s*=", "", answer)
    if _plain(gold) == _plain(answer):
        return True
    if re.fullmatch(r"[A-Za-z]", gold):  # a choice or a single variable
        return False
    verdict = same_number(gold, answer)
    verdict = same_list(gold, answer) if verdict is None else verdict
    if verdict is not None:
        return verdict
    undone = _UNDONE.search(answer) and not _UNDONE.search(gold)
    if undone or _is_prose(answer) or _is_boundless(answer):
        return False
    return "hard"


def _plain(text: str) -> str:
    """What two spellings of one formula share; of words the letters' case does not matter."""
    text = re.sub(r"\\(?:left|right|displaystyle|[,!;: ])", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    if re.fullmatch(r"[A-Za-z][A-Za-z' -]*", text):
        return " ".join(text.casefold().split())
    return re.sub(r"\s+", "", text)


_KNOWN = {"sin", "cos", "tan", "log", "exp", "sqrt", "and", "or", "pi", "abs", "inf", "infty"}


def _is_prose(text: str) -> bool:
    """Two or more words, or one that is neither a short product of letters nor a command."""
    if re.search(r"\d", text):
        return False
    bare = re.sub(r"\\[A-Za-z]+(\{[A-Za-z ]*\})?", " ", text)
    words = [word for word in re.findall(r"[A-Za-z]{2,}", bare) if word not in _KNOWN]
    return len(words) > 1 or any(len(word) > 3 for word in words)


_UNDONE = re.compile(r"\\(?:i*int|oint|sum|prod|lim)(?![A-Za-z])")
_BOUNDLESS = (
    re.compile(r"(?:\^|\*\*)\s*[{(]*\s*-?\d{7}"),  # 10^{9999999}
    re.compile(r"\d{5}\s*!|!\s*[)}\]]*\s*!|\^[^!]*\)\s*!"),  # 99999!, (10!)!, (2^{30})!
    re.compile(r"\d{400}"),
    re.compile(r"(?:\d+[})\s]*(?:\^|\*\*)[{(\s]*){3}\d"),  # 2^{2^{2^{2}}} and higher towers
    re.compile(r"\([^()]*[A-Za-z][^()]*\)\s*(?:\^|\*\*)\s*[{(]*\s*\d{3}"),  # (1+x+y)^{300}
    re.compile(r"\\[dt]?binom\s*\{[^{}]*(?:\^|\d{7})"),
)
_TOWER = re.compile(r"[})\d]\s*(?:\^|\*\*)[{(\s]*(\d+)[})\s]*(?:\^|\*\*)[{(\s]*(\d+)")
MAX_DEPTH = 20


def _is_boundless(text: str) -> bool:
    """What no memory or no patience holds: 9^{9^{9}}, 10^{9999999}, 99999!, formulas nested deeper
    than any that is meant. Each would cost a killed process."""
    if any(pattern.search(text) for pattern in _BOUNDLESS):
        return True
    for middle, top in _TOWER.findall(text):
        if len(top) > 3 or int(top) * math.log10(max(int(middle), 1)) > 6:
            return True
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH


def multiple_choice(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    answer: str = "answer",
) -> list[float | None]:
    """1.0 where the completion chooses the row's letter, else 0.0; see `answers.choice_letter`.

    A row whose gold is no single letter (parentheses aside) cannot be judged: None.
    """
    scores: list[float | None] = []
    for completion, row in zip(completions, rows, strict=True):
        gold = row.get(answer)
        letter = choice_letter(gold) if isinstance(gold, str) else None
        if letter is None:
            note("unreadable_gold")
        scores.append(None if letter is None else float(choice_letter(completion) == letter))
    return scores
