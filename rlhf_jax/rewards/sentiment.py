"""How friendly a text is, by a lexicon: no model, no network, a few thousand texts a second."""

from __future__ import annotations

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
