"""A whole run in seconds: a tiny pretrained folder, prompts, rewards and a config of each loop."""

import json
import warnings
from pathlib import Path

import numpy as np
from orbax.checkpoint import v1 as ocp
from tiny import random_params

from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.bind import bind
from rlhf_jax.loops.online import OnlineConfig
from rlhf_jax.loops.online_preference import OnlinePreferenceConfig
from rlhf_jax.loops.preference import PreferenceConfig
from rlhf_jax.loops.sft import SFTConfig
from rlhf_jax.models.config import DecoderConfig, DecoderShape
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import replace


def write_policy(folder, *, seed: int = 0, num_layers: int = 1):
    """Export a random decoder over bytes: 259 ids, which no mesh axis divides; 4 of 8 heads."""
    tokenizer = byte_tokenizer()
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        num_layers=num_layers,
        d_model=32,
        num_heads=8,
        num_kv_heads=4,
        head_dim=4,
        d_ff=64,
        max_positions=32,
    )
    export_pretrained(folder, config, random_params(Model(config), seed), tokenizer)
    return folder


def say(*, train: int = 16, held_out: int = 6):
    """Prompts of different lengths; `number` tells a reward which one it judges."""
    rows = [{"prompt": f"say {i}:", "number": i} for i in range(train + held_out)]
    return rows[:train], rows[train:]


def share_of_low_bytes(prompts, completions, rows):
    """How many of the characters are ASCII: about half at the start, easily learnt."""
    return [float(np.mean([c < "\x80" for c in text] or [0.0])) for text in completions]


def online_config(model, out, **changes) -> OnlineConfig:
    """GRPO on 4 prompts with 4 samples of at most 4 tokens."""
    sizes = ("num_samples", "max_new_tokens", "max_prompt_tokens", "temperature")
    sampling = dict(num_samples=4, max_new_tokens=4, max_prompt_tokens=8)
    sampling |= {name: changes.pop(name) for name in sizes if name in changes}
    options = dict(
        objective=grpo(),
        prompts=bind(say),
        rewards=(bind(share_of_low_bytes),),
        num_steps=2,
        num_prompts=4,
        sampling=SamplingConfig(**sampling),
        optim=OptimConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=2, keep=10),
        samples_every=1,
    )
    return OnlineConfig(out=str(out), model=str(model), **options | changes)


def online_preference_config(model, out, **changes) -> OnlinePreferenceConfig:
    """Online DPO on 4 prompts with 2 samples of at most 4 tokens."""
    options = dict(
        objective=dpo(),
        prompts=bind(say),
        rewards=(bind(share_of_low_bytes),),
        num_steps=2,
        num_prompts=4,
        sampling=SamplingConfig(num_samples=2, max_new_tokens=4, max_prompt_tokens=8),
        optim=OptimConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=2, keep=10),
        samples_every=1,
    )
    return OnlinePreferenceConfig(out=str(out), model=str(model), **options | changes)


def spell(*, rows: int = 16):
    """Demonstrations whose completion repeats the prompt's last character."""
    return [{"prompt": f"{i}>{i % 10}", "completion": f"{i % 10}" * 2} for i in range(rows)]


def sft_config(out, **changes) -> SFTConfig:
    """Imitation of 16 rows by a new decoder."""
    cfg = SFTConfig(
        out=str(out),
        demonstrations=bind(spell),
        decoder=DecoderShape(num_layers=1, d_model=32, d_ff=64, max_positions=16),
        num_steps=4,
        batch_rows=8,
        max_tokens=10,
        optim=OptimConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=2, keep=10),
    )
    return replace(cfg, **changes)


def higher(*, rows: int = 24):
    """Pairs whose chosen side repeats the prompt's digit, and whose other side the one after."""
    digits = [i % 9 for i in range(rows)]
    return [
        {"prompt": f"{i}>{d}", "chosen": f"{d}" * (1 + i % 3), "rejected": f"{d + 1}" * 2}
        for i, d in enumerate(digits)
    ]


def labelled(*, rows: int = 24):
    """The same completions one by one."""
    return [
        {"prompt": row["prompt"], "completion": row[side], "label": side == "chosen"}
        for row in higher(rows=rows // 2)
        for side in ("chosen", "rejected")
    ]


def preference_config(model, out, **changes) -> PreferenceConfig:
    """DPO on 24 pairs; KTO where the objective is of single completions."""
    objective = changes.pop("objective", dpo())
    preferences = bind(higher if isinstance(objective, PreferenceObjective) else labelled)
    options = dict(
        preferences=preferences,
        held_out=preferences.replace(rows=10),
        num_steps=4,
        batch_rows=8,
        max_tokens=10,
        optim=OptimConfig(learning_rate=1e-3),
        checkpoint=CheckpointConfig(every=2, keep=10),
    )
    return PreferenceConfig(
        out=str(out), model=str(model), objective=objective, **options | changes
    )


def saved(run, step: int):
    """(arrays, the loop's own record) of a checkpoint as they lie on the disk."""
    path = Path(run, "checkpoints", f"step_{step:08d}")
    host = json.loads((path / "host.json").read_text())["host"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the arrays come to where they were saved from
        return ocp.load(path / "state"), host
