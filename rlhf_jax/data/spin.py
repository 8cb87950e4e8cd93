"""Self-play (SPIN, 2401.01335): a demonstration against the model's own answer to its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_jax.errors import ConfigError

Row = dict[str, Any]


def spin_pairs(demonstrations: Sequence[Row], samples: Sequence[Row]) -> list[Row]:
    """Rows {"prompt", "chosen", "rejected"}: the demonstration is preferred to every sample.

    Args:
        demonstrations: {"prompt", "completion"}, perhaps with "completion_ids"; one a prompt.
        samples: sample rows of these prompts, drawn from the policy of the last round
            (`data.comparisons`). A sample of the demonstration's own ids is no pair.

    Raises:
        ConfigError: a sampled prompt has no demonstration, or no pair is left.
    """
    of_prompt = {row["prompt"]: row for row in demonstrations}
    pairs = []
    for row in samples:
        shown = of_prompt.get(row["prompt"])
        if shown is None:
            raise ConfigError(f"no demonstration answers the sampled prompt {row['prompt'][:60]!r}")
        chosen = {"chosen": shown["completion"]}
        if "completion_ids" in shown:
            chosen["chosen_ids"] = shown["completion_ids"]
        for text, ids in zip(row["completions"], row["completion_ids"], strict=True):
            if ids != shown.get("completion_ids"):
                common = {"prompt": row["prompt"], "prompt_ids": row["prompt_ids"]}
                pairs.append({**common, **chosen, "rejected": text, "rejected_ids": ids})
    if not pairs:
        raise ConfigError(
            "the samples and the demonstrations are the same: nothing is left to learn"
        )
    return pairs
