"""What a run begins from and what it leaves: the whole policy, or a frozen one with adapters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from rlhf_jax.loops.common import RunConfig, step_key
from rlhf_jax.loops.run import FILES, load_policy
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.lora import adapter_shapes, init_adapters, merged
from rlhf_jax.models.peft import export_adapters, in_peft_format, load_adapters
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.models.weights import fingerprint
from rlhf_jax.parallel.sharding import shard, sharding_tree
from rlhf_jax.rewards.notes import look_at_files
from rlhf_jax.train.state import Frozen, TrainState, policy_of, with_base


@dataclass(frozen=True)
class Start:
    """What a run begins from: what it trains, and the frozen base of its adapters (or None)."""

    model: Model
    trained: dict[str, Any]
    base: Frozen | None

    @property
    def params(self) -> dict[str, Any]:
        """The policy at the start, as `model` takes it: the reference of the run."""
        return with_base(self.base, {"policy": self.trained})["policy"]


def start_policy(cfg: RunConfig, mesh: Mesh) -> Start:
    """The policy of `cfg.model`: all of it to train, or frozen under `cfg.lora`'s adapters.

    Raises:
        ConfigError: a folder that cannot be used, or adapters that do not fit the model.
    """
    model, params = load_policy(cfg.model, cfg, mesh)
    if cfg.lora is None:
        return Start(model, params, None)
    adapters = first_adapters(cfg, model.config, params, mesh)
    return Start(model, adapters, Frozen(policy=params, scale=cfg.lora.scale))


def first_adapters(
    cfg: RunConfig, config: DecoderConfig, params: dict[str, Any], mesh: Mesh
) -> dict[str, Any]:
    """Those of `cfg.lora.adapter`, or new ones that change nothing yet."""
    if cfg.lora.adapter is None:
        return new_adapters(cfg, params, mesh)
    shapes = adapter_shapes(cfg.lora, params)
    return shard(mesh, load_adapters(cfg.lora, config, shapes))


def new_adapters(
    cfg: RunConfig, params: dict[str, Any], mesh: Mesh, *, draw: int = 1
) -> dict[str, Any]:
    """Adapters of a decoder that change nothing yet. `draw`: another number, another A."""
    shapes = adapter_shapes(cfg.lora, params)
    places = sharding_tree(mesh, shapes)
    key = step_key(cfg.seed, 0, "init", draw)
    return jax.jit(lambda key: init_adapters(key, shapes), out_shardings=places)(key)


def model_print(cfg: RunConfig) -> str:
    """Fingerprint of what a run begins from: the model folder, and the adapter if one is given."""
    if cfg.lora is None or cfg.lora.adapter is None:
        return fingerprint(cfg.model)
    return f"{fingerprint(cfg.model)}-{fingerprint(cfg.lora.adapter)}"


def with_files(identity: str, rewards: Sequence[Callable]) -> str:
    """A run's identity, and that of the files which its reward functions read: a reward model that
    was trained anew is another.

    Raises:
        ConfigError: a function could not use its files.
    """
    return "-".join([identity, *(f"{FILES}{found}" for found in look_at_files(rewards))])


def export_policy(
    folder: Path, cfg: RunConfig, model: Model, state: TrainState, tokenizer: Tokenizer
) -> None:
    """Write the policy as a Hugging Face folder; its adapters are merged there, and stand by
    themselves, in PEFT's format, in adapter/ beside it where that format can say them."""
    params = policy_of(state)
    if cfg.lora is not None:
        params = jax.jit(merged)(params)
        if in_peft_format(model.config):
            place = folder.with_name("adapter")
            export_adapters(place, cfg.lora, model.config, state.policy, base=cfg.model)
    export_pretrained(folder, model.config, params, tokenizer)
