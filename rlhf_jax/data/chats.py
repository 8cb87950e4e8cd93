"""Texts asked as an instruct model is asked: through its chat template, perhaps with a system
message.

prompts=bind(chat_prompts, of=bind(file_prompts, path=..., held_out=200), system="Be brief.")
demonstrations=bind(chat_rows, of=bind(file_rows, path=..., shape="demonstration"))
"""

from __future__ import annotations

from typing import Any

from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError

Row = dict[str, Any]
ANSWERS = ("completion", "chosen", "rejected")


def as_chat(row: Row, system: str | None = None) -> Row:
    """The row with its prompt as the user's message and its completions as the assistant's.

    Args:
        row: "prompt", and whatever of `ANSWERS` it has, as texts; what is a conversation already
            stays as it is. Other fields are kept.
        system: message before the user's. None: the template's own, if it has one.

    Raises:
        ConfigError: there is no prompt; or it is a conversation already, and `system` would be a
            second beginning.
    """
    if "prompt" not in row:
        raise ConfigError(f"a row has no 'prompt'; it has {', '.join(row) or 'nothing'}")
    prompt = row["prompt"]
    if isinstance(prompt, list) and system is not None:
        raise ConfigError("system is for prompts that are texts; this one is a conversation")
    if isinstance(prompt, str):
        before = [] if system is None else [{"role": "system", "content": system}]
        prompt = [*before, {"role": "user", "content": prompt}]
    answers = {
        name: [{"role": "assistant", "content": row[name]}]
        for name in ANSWERS
        if isinstance(row.get(name), str)
    }
    return {**row, "prompt": prompt, **answers}


def chat_prompts(*, of: Bound, system: str | None = None) -> tuple[list[Row], list[Row]]:
    """Training and held-out rows whose prompts are asked through the chat template.

    Args:
        of: returns (training rows, held-out rows) whose prompts are texts.
        system: as of `as_chat`.
    """
    train, held_out = of()
    return [as_chat(row, system) for row in train], [as_chat(row, system) for row in held_out]


def chat_rows(*, of: Bound, system: str | None = None) -> list[Row]:
    """Rows of prompt and completion, or of pairs, as turns of the chat template.

    Args:
        of: returns rows whose prompts and completions are texts.
        system: as of `as_chat`.
    """
    return [as_chat(row, system) for row in of()]
