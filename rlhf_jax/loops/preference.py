"""Preference losses on a fixed dataset: DPO and its relatives on pairs, KTO and its on labels.

Which loss runs is a value, `PreferenceConfig.objective`; pairs or single completions follow from
its kind. The reference is the model at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.algorithms.preference import PreferenceObjective, pair_labels
from rlhf_jax.algorithms.preference_unpaired import UnpairedObjective
from rlhf_jax.bind import Bound
from rlhf_jax.data.preferences import PreferenceSet
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.data.unpaired import UnpairedSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.loops.held_out_preferences import make_measure, score_rows
from rlhf_jax.loops.offline import (
    OPTIMIZER_PANELS,
    OfflineConfig,
    Parts,
    read_model,
    run_offline,
)
from rlhf_jax.loops.start import export_policy, start_policy, with_files
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.report.curves import Panel
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.preference import (
    make_completion_score,
    make_preference_update,
    make_unpaired_update,
)
from rlhf_jax.train.reference import cached_logprobs
from rlhf_jax.train.state import init_state

PANELS = (
    Panel("Loss", "loss", (("loss", "training"), ("eval/loss", "held out"))),
    Panel("Score of the answers", "score", (("eval/score", "held out"),)),
    Panel(
        "Preferred side ahead",
        "fraction",
        (("accuracy", "training"), ("eval/accuracy", "held out")),
    ),
    Panel("Margin", "implicit reward", (("margin", "training"), ("eval/margin", "held out"))),
    Panel(
        "Log-prob since the start",
        "nats / completion",
        (("eval/drift_chosen", "preferred"), ("eval/drift_rejected", "other")),
    ),
    *OPTIMIZER_PANELS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceConfig(OfflineConfig):
    """Everything an offline preference run depends on."""

    model: str
    """Folder of a Hugging Face model: the policy at the start, and the frozen reference."""
    objective: PreferenceObjective | UnpairedObjective
    """The loss. Its numbers can be set here; its parts are swapped in a file."""
    preferences: Bound
    """Returns rows {"prompt", "chosen", "rejected"}; for an objective of single completions
    {"prompt", "completion", "label"}."""
    held_out: Bound | None = None
    """Returns rows like those, on which loss, accuracy, margin and drift are measured."""
    precompute_reference: bool = True
    """Ask the reference once for the log-probs of all rows, keep them on disk and hold no copy of
    it while training; otherwise a copy scores every batch."""
    reference_cache: str | None = None
    """Folder of the kept log-probs, which runs may share. None: reference/ in the run folder."""
    answers: AnswersConfig | None = None
    """Prompts that the policy answers when held-out rows are measured, and what scores them."""

    def __post_init__(self):
        OfflineConfig.__post_init__(self)
        if not self.paired and self.objective.needs_other and self.batch_rows < 2:
            raise ConfigError(
                "batch_rows=1: a loss with mismatched pairs reads the KL off the batch, which "
                "needs 2 rows or more"
            )

    @property
    def paired(self) -> bool:
        """Rows are pairs, not single completions."""
        return isinstance(self.objective, PreferenceObjective)

    @property
    def needs_reference(self) -> bool:
        """The loss reads log-probs of the reference."""
        return not self.paired or self.objective.needs_reference

    @property
    def cache(self) -> Path:
        """Where the reference's log-probs are kept."""
        return Path(self.reference_cache or Path(self.out, "reference"))


@dataclass(frozen=True)
class Inputs:
    """What a user gave, read and checked; `identity` changes with it or the model."""

    tokenizer: Tokenizer
    model: str
    rows: PreferenceSet | UnpairedSet
    held_out: PreferenceSet | UnpairedSet | None
    prompts: PromptSet | None
    identity: str


def run(cfg: PreferenceConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    inputs = read_inputs(cfg)
    inputs.rows.batches(cfg.batch_rows, cfg.seed)  # refuses a batch too large, before all else
    return run_offline(
        cfg,
        None,
        partial(begin, cfg, inputs),
        identity=inputs.identity,
        title="prefer",
        panels=PANELS,
    )


def check_weighted(objective: PreferenceObjective) -> None:
    """Refuse, before a device is touched, a loss in which a pair cannot have a weight of its own.

    Raises:
        ConfigError: the loss compares ranks over the batch.
    """
    zero_BS, one_B = np.zeros((2, 2), np.float32), np.ones(2, np.float32)
    jax.eval_shape(
        partial(pair_labels, objective),
        np.ones((2, 2), np.int32),
        weight_B=one_B,
        logp_BS=zero_BS,
        logp_ref_BS=zero_BS,
    )


def read_inputs(cfg: PreferenceConfig) -> Inputs:
    """Tokenizer, preferences (to learn, held out) and prompts to answer.

    Raises:
        ConfigError: model folder, tokenizer, rows or a length; it names what and where.
    """
    tokenizer, model = read_model(cfg)
    kind = PreferenceSet if cfg.paired else UnpairedSet
    options = dict(max_tokens=cfg.max_tokens, over_long=cfg.over_long)
    rows, held_out, prompts = kind.from_rows(cfg.preferences(), tokenizer, **options), None, None
    if cfg.paired and rows.weights is not None:
        check_weighted(cfg.objective)
    if cfg.held_out is not None:
        name = "held-out preferences"
        held_out = kind.from_rows(cfg.held_out(), tokenizer, name=name, **options)
    if cfg.answers is not None:
        prompts = cfg.answers.read(tokenizer, read_config(cfg.model))
    parts = [data.fingerprint for data in (rows, held_out, prompts) if data is not None]
    identity = "-".join([model, *parts])
    if cfg.answers is not None:
        identity = with_files(identity, cfg.answers.rewards)
    return Inputs(tokenizer, model, rows, held_out, prompts, identity)


def begin(cfg: PreferenceConfig, inputs: Inputs, mesh: Mesh) -> Parts:
    """Load the model, ask the reference what it is to be asked once, make the functions."""
    start = start_policy(cfg, mesh)
    model = start.model
    score = make_completion_score(model, micro_rows=cfg.micro_rows, mesh=mesh)
    rows, held_out = inputs.rows, inputs.held_out
    ask = partial(with_reference, cfg, inputs, score, start.params, mesh=mesh)
    if cfg.needs_reference and cfg.precompute_reference:
        rows = ask(rows)
    if held_out is not None:
        held_out = ask(held_out)  # few rows, and what their drift is measured from
    tx = make_optimizer(cfg.optim, cfg.num_steps)
    make_update = make_preference_update if cfg.paired else make_unpaired_update
    update = make_update(model, tx, micro_rows=cfg.micro_rows, mesh=mesh)
    return Parts(
        state=init_state(
            start.trained,
            tx,
            with_reference=cfg.needs_reference and not cfg.precompute_reference,
            base=start.base,
            mesh=mesh,
        ),
        update=lambda state, batch: update(state, cfg.objective, batch),
        export=lambda state, folder: export_policy(folder, cfg, model, state, inputs.tokenizer),
        count=lambda batch: int((batch.mask_BST if cfg.paired else batch.mask_BT).sum()),
        measure=make_measure(cfg, inputs.tokenizer, model, score, held_out, inputs.prompts, mesh),
        batches=rows.batches(cfg.batch_rows, cfg.seed),
    )


def with_reference(
    cfg: PreferenceConfig,
    inputs: Inputs,
    score: Callable,
    reference: Any,
    rows: PreferenceSet | UnpairedSet,
    *,
    mesh: Mesh,
) -> PreferenceSet | UnpairedSet:
    """The rows with the reference's log-probs, from the cache if it has them.

    Args:
        score: of `make_completion_score`.
        reference: parameters of the model folder, whatever a resumed run has made of them since.
    """
    key = {
        "model": inputs.model,  # all its .json files too: config and tokenizer
        "rows": rows.fingerprint,
        "kind": type(rows).__name__,
        "max_tokens": cfg.max_tokens,
        "compute_dtype": cfg.compute_dtype,
    }

    def ask():
        steps = -(-len(rows) // cfg.batch_rows)
        with Progress("ask the reference", total=steps) as progress:
            return score_rows(cfg, score, reference, rows, mesh=mesh, progress=progress)

    return rows.with_reference(*cached_logprobs(cfg.cache, key, ask))
