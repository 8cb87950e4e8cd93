"""What stands between two answers of one dialogue: an observation, as ids.

What was sampled stays as it is, its end token too; nothing of it is ever encoded again. The
observation is encoded once and follows the end token. The rule is the row's, as its prompt's is:

* A prompt of messages: the text that the chat template puts between an answer and the next one,
  with the observation as a message of a role that the template knows ("user", "tool"), up to where
  the next answer begins. The end token of the answer was sampled, so the one that the template
  writes is left out; what follows it (a line break, in ChatML) is there.
* A prompt of text: the observation's text alone. What is to stand round it (a line break, a tag)
  is the environment's to write.

The template is asked about a conversation of one question and one answer: it may write the rest of
a real one anew at every turn (leave out thoughts, say), where the policy has seen what it sampled.
"""

from __future__ import annotations

from typing import Any

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import encode_inside

_ANSWER = "probe"


def observation_ids(tokenizer, prompt: Any, observation: str, *, role: str) -> list[int]:
    """Ids that stand between the end token of one answer and the first token of the next.

    Args:
        tokenizer: has encode(text, add_bos=), end_ids, and render(messages, answer=) for messages.
        prompt: the row's, a text or messages.
        observation: what the environment said.
        role: of the message that it becomes; of no account where the prompt is a text.

    Raises:
        ConfigError: the template refuses the role, or leaves out answers that are not the last.
    """
    if isinstance(prompt, str):
        return encode_inside(tokenizer, observation)
    between = _between(tokenizer, observation, role)
    ids = tokenizer.encode(between.lstrip(), add_bos=False)  # some put a space before the end
    if ids and ids[0] in tokenizer.end_ids:
        return ids[1:]
    return encode_inside(tokenizer, between)


def _between(tokenizer, observation: str, role: str) -> str:
    turns = [("user", "a"), ("assistant", _ANSWER), (role, observation)]
    messages = [{"role": name, "content": text} for name, text in turns]
    _, found, between = tokenizer.render(messages, answer=True).partition(_ANSWER)
    if not found:
        raise ConfigError(
            "the chat template leaves out all answers but the last: a dialogue cannot go on"
        )
    return between
