"""Supervised fine-tuning on demonstrations, of a new decoder or a given one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import Mesh

from rlhf_jax.bind import Bound
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.packing import PackedDemonstrations
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops.answers import AnswersConfig, make_answering
from rlhf_jax.loops.common import DTYPES, step_key
from rlhf_jax.loops.offline import (
    OPTIMIZER_PANELS,
    OfflineConfig,
    Parts,
    check_positions,
    read_model,
    run_offline,
)
from rlhf_jax.loops.start import Start, export_policy, start_policy, with_files
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import padded_vocab, shard_rows
from rlhf_jax.report.curves import Panel
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.scoring import make_score
from rlhf_jax.train.state import init_params, init_state, policy_of
from rlhf_jax.train.steps import make_sft_update

PANELS = (
    Panel("Loss", "nats / token", (("loss", "training"), ("eval/loss", "held out"))),
    Panel("Score of the answers", "score", (("eval/score", "held out"),)),
    *OPTIMIZER_PANELS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTConfig(OfflineConfig):
    """Everything a supervised run depends on."""

    model: str | None = None
    """Folder of a Hugging Face model to start from. None: a new decoder over bytes."""
    decoder: DecoderShape = field(default_factory=DecoderShape)
    """Shape of the new decoder where no model is given."""
    demonstrations: Bound
    """Returns rows {"prompt", "completion"} or {"messages"} to imitate."""
    packing: bool = False
    """Put several demonstrations into one row of max_tokens, none of which sees another; then
    batch_rows counts packed rows."""
    held_out: Bound | None = None
    """Returns rows like those, whose loss is measured."""
    answers: AnswersConfig | None = None
    """Prompts that the policy answers when held-out rows are measured, and what scores them; for a
    given model, whose distance to the policy is then measured too."""

    def __post_init__(self):
        OfflineConfig.__post_init__(self)
        if self.answers is not None and self.model is None:
            raise ConfigError("answers are compared with those of a given model: name a model")
        if self.lora is not None and self.model is None:
            raise ConfigError("lora adapts a given model: name a model")


def run(cfg: SFTConfig) -> dict[str, Any]:
    """Imitate as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    tokenizer, rows, held_out, identity = read_inputs(cfg)
    prompts = cfg.answers and cfg.answers.read(tokenizer, read_config(cfg.model))
    if prompts is not None:
        identity = with_files(f"{identity}-{prompts.fingerprint}", cfg.answers.rewards)

    def begin(mesh: Mesh) -> Parts:
        begun = start(cfg, tokenizer, mesh)
        model = begun.model
        tx = make_optimizer(cfg.optim, cfg.num_steps)
        return Parts(
            state=init_state(begun.trained, tx, base=begun.base, mesh=mesh),
            update=make_sft_update(model, tx, micro_rows=cfg.micro_rows, mesh=mesh),
            export=lambda state, folder: export_policy(folder, cfg, model, state, tokenizer),
            count=lambda batch: int(batch.mask_BT.sum()),
            measure=make_measure(cfg, model, tokenizer, held_out, prompts, mesh),
        )

    packed = PackedDemonstrations.of(rows) if cfg.packing else rows
    batches = packed.batches(cfg.batch_rows, cfg.seed)
    return run_offline(cfg, batches, begin, identity=identity, title="imitate", panels=PANELS)


def read_inputs(
    cfg: SFTConfig,
) -> tuple[Tokenizer, DemonstrationSet, DemonstrationSet | None, str]:
    """Tokenizer, demonstrations (to learn, held out), and a fingerprint of them and the model.

    Raises:
        ConfigError: model folder, tokenizer, demonstrations or a length; it names what and where.
    """
    tokenizer, model = byte_tokenizer(), ""
    if cfg.model:
        tokenizer, model = read_model(cfg)
    else:
        check_positions(cfg.max_tokens, cfg.decoder.max_positions)
    options = dict(max_tokens=cfg.max_tokens, over_long=cfg.over_long)
    rows = DemonstrationSet.from_rows(cfg.demonstrations(), tokenizer, **options)
    identity, held_out = f"{model}-{rows.fingerprint}", None
    if cfg.held_out is not None:
        name = "held-out demonstrations"
        held_out = DemonstrationSet.from_rows(cfg.held_out(), tokenizer, name=name, **options)
        identity = f"{identity}-{held_out.fingerprint}"
    return tokenizer, rows, held_out, identity


def start(cfg: SFTConfig, tokenizer: Tokenizer, mesh: Mesh) -> Start:
    """The model of the folder, or a new decoder with random parameters."""
    if cfg.model:
        return start_policy(cfg, mesh)
    vocab = tokenizer.vocab_size
    config = cfg.decoder.config(vocab, padded_vocab(vocab, mesh.shape["tensor"]))
    model = Model(config, DTYPES[cfg.compute_dtype], cfg.remat)
    return Start(model, init_params(model, step_key(cfg.seed, 0, "init"), mesh=mesh), None)


def make_measure(
    cfg: SFTConfig,
    model: Model,
    tokenizer: Tokenizer,
    held_out: DemonstrationSet | None,
    prompts: PromptSet | None,
    mesh: Mesh,
) -> Callable | None:
    """state -> loss on held-out rows and what answers say, or None where neither is asked for."""
    loss = held_out and held_out_loss(cfg, model, held_out, mesh)
    options = dict(seed=cfg.seed, micro_rows=cfg.micro_rows, mesh=mesh)
    answer = prompts and make_answering(cfg.answers, model, tokenizer, prompts, **options)
    if loss is None and answer is None:
        return None

    def measure(state) -> dict[str, float]:
        numbers = loss(state) if loss else {}
        if answer:  # the start is read anew, and let go: it is needed nowhere else
            numbers |= answer(policy_of(state), start_policy(cfg, mesh).params)[0]
        return numbers

    return measure


def held_out_loss(cfg: SFTConfig, model: Model, held_out: DemonstrationSet, mesh: Mesh):
    """state -> loss in nats per counted token, all held-out rows pooled, and its exponential."""
    score = make_score(model, temperature=1.0, micro_rows=cfg.micro_rows, mesh=mesh)

    def measure(state) -> dict[str, float]:
        nats, tokens = 0.0, 0
        for batch, weight_B in held_out.in_order(cfg.batch_rows):
            logp = score(policy_of(state), None, None, shard_rows(mesh, batch))["logp_old_BT"]
            counted_BT = batch.mask_BT & (weight_B > 0)[:, None]
            nats -= float(to_host(logp)[counted_BT].sum())
            tokens += int(counted_BT.sum())
        loss = nats / max(tokens, 1)
        return {"loss": loss, "perplexity": math.exp(loss)}

    return measure
