"""What is said of one family of checkpoints; `families.py` says it of each.

A config option that changes the maths and that the decoder does not implement is listed with the
one value it must have, and refused by name otherwise. Options that a family never reads (they do
occur in config files) change nothing there and are passed over here as well; so is dropout where a
family's published configs have it (GPT-2), since policies are neither sampled nor trained with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.rope import SCALINGS
from rlhf_jax.models.tensors import TensorRule

Locals = tuple[bool, ...]


@dataclass(frozen=True)
class Family:
    """Names of tensors and options of one `model_type`."""

    model_type: str
    architecture: str
    scorer: str  # the architecture of its reward models
    tensors: tuple[TensorRule, ...]
    untied_head: TensorRule  # only in the file when embeddings are not tied
    fields: dict[str, str]  # ours -> the option's name in config.json
    defaults: dict[str, Any]  # options that may be left out of config.json
    only: dict[str, Any]  # option -> the one value that is implemented
    fixed: dict[str, Any] = field(default_factory=dict)  # ours -> its value in all of the family
    # options, number of layers -> (window, which layers have it); None: the family has no window
    locals: Callable[[dict[str, Any], int], tuple[int | None, Locals]] | None = None
    layer_types: bool = False  # may list the kinds of its layers one by one
    ropes: tuple[str, ...] = ("default", *SCALINGS)  # kinds of rotary positions; (): learned ones
    partial_rope: bool = False  # may rotate a part of each head
    rope_theta: float = 10_000.0  # base where config.json has none
    rope_local: float | None = None  # that of local layers, which have a rotation of their own
    passed_over: tuple[str, ...] = ()  # regex of tensors that hold nothing to learn
    prefix: str = "model."  # of all names but the head's; a bare trunk is saved without it
    score: TensorRule | None = None  # of a reward model, which has no language-model head

    def rules(self, config: DecoderConfig) -> tuple[TensorRule, ...]:
        tensors = tuple(r for r in self.tensors if r.when is None or getattr(config, r.when))
        if self.score is not None:
            return (*tensors, self.score)
        return tensors if config.tie_embeddings else (*tensors, self.untied_head)


def everywhere(options, num_layers):
    """A window in all layers."""
    window = options["sliding_window"]
    return window, (window is not None,) * num_layers


def if_used(options, num_layers):
    """Qwen: a window that must be switched on, in the layers from `max_window_layers`."""
    used = options["use_sliding_window"]
    first = options["max_window_layers"] if used else num_layers
    rest = tuple(n >= first for n in range(num_layers))
    return options["sliding_window"] if used else None, _layer_types(options, rest)


def every_nth_global(options, num_layers):
    """Gemma: local layers, but for every `sliding_window_pattern`-th."""
    period = options["sliding_window_pattern"]
    pattern = tuple((n + 1) % period != 0 for n in range(num_layers))
    return options["sliding_window"], _layer_types(options, pattern)


def _layer_types(options, otherwise: Locals) -> Locals:
    types = options.get("layer_types")
    return otherwise if types is None else tuple(kind == "sliding_attention" for kind in types)
