"""Dialogues of a chat model: every row is a conversation that its template would write."""

import re
from dataclasses import dataclass, field

import jax
import numpy as np
from chat_tokenizer import chat_tokenizer, spelled
from tiny import random_params

from rlhf_jax.bind import bind
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.loops.collect import read_texts
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.dialogues import DialogueConfig, DialogueSampler
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.rollout.sampler import SamplingConfig

# besides <|end|> all of ASCII ends a turn, which a random policy meets
TOKENIZER = chat_tokenizer(end_ids=range(4, 132))
G, TURNS = 4, 3


@dataclass
class Tool:
    """Answers the n-th call with n."""

    _calls: int = field(default=0, init=False)

    def reset(self, row):
        assert row["prompt"][0]["role"] == "user"

    def step(self, text):
        self._calls += 1
        return f"result {self._calls}", 1.0, False


def test_rows_are_conversations_with_the_sampled_ids_in_them():
    config = DecoderConfig(
        vocab_size=TOKENIZER.vocab_size,
        num_layers=1,
        d_model=16,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        d_ff=16,
        max_positions=160,
    )
    model = Model(config)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    sample = DialogueSampler(
        model,
        SamplingConfig(num_samples=G, max_new_tokens=4, max_prompt_tokens=36),
        DialogueConfig(environment=bind(Tool), max_turns=TURNS, max_columns=124, role="tool"),
        TOKENIZER,
        errors="raise",
        mesh=mesh,
    )
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("hi", "add up")]
    prompts = PromptSet.from_rows(rows, TOKENIZER, max_prompt_tokens=36).take(np.arange(2))
    with jax.set_mesh(mesh):
        key = step_key(0, 0, "sample")
        rollout = jax.device_get(sample(random_params(model, 0), prompts, key))
    whole = 0
    for b, row in enumerate(read_texts(TOKENIZER, prompts, rollout)[2]):
        said = row["dialogue"]
        assert [turn["reward"] for turn in said] == [1.0] * len(said)
        tokens_T, mask_T = rollout.tokens_BT[b], rollout.mask_BT[b]
        text = "".join(
            spelled(TOKENIZER, tokens_T[t : t + 1]) if not mask_T[t] else "·"
            for t in np.flatnonzero(rollout.attend_BT[b])
        )
        told = [
            f"\n<|start|>tool\nresult {n}<|end|>\n<|start|>assistant\n" for n in range(1, TURNS)
        ]
        asked = f"<|start|>user\n{row['prompt'][0]['content']}<|end|>\n<|start|>assistant\n"
        turns = ["·" * int(n) for n in _runs(mask_T)]
        between = [turn + after for turn, after in zip(turns, [*told, ""], strict=False)]
        assert text == asked + "".join(between)[: len(text) - len(asked)]
        whole += len(said) == TURNS
        assert rollout.truncated_B[b]  # the tool is never done
    assert whole > 1


def _runs(mask_T):
    """Lengths of the runs of True."""
    return map(len, re.findall("1+", "".join("01"[int(m)] for m in mask_T)))
