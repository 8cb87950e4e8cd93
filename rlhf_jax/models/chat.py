"""Conversations as the text that a checkpoint's chat template makes of them.

A conversation is a list of {"role", "content"} messages. Its text brings its own special tokens,
BOS among them where the template prints one; `Tokenizer.encode` sees to it that there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2.exceptions import TemplateError

from rlhf_jax.errors import ConfigError

_PROBE = "probe"


def render(hf, messages: Sequence[dict], *, answer: bool, tools: Any = None) -> str:
    """Text of a conversation.

    Args:
        hf: tokenizer of transformers.
        messages: of which the template may refuse some: an order of roles, a system message.
        answer: the text goes on to where the assistant's answer begins (`add_generation_prompt`).
        tools: JSON schemas of functions, where the template knows of such.

    Raises:
        ConfigError: the tokenizer has no chat template, or the template refuses the messages.
    """
    if not hf.chat_template:
        raise ConfigError(
            "a row is a conversation, and this tokenizer has no chat template: use a model that "
            "has one, or write texts as prompt and completion"
        )
    try:
        return hf.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=answer
        )
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise ConfigError(f"the chat template refuses messages of {roles}: {error}") from None


def end_of_turn(hf) -> int | None:
    """The special token with which the template closes an answer; None: there is none.

    Such a token ends what is sampled, whether or not the checkpoint's files say so: without it a
    sampler would go on into the next turn.
    """
    if not hf.chat_template:
        return None
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
    try:
        tail = render(hf, turns, answer=False).rpartition(_PROBE)[2]
    except ConfigError:  # a template of its own order of roles; the files' ends stand
        return None
    ids = hf.encode(tail.lstrip(), add_special_tokens=False)
    special = {*hf.all_special_ids, *(i for i, t in hf.added_tokens_decoder.items() if t.special)}
    return ids[0] if ids and ids[0] in special else None
