"""How friendly a text is, by a lexicon: no model, no network, a few thousand texts a second."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _analyzer():
    # reads its lexicon of 7,500 words on creation, so once, and not at import
    from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

    return SentimentIntensityAnalyzer()


def vader(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]]
) -> list[float | None]:
    """VADER compound score in [−1, 1] of prompt + completion (Hutto & Gilbert, ICWSM 2014)."""
    analyzer = _analyzer()
    return [
        analyzer.polarity_scores(prompt + completion)["compound"]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


# A sentence ends with its mark and the quotes or brackets that close after it.
_SENTENCE = re.compile(r"""[^.!?]*[.!?]+["')\]]*|[^.!?]+$""")


def vader_sentences(
    prompts: list[str], completions: list[str], rows: list[dict[str, Any]]
) -> list[list[tuple[int, float]]]:
    """VADER compound score of each sentence of the completion: a process reward.

    A step is one sentence; what is left after the last mark is one too.
    """
    analyzer = _analyzer()
    return [
        [
            (found.end(), analyzer.polarity_scores(found.group())["compound"])
            for found in _SENTENCE.finditer(completion)
        ]
        for completion in completions
    ]
