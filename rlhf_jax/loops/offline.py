"""Training on a fixed dataset: the options, the box and the ending that SFT, reward models and
preference losses share. What is learnt from a batch is their `update`; the loop is here, once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.data.order import ahead
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.common import RunConfig, StopRequest
from rlhf_jax.loops.run import Run, check_vocabulary
from rlhf_jax.loops.start import model_print
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.sharding import row_shards, shard_rows
from rlhf_jax.report.curves import Panel
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.microbatch import check_micro_rows
from rlhf_jax.train.state import TrainState
from rlhf_jax.types import replace

OPTIMIZER_PANELS = (
    Panel("Gradient norm", "before clipping", (("grad_norm", "policy"),)),
    Panel("Learning rate", "rate", (("learning_rate", "policy"),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig(RunConfig):
    """What every run on a fixed dataset depends on."""

    batch_rows: int
    """Rows (demonstrations, pairs, rankings) of one optimizer update: each step makes one."""
    max_tokens: int
    """Columns of a batch: prompt, completion and end token."""
    over_long: str = "error"
    """What becomes of a longer row: error, drop, left or right (cut there)."""
    evaluate_every: int | None = None
    """Steps between two measurements of held-out rows; None: before the first and after the last
    step alone."""

    def __post_init__(self):
        RunConfig.__post_init__(self)
        check_number("batch_rows", self.batch_rows, low=1)
        check_number("max_tokens", self.max_tokens, low=2)
        check_choice("over_long", self.over_long, OVER_LONG)
        if self.evaluate_every is not None:
            check_number("evaluate_every", self.evaluate_every, low=1)
        check_divides(
            "batch_rows", self.batch_rows, "micro_rows", self.micro_rows or self.batch_rows
        )


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What one kind of offline run brings to the box.

    state: of step 0, on the mesh
    update: (state, batch) -> (state, metrics), donates the state
    export: (state, folder) writes the trained model as a Hugging Face folder
    measure: state -> numbers on held-out rows, or None where there are none
    count: batch on the host -> tokens that it trains on
    batches: in place of those that `run_offline` was given, where making them takes the model
    """

    state: TrainState
    update: Callable
    export: Callable[[TrainState, Path], None]
    count: Callable[[Any], int]
    measure: Callable[[TrainState], dict[str, float]] | None = None
    batches: Sequence[Any] | None = None


def read_model(cfg: OfflineConfig) -> tuple[Tokenizer, str]:
    """Tokenizer of the model folder, and fingerprint of it and the adapter that it begins with.

    Raises:
        ConfigError: folder or tokenizer cannot be used, or `max_tokens` is beyond the model.
    """
    tokenizer, config = Tokenizer.from_folder(cfg.model), read_config(cfg.model)
    check_vocabulary(tokenizer, config, cfg.model)
    check_positions(cfg.max_tokens, config.max_positions)
    return tokenizer, model_print(cfg)


def check_positions(max_tokens: int, limit: int) -> None:
    """Refuse rows longer than the model's positions."""
    if max_tokens > limit:
        raise ConfigError(f"max_tokens={max_tokens} is above the model's {limit} positions")


def run_offline(
    cfg: OfflineConfig,
    batches: Sequence[Any] | None,
    begin: Callable[[Mesh], Parts],
    *,
    identity: str,
    title: str,
    panels: Sequence[Panel],
) -> dict[str, Any]:
    """Train in the run folder of `cfg`; returns what result.json holds.

    Args:
        cfg: the options.
        batches: `batches[step]` is the step's batch of `cfg.batch_rows` rows, on the host; None
            where `begin` brings them.
        begin: loads the model onto a mesh and makes the functions.
        identity: fingerprint of model and data; a run of others is not continued.
        title: shown beside the progress bar.
        panels: of the curves.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    with Run(cfg, panels=panels) as opened, StopRequest() as stop:
        result = opened.finished(identity)
        if result is not None:
            return result
        mesh = make_mesh(cfg.mesh)
        check_divides("batch_rows", cfg.batch_rows, "mesh data*fsdp", row_shards(mesh))
        check_micro_rows(cfg.batch_rows, cfg.micro_rows, mesh)
        with jax.set_mesh(mesh):
            parts = begin(mesh)
            state = opened.restore(parts.state, identity=identity)
            batches = batches if parts.batches is None else parts.batches
            state = train(cfg, parts, state, batches, mesh, opened, stop, title=title)
            result = opened.finish(lambda folder: parts.export(state, folder))
        if stop.requested:
            stop.leave(cfg.out, cfg.num_steps)
    return result


def train(
    cfg: OfflineConfig,
    parts: Parts,
    state: TrainState,
    batches: Sequence[Any],
    mesh: Mesh,
    opened: Run,
    stop: StopRequest,
    *,
    title: str,
) -> TrainState:
    """The box: one batch, one update. A step is reported while the device works on the next."""
    first = int(state.step)
    with (
        Progress(title, total=cfg.num_steps, start=first) as progress,
        ahead(batches, first) as feed,
    ):
        if first == 0 and parts.measure:
            measure(parts, state, opened, progress, step=0)
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            batch = next(feed)
            state, metrics = parts.update(state, shard_rows(mesh, batch))
            state = replace(state, step=state.step + 1)
            opened.host["tokens"] += parts.count(batch)

            due = opened.due(step + 1, stop, cfg.evaluate_every)
            opened.report(progress, step + 1, [metrics], {}, began=began, due=due)
            if due.measure and parts.measure:
                measure(parts, state, opened, progress, step=step + 1)
            if due.save:
                opened.save(step + 1, state)
            if due.leave:
                stop.leave(cfg.out, step + 1)
    return state


def measure(parts: Parts, state: TrainState, opened: Run, progress: Progress, *, step: int) -> None:
    """Log and show the held-out numbers after `step` steps."""
    numbers = parts.measure(state)
    opened.folder.log(step, {f"eval/{name}": value for name, value in numbers.items()})
    opened.host.setdefault("before", numbers)
    opened.host["after"] = numbers
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    progress.print(f"held-out after {step} steps: {told}")
