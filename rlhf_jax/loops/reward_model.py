"""A reward model from rankings or pairs: Bradley–Terry, then a level and a scale."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.algorithms.reward_model import RewardObjective, reward_loss
from rlhf_jax.bind import Bound
from rlhf_jax.data.judges import length_rule_accuracy, true_score_accuracy
from rlhf_jax.data.order import fingerprint as fingerprint_rows
from rlhf_jax.data.padding import pad_right
from rlhf_jax.data.rankings import RankedSet, read_judged
from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.loops.common import DTYPES, step_key
from rlhf_jax.loops.offline import (
    OPTIMIZER_PANELS,
    OfflineConfig,
    Parts,
    check_positions,
    run_offline,
)
from rlhf_jax.loops.run import check_vocabulary
from rlhf_jax.loops.start import first_adapters, model_print
from rlhf_jax.losses.bradley_terry import prompt_weight
from rlhf_jax.models.heads import normalised
from rlhf_jax.models.lora import merged
from rlhf_jax.models.reward import (
    RewardNotes,
    begin_reward_model,
    export_reward_model,
    read_trunk_config,
)
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.report.curves import Panel
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.reward_model import make_reward_score, make_reward_update
from rlhf_jax.train.state import Frozen, init_state, policy_of, with_base
from rlhf_jax.types import RankedBatch

PANELS = (
    Panel("Loss", "nats / prompt", (("loss", "training"), ("eval/loss", "held out"))),
    Panel(
        "Accuracy",
        "share of pairs",
        (
            ("accuracy", "training"),
            ("eval/accuracy", "held out"),
            ("eval/accuracy_by_length", "by length alone, held out"),
            ("eval/accuracy_true_score", "by the true scores, held out"),
        ),
    ),
    *OPTIMIZER_PANELS,
)
NORMALISE = ("unit", "centre", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelConfig(OfflineConfig):
    """Everything that training a reward model depends on."""

    model: str
    """Folder of the language model whose trunk it begins as, or of a reward model to go on with."""
    rankings: Bound
    """Returns rows {"prompt", "completions", "ranks" or "scores"}, or {"prompt", "chosen",
    "rejected"}; see `data.rankings`."""
    held_out: Bound | None = None
    """Returns rows like those, whose loss and pair accuracy are measured."""
    objective: RewardObjective = field(default_factory=RewardObjective)
    """The loss and the centring penalty."""
    normalise: str = "unit"
    """After training, shift the score to mean 0 over the reference texts and scale it to standard
    deviation 1 (unit), or shift it alone (centre), or leave it (none)."""
    normalise_first: bool = False
    """Do that before training as well, as lm-human-preferences does (Huang et al., detail 9)."""
    reference: Bound | None = None
    """Returns the reference texts, rows {"prompt", "completion"}: what the policy says before it is
    trained. None: the completions of the rankings."""
    reference_rows: int = 256
    """So many of the reference texts, evenly spread."""

    def __post_init__(self):
        OfflineConfig.__post_init__(self)
        check_choice("normalise", self.normalise, NORMALISE)
        check_number("reference_rows", self.reference_rows, low=2)
        if self.normalise == "none" and (self.normalise_first or self.reference is not None):
            raise ConfigError(
                'normalise="none" reads no reference; drop reference and normalise_first, or '
                'choose "unit" or "centre"'
            )


@dataclass(frozen=True)
class Inputs:
    """Tokenizer, rankings and reference texts; `beside`: the held-out accuracy of what is no model,
    length alone and (where the rows tell) the true scores behind the labels."""

    tokenizer: Tokenizer
    rows: RankedSet
    held_out: RankedSet | None
    beside: dict[str, float]
    reference: list[list[int]]
    identity: str


def run(cfg: RewardModelConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    The model is in reward_model/ of the run folder, as `models.reward` describes it.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    inputs = read_inputs(cfg)

    def begin(mesh: Mesh) -> Parts:
        model, params = begin_reward_model(
            cfg.model,
            step_key(cfg.seed, 0, "init"),
            mesh=mesh,
            compute_dtype=DTYPES[cfg.compute_dtype],
            remat=cfg.remat,
        )
        trained, base = params, None
        if cfg.lora is not None:
            adapters = first_adapters(cfg, model.config, params["trunk"], mesh)
            trained = {"trunk": adapters, "head": params["head"]}
            base = Frozen(policy={"trunk": params["trunk"]}, scale=cfg.lora.scale)
        tx = make_optimizer(cfg.optim, cfg.num_steps)
        update = make_reward_update(model, tx, micro_rows=cfg.micro_rows, mesh=mesh)
        score = make_reward_score(model, micro_rows=cfg.micro_rows, mesh=mesh)

        def fit(params):
            """(params with a normalised head, gain, bias)."""
            scores = reference_scores(cfg, inputs, score, params, mesh)
            gain, bias = normalisation(scores, cfg.normalise)
            return {**params, "head": normalised(params["head"], gain=gain, bias=bias)}, gain, bias

        def export(state, folder):
            params, gain, bias = fit(jax.jit(merged)(policy_of(state)))
            notes = RewardNotes(
                max_tokens=cfg.max_tokens, over_long=cfg.over_long, gain=gain, bias=bias
            )
            place = folder.with_name("reward_model")
            export_reward_model(place, model.config, params, inputs.tokenizer, notes)

        if cfg.normalise_first:
            whole = with_base(base, {"policy": trained})["policy"]
            trained = {**trained, "head": fit(whole)[0]["head"]}
        return Parts(
            state=init_state(trained, tx, base=base, mesh=mesh),
            update=lambda state, batch: update(state, cfg.objective, batch),
            export=export,
            count=lambda batch: int(batch.attend_BST.sum()),
            measure=inputs.held_out and held_out_numbers(cfg, inputs, score, mesh),
        )

    batches = inputs.rows.batches(cfg.batch_rows, cfg.seed)
    title = "reward model"
    return run_offline(cfg, batches, begin, identity=inputs.identity, title=title, panels=PANELS)


def read_inputs(cfg: RewardModelConfig) -> Inputs:
    """Read and check what a user gave, before a device is touched.

    Raises:
        ConfigError: model folder, tokenizer, rankings, reference or a length; it names what and
            where.
    """
    tokenizer, config = Tokenizer.from_folder(cfg.model), read_trunk_config(cfg.model)
    check_vocabulary(tokenizer, config, cfg.model)
    check_positions(cfg.max_tokens, config.max_positions)
    options = dict(max_tokens=cfg.max_tokens, over_long=cfg.over_long)
    rows = RankedSet.from_rows(cfg.rankings(), tokenizer, **options)
    held_out, beside = None, {}
    if cfg.held_out is not None:
        found = cfg.held_out()
        held_out = RankedSet.from_rows(found, tokenizer, name="held-out rankings", **options)
        beside = {"accuracy_by_length": length_rule_accuracy(rows, held_out)}
        true_score = true_score_accuracy(found)
        if true_score is not None:
            beside["accuracy_true_score"] = true_score
    if cfg.reference is not None:
        texts = read_judged(cfg.reference(), tokenizer, name="reference texts", **options)
    else:
        texts = [ids for sides in rows.ids for ids in sides]
    spread = np.linspace(0, len(texts) - 1, min(cfg.reference_rows, len(texts)))
    reference = [texts[i] for i in spread.astype(int)]
    prints = [rows.fingerprint, *([held_out.fingerprint] if held_out else [])]
    identity = "-".join([model_print(cfg), *prints, fingerprint_rows(reference)])
    return Inputs(tokenizer, rows, held_out, beside, reference, identity)


def normalisation(scores: np.ndarray, kind: str) -> tuple[float, float]:
    """(gain, bias) with which gain · score + bias has mean 0 and, for "unit", deviation 1.

    The deviation is the population's, as in lm-human-preferences: mean 2 and deviation 4 give gain
    .25 and bias −.5 (1909.08593, section 2.1; Huang et al., detail 9).

    Raises:
        ConfigError: "unit", and all scores are the same.
    """
    if kind == "none":
        return 1.0, 0.0
    mean, deviation = float(np.mean(scores)), float(np.std(scores))
    if kind == "centre":
        return 1.0, -mean
    if not deviation > 0:
        raise ConfigError(
            f"all {len(scores)} reference texts score {mean:g}: no scale brings them to standard "
            'deviation 1; give other texts, or normalise="centre"'
        )
    return 1 / deviation, -mean / deviation


def reference_scores(cfg, inputs: Inputs, score, params, mesh: Mesh) -> np.ndarray:
    """Scores of the reference texts, in passes of the training batch's shape."""
    sides, texts = inputs.rows.sides, inputs.reference
    size = cfg.batch_rows * sides
    scores = []
    for start in range(0, len(texts), size):
        part = texts[start : start + size]
        arrays = pad_right(part + [[]] * (size - len(part)), cfg.max_tokens, inputs.rows.pad_id)
        arrays = [x.reshape(cfg.batch_rows, sides, -1) for x in arrays]
        score_BS = to_host(score(params, *shard_rows(mesh, arrays)))
        scores.append(score_BS.reshape(-1)[: len(part)])
    return np.concatenate(scores)


def held_out_numbers(cfg: RewardModelConfig, inputs: Inputs, score, mesh: Mesh):
    """state -> loss and pair accuracy of all held-out rankings, as one batch of them all."""
    data = inputs.held_out

    def measure(state) -> dict[str, float]:
        parts = []
        for batch, weight_B in data.in_order(cfg.batch_rows):
            arrays = shard_rows(mesh, (batch.tokens_BST, batch.attend_BST))
            score_BS = to_host(score(policy_of(state), *arrays))
            parts.append(score_BS[weight_B > 0])
        whole: RankedBatch = data.take(np.arange(len(data)))
        weight_B = prompt_weight(jnp.asarray(whole.rank_BS), jnp.asarray(whole.valid_BS))
        _, metrics = reward_loss(cfg.objective, np.concatenate(parts), whole, weight_B)
        numbers = {name: float(metrics[name].value()) for name in ("loss", "accuracy")}
        return {**numbers, **inputs.beside}

    return measure
