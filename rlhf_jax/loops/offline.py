"""Offline training: supervised fine-tuning on demonstrations, of a new decoder or a given one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh

from rlhf_jax.bind import Bound
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.common import DTYPES, RunConfig, StopRequest, step_key
from rlhf_jax.loops.run import Run, check_vocabulary, load_policy
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.models.weights import fingerprint
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.sharding import padded_vocab, row_shards, shard_rows
from rlhf_jax.report.curves import Panel
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.microbatch import check_micro_rows
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.state import TrainState, init_params, init_state
from rlhf_jax.train.steps import make_sft_update
from rlhf_jax.types import SFTBatch, replace

PANELS = (
    Panel("Loss", "nats / token", (("loss", "training"),)),
    Panel("Gradient norm", "before clipping", (("grad_norm", "policy"),)),
    Panel("Learning rate", "rate", (("learning_rate", "policy"),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineConfig(RunConfig):
    """Everything a supervised run depends on."""

    model: str | None = None
    """Folder of a Hugging Face model to start from. None: a new decoder over bytes."""
    decoder: DecoderShape = field(default_factory=DecoderShape)
    """Shape of the new decoder where no model is given."""
    demonstrations: Bound
    """Returns rows {"prompt", "completion"} to imitate."""
    batch_rows: int
    """Demonstrations of one optimizer update."""
    max_tokens: int
    """Columns of a batch: prompt, completion and end token."""
    over_long: str = "error"
    """What becomes of a longer demonstration: error, drop, left or right (cut there)."""

    def __post_init__(self):
        RunConfig.__post_init__(self)
        check_number("batch_rows", self.batch_rows, low=1)
        check_number("max_tokens", self.max_tokens, low=2)
        check_choice("over_long", self.over_long, OVER_LONG)
        check_divides(
            "batch_rows", self.batch_rows, "micro_rows", self.micro_rows or self.batch_rows
        )


def run(cfg: OfflineConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    tokenizer, rows, identity = read_inputs(cfg)
    batches = rows.batches(cfg.batch_rows, cfg.seed)
    with Run(cfg, panels=PANELS) as opened, StopRequest() as stop:
        result = opened.finished(identity)
        if result is not None:
            return result
        mesh = make_mesh(cfg.mesh)
        check_divides("batch_rows", cfg.batch_rows, "mesh data*fsdp", row_shards(mesh))
        check_micro_rows(cfg.batch_rows, cfg.micro_rows, mesh)
        with jax.set_mesh(mesh):
            model, policy = start(cfg, tokenizer, mesh)
            tx = make_optimizer(cfg.optim, cfg.num_steps)
            state = opened.restore(init_state(policy, tx, mesh=mesh), identity=identity)
            update = make_sft_update(model, tx, micro_rows=cfg.micro_rows, mesh=mesh)
            state = train(cfg, update, state, batches, mesh, opened, stop)
            result = opened.finish(model, state.policy, tokenizer)
        if stop.requested:
            stop.leave(cfg.out, cfg.num_steps)
    return result


def read_inputs(cfg: OfflineConfig) -> tuple[Tokenizer, DemonstrationSet, str]:
    """Tokenizer, demonstrations, and a fingerprint of them and the model.

    Raises:
        ConfigError: model folder, tokenizer, demonstrations or a length; it names what and where.
    """
    tokenizer, limit, model = byte_tokenizer(), cfg.decoder.max_positions, ""
    if cfg.model:
        tokenizer, config = Tokenizer.from_folder(cfg.model), read_config(cfg.model)
        check_vocabulary(tokenizer, config, cfg.model)
        limit, model = config.max_positions, fingerprint(cfg.model)
    if cfg.max_tokens > limit:
        raise ConfigError(f"max_tokens={cfg.max_tokens} is above the model's {limit} positions")
    rows = DemonstrationSet.from_rows(
        cfg.demonstrations(), tokenizer, max_tokens=cfg.max_tokens, over_long=cfg.over_long
    )
    return tokenizer, rows, f"{model}-{rows.fingerprint}"


def start(cfg: OfflineConfig, tokenizer: Tokenizer, mesh: Mesh) -> tuple[Model, dict[str, Any]]:
    """The model of the folder, or a new decoder with random parameters."""
    if cfg.model:
        return load_policy(cfg.model, cfg, mesh)
    vocab = tokenizer.vocab_size
    config = cfg.decoder.config(vocab, padded_vocab(vocab, mesh.shape["tensor"]))
    model = Model(config, DTYPES[cfg.compute_dtype], cfg.remat)
    return model, init_params(model, step_key(cfg.seed, 0, "init"), mesh=mesh)


def train(
    cfg: OfflineConfig,
    update,
    state: TrainState,
    batches: Sequence[SFTBatch],
    mesh: Mesh,
    opened: Run,
    stop: StopRequest,
) -> TrainState:
    """Imitate: one batch of demonstrations, one update. Reported one step late."""
    host, pending, first = opened.host, None, int(state.step)
    with Progress("imitate", total=cfg.num_steps, start=first) as progress:
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            batch = batches[step]
            state, metrics = update(state, shard_rows(mesh, batch))
            state = replace(state, step=state.step + 1)
            if pending:
                opened.report(progress, *pending)
            stopping, last = stop.requested, step + 1 == cfg.num_steps
            save = last or stopping or opened.checkpoints.due(step + 1)
            if save:  # wait here, so that the time is this step's
                jax.block_until_ready(metrics)
            numbers = {"seconds": time.monotonic() - began}
            host["seconds"] += numbers["seconds"]
            host["tokens"] += int(batch.mask_BT.sum())
            pending = (step + 1, [metrics], numbers)
            if save:
                opened.report(progress, *pending)
                pending = None
                opened.save(step + 1, state)
            if stopping and not last:
                stop.leave(cfg.out, step + 1)
    return state
