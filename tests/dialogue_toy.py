"""Dialogues in seconds: a tiny policy of which some turns end and some do not, and a world."""

from dataclasses import dataclass, field

from toy import online_config, write_policy

from rlhf_jax.bind import bind
from rlhf_jax.loops.dialogues import DialogueConfig
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer
from rlhf_jax.rewards.dialogue import dialogue_reward

# Of 259 ids 112, so that a random policy ends nine turns in ten within four tokens: all of ASCII
# but what observations are written in.
ENDS = tuple(3 + byte for byte in (*range(0x30), *range(0x40, 0x80)))
PROMPT, TURN, COLUMNS, TURNS = 8, 4, 19, 3


def talker():
    """The byte tokenizer with an end set that a random policy meets."""
    return Tokenizer(byte_tokenizer()._hf, end_ids=ENDS)


def write_talker(folder):
    write_policy(folder)
    talker().save(folder)
    return folder


@dataclass(kw_only=True)
class Counting:
    """Says how many turns there were and how long the last text was; low bytes are paid.

    The row's number decides after how many turns it is done: never, after 1, 2 or 3.
    """

    pays: bool = True
    _turns: int = field(default=0, init=False)
    _until: int = field(default=0, init=False)

    def reset(self, row):
        self._until = row["number"] % 4

    def step(self, text):
        self._turns += 1
        reward = sum(c < "\x80" for c in text) / max(len(text), 1) if self.pays else None
        return f"<{self._turns}:{len(text)}>", reward, self._turns == self._until


def dialogue_config(model, out, **changes):
    """GRPO on dialogues of at most three turns."""
    environment = changes.pop("environment", bind(Counting))
    dialogue = dict(max_turns=TURNS, max_columns=COLUMNS)
    dialogue |= {name: changes.pop(name) for name in dialogue if name in changes}
    options = dict(
        dialogue=DialogueConfig(environment=environment, **dialogue),
        rewards=(bind(dialogue_reward),),
        max_prompt_tokens=PROMPT,
        max_new_tokens=TURN,
    )
    return online_config(model, out, **options | changes)
