"""Dialogues with an environment in place of single answers: turn, observation, turn, …

`DialogueSampler` is called as a sampler of answers is, and what it returns is a rollout like any
other: sampled tokens are counted (`mask_BT`), the prompt and observations are not. What reads a
rollout need not know.

* Ids that were sampled are trained on as they are. An observation is encoded once, by the rule of
  `models.turns`, and appended.
* Every turn is answered by the environment. Then the dialogue goes on, unless the environment is
  done. It is cut short (`truncated_B`; its rewards stand) where the turn reached max_new_tokens
  without an end token, max_turns were taken, or the columns have no room for the observation and
  a whole further turn: no sampled token is ever thrown away.
* A token's key is that of (seed, step, purpose, attempt), with turn, prompt id, sample and place
  in the turn folded in: any batch, device or process draws the same.
* Two programs: the first turn shares a prompt's prefill among its samples; every later one reads
  its whole row again, left-padded to one width. It costs (turns − 1) forward passes of B·(L + R)
  tokens over one cache that would go on, and nothing is compiled after the second turn.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.bind import Bound
from rlhf_jax.environments.contract import Environment, answered, begin, check_environment
from rlhf_jax.errors import ConfigError, check_number
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.models.turns import observation_ids
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.parts import check_kinds
from rlhf_jax.rewards.compose import reward_names
from rlhf_jax.rewards.notes import note
from rlhf_jax.rollout.dialogue import DialogueRows
from rlhf_jax.rollout.sampler import SamplingConfig, make_sampler
from rlhf_jax.types import Prompts, Rollout, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueConfig:
    """Who answers the policy, and for how long."""

    environment: Bound
    """What answers: bind(Class, ...) of a class with reset(row) and step(text)."""
    max_turns: int
    """Turns of the policy at most, each of sampling.max_new_tokens at most."""
    max_columns: int
    """Tokens of a dialogue after its prompt at most (R), sampled and observed together."""
    role: str = "user"
    """Whose message an observation is in the chat template: user, tool, ...; of no account where
    prompts are texts."""

    def __post_init__(self):
        check_kinds(self, "dialogue.")
        check_environment(self.environment)
        for name in ("max_turns", "max_columns"):
            check_number(f"dialogue.{name}", getattr(self, name), low=1)

    def check_room(self, max_new_tokens: int) -> None:
        """Refuse columns that leave no room for a second turn, or for the one that there is."""
        least = min(self.max_turns, 2) * max_new_tokens
        if self.max_columns < least:
            raise ConfigError(
                f"dialogue.max_columns={self.max_columns} has no room for "
                f"{min(self.max_turns, 2)} turns of sampling.max_new_tokens={max_new_tokens}: "
                f"at least {least}, and what is observed between"
            )


def check_dialogue(config: DialogueConfig, tokenizer: Tokenizer, row: dict[str, Any]) -> None:
    """Try the environment and the rule for observations on a row, before anything is compiled.

    Raises:
        ConfigError: the environment breaks its contract, or the chat template the dialogue.
    """
    begin(config.environment, row, f"environment {_name(config)}, row 0")
    observation_ids(tokenizer, row["prompt"], "a", role=config.role)


class DialogueSampler:
    """`sample(params, prompts, key)` -> the Rollout of whole dialogues, G a prompt, T = L + R.

    Args:
        model: the decoder.
        sampling: of one turn; `max_prompt_tokens` is L, that of the prompts.
        config: the environment and its limits.
        tokenizer: turns sampled ids into texts, and observations into ids.
        errors: what it is that the environment raises. "raise": the end. "skip": the dialogue
            stops there without a score, and is counted in the metrics.
        mesh: where the model lives.
    """

    def __init__(
        self,
        model: Model,
        sampling: SamplingConfig,
        config: DialogueConfig,
        tokenizer: Tokenizer,
        *,
        errors: str,
        mesh: Mesh,
    ):
        self.sampling, self.config, self.tokenizer = sampling, config, tokenizer
        self.errors, self.mesh = errors, mesh
        # a further turn begins only where it fits whole
        self.width = sampling.max_prompt_tokens + config.max_columns - sampling.max_new_tokens
        further = replace(sampling, num_samples=1, max_prompt_tokens=self.width)
        ids = dict(end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id)
        self.first = make_sampler(model, sampling, **ids)
        self.further = make_sampler(model, further, **ids)

    def __call__(self, params: Any, prompts: Prompts, key: jax.Array) -> Rollout:
        rows = DialogueRows(
            prompts,
            num_samples=self.sampling.num_samples,
            columns=self.config.max_columns,
            pad_id=self.tokenizer.pad_id,
        )
        dialogues: dict[int, Environment] = {}
        for turn in range(self.config.max_turns):
            rows.write_turn(self._drawn(params, prompts, rows, key, turn))
            began = time.monotonic()
            for b in np.flatnonzero(rows.open_B).tolist():
                self._answer(dialogues, prompts, rows, b, turn)
            note(f"reward_seconds/{_name(self.config)}", time.monotonic() - began)
            if not rows.open_B.any():
                break
        return shard_rows(self.mesh, rows.rollout())

    def _drawn(
        self, params: Any, prompts: Prompts, rows: DialogueRows, key: jax.Array, turn: int
    ) -> Rollout:
        """The next turn of every open row, on the host."""
        key = jax.random.fold_in(key, turn)
        if turn == 0:
            arrays = (prompts.tokens_PL, prompts.attend_PL, prompts.id_P)
            return to_host(self.first(params, *shard_rows(self.mesh, arrays), key))
        arrays = (*rows.contexts(self.width), rows.id_B)
        own = {"first_P": rows.sample_B, "open_P": rows.open_B}
        arrays, own = shard_rows(self.mesh, (arrays, own))
        return to_host(self.further(params, *arrays, key, **own))

    def _answer(
        self,
        dialogues: dict[int, Environment],
        prompts: Prompts,
        rows: DialogueRows,
        b: int,
        turn: int,
    ) -> None:
        """Let the environment answer row b's last turn, and make the row ready for the next."""
        p, g = divmod(b, self.sampling.num_samples)
        where = f"environment {_name(self.config)}, prompt {prompts.id_P[p]}, sample {g}"
        text = self.tokenizer.decode_completion(*rows.last_turn(b))
        try:
            if turn == 0:
                dialogues[b] = begin(self.config.environment, prompts.rows[p], where)
            step = answered(dialogues[b], text, f"{where}, turn {turn + 1}")
        except Exception as error:
            if self.errors == "raise" or isinstance(error, ConfigError):  # no row's fault
                raise
            note(f"reward_failures/{_name(self.config)}")
            rows.fail(b)
            return
        rows.reward(b, step.reward)
        if step.done or rows.truncated_B[b]:
            rows.open_B[b] = False
            return
        ids = observation_ids(
            self.tokenizer, prompts.rows[p]["prompt"], step.observation, role=self.config.role
        )
        is_last = turn + 1 == self.config.max_turns
        if is_last or rows.room(b) < len(ids) + self.sampling.max_new_tokens:
            rows.open_B[b], rows.truncated_B[b] = False, True
        else:
            rows.write_observation(b, ids)


def _name(config: DialogueConfig) -> str:
    return reward_names([config.environment])[0]


def told_turns(tokenizer: Tokenizer, rollout: Rollout, b: int) -> list[dict[str, Any]]:
    """What was said in row b, turn by turn: {"text", "observation", "reward"}.

    The observation is the one that the policy read, None after the last turn.

    Args:
        tokenizer: decodes.
        rollout: host copies.
        b: the row.
    """
    tokens_T, attend_T, mask_T = rollout.tokens_BT[b], rollout.attend_BT[b], rollout.mask_BT[b]
    turns: list[dict[str, Any]] = []
    start = int(mask_T.argmax())
    filled = int(np.flatnonzero(attend_T).max()) + 1

    def text(begin: int, end: int) -> str:
        before = tokens_T[:begin][attend_T[:begin]].tolist()
        return tokenizer.decode_completion(before, tokens_T[begin:end].tolist())

    for last in np.flatnonzero(rollout.turns.end_BT[b]).tolist():
        later = np.flatnonzero(mask_T[last + 1 :])
        following = last + 1 + int(later[0]) if later.size else filled
        given = bool(rollout.turns.given_BT[b, last])
        turns.append(
            {
                "text": text(start, last + 1),
                "observation": text(last + 1, following) if later.size else None,
                "reward": float(rollout.turns.score_BT[b, last]) if given else None,
            }
        )
        start = following
    return turns
