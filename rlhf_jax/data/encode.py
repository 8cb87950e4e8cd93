"""Rows to ids: prompts as a sampler meets them, completions as they follow, whole conversations.

Everything is encoded once, from the text that the model is to see; ids that a sampler drew are
taken as they are, and nothing is ever decoded to be encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_jax.data.shapes import why_not_messages
from rlhf_jax.data.texts import check_encodable, split_rendered
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import encode_after

Row = dict[str, Any]


def encode_prompt(row: Row, tokenizer, where: str) -> tuple[str, list[int]]:
    """Text and ids of a row's prompt: a text, or messages up to where the answer begins.

    Raises:
        ConfigError: the prompt is missing, of another type, empty, or without tokens; its given
            ids are beyond the vocabulary; or it is a conversation, and there is no template or the
            assistant has the last word.
    """
    if "prompt" not in row:
        raise ConfigError(f"{where} has no 'prompt'; it has {', '.join(row) or 'nothing'}")
    prompt = row["prompt"]
    if isinstance(prompt, list):
        prompt = render_prompt(row, tokenizer, where)
    elif not isinstance(prompt, str) or not prompt:
        raise ConfigError(f"{where}: 'prompt' is {prompt!r}, not a non-empty string")
    check_encodable(where, "prompt", prompt)
    ids = _drawn(row, "prompt", where, tokenizer) or list(tokenizer.encode(prompt))
    if not ids:
        raise ConfigError(f"{where} has no tokens: {prompt!r}")
    return prompt, ids


def render_prompt(row: Row, tokenizer, where: str) -> str:
    """Text of a prompt of messages, with the beginning of the answer."""
    messages = row["prompt"]
    why = why_not_messages(messages)
    if why is None and messages[-1]["role"] == "assistant":
        why = "ends with the assistant's turn: there is nothing left to answer"
    if why:
        raise ConfigError(f"{where}: 'prompt' {why}")
    return _render(row, tokenizer, where, messages, answer=True)


def encode_row(
    row: Row, tokenizer, where: str, fields: Sequence[str] = ("completion",)
) -> tuple[list[int], list[list[int]]]:
    """Ids of a row's prompt, and of the completions under `fields`.

    A completion is closed by an end token, unless it has one. Ids that a sampler drew (under a
    field's name + "_ids": "prompt_ids", "completion_ids") are taken as they are: what was drawn is
    not always what its text would be encoded as, and a completion cut off by a length limit has
    no end.

    Where prompt and completions are messages, each completion is what the template makes of the
    whole after the beginning that all share: a template may write the beginning of an answer
    otherwise than the answer itself. What follows its end token (a line break, say) is left out.

    Args:
        row: texts or messages under "prompt" and `fields`, perhaps their ids.
        tokenizer: has encode(text, add_bos=), append_end(ids), decode_completion for given ids, and
            render(messages, answer=) and end_ids for messages.
        where: names the row in messages.
        fields: the completions.

    Raises:
        ConfigError: a text is missing or of another type, the prompt has no tokens, or given ids
            do not say their text (so they are another tokenizer's).
    """
    if isinstance(row.get("prompt"), list) and isinstance(row.get(fields[0]), list):
        return _encode_messages(row, tokenizer, where, fields)
    for field in fields:
        if not isinstance(row.get(field), str):
            raise ConfigError(f"{where}: {field!r} is {row.get(field)!r}, not a string")
        check_encodable(where, field, row[field])
    text, prompt = encode_prompt(row, tokenizer, where)
    completions = []
    for field in fields:
        ids = _drawn(row, field, where, tokenizer)
        if ids is None:
            ids = tokenizer.append_end(encode_after(tokenizer, text, prompt, row[field]))
        elif not ids or tokenizer.decode_completion(prompt, ids) != row[field]:
            raise ConfigError(
                f"{where}: {field}_ids are not this tokenizer's ids of {row[field][:40]!r}; draw "
                f"samples with the model to be trained, or leave {field}_ids out"
            )
        completions.append(ids)
    return prompt, completions


def encode_dialogue(row: Row, tokenizer, where: str) -> tuple[list[int], list[bool]]:
    """Ids of a conversation under "messages", and which of them to learn: the assistant's.

    Of every turn of the assistant its text and its end token are learnt; the marks before, that a
    sampler is given, and what the template puts after the end are read alone. Each turn is
    encoded as it follows what stands before. After the last end nothing is kept.

    Raises:
        ConfigError: no such conversation, or a template that writes earlier turns anew when later
            ones follow: what a turn would be learnt after is not what a sampler sees then.
    """
    messages = row.get("messages")
    why = why_not_messages(messages)
    if why is None and all(message["role"] != "assistant" for message in messages):
        why = "holds no message of the assistant: there is nothing to learn"
    if why:
        raise ConfigError(f"{where}: 'messages' {why}")
    text, ids, learn, end = "", [], [], 0
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        upto = _render(row, tokenizer, where, messages[: number + 1], answer=False)
        asked = _render(row, tokenizer, where, messages[:number], answer=True)
        before, (turn, _) = split_rendered(upto, asked)
        if not before.startswith(text) or not turn:
            raise ConfigError(
                f"{where}: the chat template writes earlier turns anew when message {number} "
                "follows; make a row of each turn, as prompt and completion"
            )
        given = (
            encode_after(tokenizer, text, ids, before[len(text) :])
            if ids
            else list(tokenizer.encode(before))
        )
        ids, learn = ids + given, learn + [False] * len(given)
        answer = encode_after(tokenizer, before, ids, turn)
        kept = _until_end(answer, tokenizer)
        ids, learn = ids + answer, learn + [n < kept for n in range(len(answer))]
        end, text = len(ids) - len(answer) + kept, upto
    return _closed(ids[:end], learn[:end], tokenizer)


def _closed(ids: list[int], learn: list[bool], tokenizer) -> tuple[list[int], list[bool]]:
    closed = list(tokenizer.append_end(ids))
    return closed, learn + [True] * (len(closed) - len(ids))


def _encode_messages(row: Row, tokenizer, where: str, fields: Sequence[str]):
    asked, wholes = render_prompt(row, tokenizer, where), []
    for field in fields:
        why = why_not_messages(row.get(field), last="assistant")
        if why:
            raise ConfigError(f"{where}: {field!r} {why}")
        wholes.append(_render(row, tokenizer, where, [*row["prompt"], *row[field]], answer=False))
    prompt, completions = split_rendered(*wholes, prompt=asked)
    ids = list(tokenizer.encode(prompt))
    if not ids:
        raise ConfigError(f"{where}: prompt and completions have no tokens in common")
    answers = [encode_after(tokenizer, prompt, ids, text) for text in completions]
    return ids, [tokenizer.append_end(a[: _until_end(a, tokenizer)]) for a in answers]


def _until_end(ids: list[int], tokenizer) -> int:
    """How many ids there are up to the last end, itself included; all where there is none."""
    ends = [n for n, i in enumerate(ids, start=1) if i in tokenizer.end_ids]
    return ends[-1] if ends else len(ids)


def _render(row: Row, tokenizer, where: str, messages, *, answer: bool) -> str:
    try:
        return tokenizer.render(messages, answer=answer, tools=row.get("tools"))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _drawn(row: Row, field: str, where: str, tokenizer) -> list[int] | None:
    """The row's own ids of a field, or None."""
    ids = row.get(f"{field}_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(i) is not int or i < 0 for i in ids):
        raise ConfigError(f"{where}: '{field}_ids' is {ids!r}, not a list of ids")
    if max(ids, default=0) >= tokenizer.vocab_size:
        raise ConfigError(
            f"{where}: '{field}_ids' holds {max(ids)}, and the tokenizer has "
            f"{tokenizer.vocab_size} ids; draw samples with the model to be trained, or leave "
            f"{field}_ids out"
        )
    return ids
