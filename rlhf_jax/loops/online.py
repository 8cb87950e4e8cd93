"""Online reinforcement learning: PPO, GRPO, Dr. GRPO, RLOO, REINFORCE++, DAPO, GSPO.

One loop serves them all: which algorithm runs is a value, `OnlineConfig.objective`. Read `train`,
it is the box of the papers; `loops/functions.py` makes the jitted functions that it calls.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import Bound
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.collect import fill_batch, judge, minibatches
from rlhf_jax.loops.common import RunConfig, StopRequest, step_key
from rlhf_jax.loops.evaluate import EvalConfig, evaluate
from rlhf_jax.loops.functions import Functions, build
from rlhf_jax.loops.run import Run, load_policy
from rlhf_jax.models.convert import read_config
from rlhf_jax.models.heads import init_scalar_head
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import row_shards, shard_rows
from rlhf_jax.report.progress import Progress
from rlhf_jax.report.tables import sample_table
from rlhf_jax.rewards.compose import reward_names
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.microbatch import check_micro_rows
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.train.state import (
    TrainState,
    control_reward_kl,
    init_state,
    objective_now,
    refresh_reference,
)
from rlhf_jax.types import Prompts, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineConfig(RunConfig):
    """Everything an online run depends on."""

    model: str
    """Folder of a Hugging Face model: the policy at the start, and the frozen reference."""
    objective: PolicyObjective
    """The algorithm. Its numbers can be set here; its parts are swapped in a file."""
    prompts: Bound
    """Returns (training rows, held-out rows); a row is a dict with a "prompt"."""
    rewards: tuple[Bound, ...]
    """Reward functions: (prompts, completions, rows) -> a number or None for each."""
    reward_weights: tuple[float, ...] = ()
    """One weight a reward function; empty: all 1."""
    num_prompts: int
    """Prompts of one step; each is answered sampling.num_samples times."""
    sampling: SamplingConfig
    """How responses are drawn."""
    num_epochs: int = 1
    """Passes over each rollout (μ of the papers)."""
    minibatch_rows: int | None = None
    """Rows of one optimizer update. None: the whole rollout, one update an epoch."""
    critic_optim: OptimConfig = field(default_factory=OptimConfig)
    """The critic's optimizer; used where the objective has a value term."""
    refresh_reference_every: int | None = None
    """Steps after which the policy becomes the new reference. None: never."""
    max_resample: int = 4
    """Where the objective filters groups (DAPO): at most this many draws to fill one batch."""
    over_long: str = "error"
    """What becomes of a prompt longer than sampling.max_prompt_tokens: error, drop, left or right
    (cut there)."""
    keep_reference: bool = True
    """Hold the reference, and report the KL to it, even where the objective does not read it."""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """How the held-out prompts are answered, and how often."""
    samples_every: int = 10
    """Steps between two steps of which a few completions are written to samples.jsonl."""

    def __post_init__(self):
        RunConfig.__post_init__(self)
        for name in ("num_prompts", "num_epochs", "max_resample", "samples_every"):
            check_number(name, getattr(self, name), low=1)
        check_choice("over_long", self.over_long, OVER_LONG)
        if not self.rewards:
            raise ConfigError("rewards is empty: an online run needs a reward function")
        if len(self.weights) != len(self.rewards):
            raise ConfigError(
                f"reward_weights has {len(self.weights)} numbers for {len(self.rewards)} rewards"
            )
        for weight in self.weights:
            check_number("reward_weights", weight)
        if self.objective.needs_group and self.sampling.num_samples < 2:
            raise ConfigError(
                f"{self.objective.advantage} compares the samples of one prompt: "
                f"sampling.num_samples={self.sampling.num_samples} must be at least 2"
            )
        if self.refresh_reference_every is not None:
            check_number("refresh_reference_every", self.refresh_reference_every, low=1)
        check_divides("rows of a rollout", self.rows, "minibatch_rows", self.update_rows)
        micro = self.micro_rows or self.update_rows
        check_divides("minibatch_rows", self.update_rows, "micro_rows", micro)

    @property
    def weights(self) -> tuple[float, ...]:
        """One factor a reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    @property
    def rows(self) -> int:
        """Rows of a rollout, B = P·G."""
        return self.num_prompts * self.sampling.num_samples

    @property
    def update_rows(self) -> int:
        """Rows of one optimizer update."""
        return self.minibatch_rows or self.rows

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one rollout, over all epochs."""
        return self.num_epochs * (self.rows // self.update_rows)


@dataclass(frozen=True)
class Setup:
    """What a run works with, loaded and compiled-to-be; nothing of it changes during the run."""

    mesh: Mesh
    tokenizer: Tokenizer
    prompts: PromptSet
    batches: Sequence[Prompts]
    held_out: PromptSet
    model: Model
    policy: dict[str, Any]
    functions: Functions
    optimizers: tuple


def set_up(cfg: OnlineConfig) -> Setup:
    """Load tokenizer, prompts and model, and make the functions.

    Raises:
        ConfigError: whatever a user can mend.
    """
    tokenizer = Tokenizer.from_folder(cfg.model)
    prompts, held_out = load_prompts(cfg, tokenizer)
    batches = prompts.batches(cfg.num_prompts, cfg.seed)
    mesh = make_mesh(cfg.mesh)
    check_divides("num_prompts", cfg.num_prompts, "mesh data*fsdp", row_shards(mesh))
    check_micro_rows(cfg.update_rows, cfg.micro_rows, mesh)
    model, policy = load_policy(cfg.model, cfg, mesh)
    functions, optimizers = build(
        cfg, model, end_ids=tokenizer.end_ids, pad_id=tokenizer.pad_id, mesh=mesh
    )
    return Setup(mesh, tokenizer, prompts, batches, held_out, model, policy, functions, optimizers)


def run(cfg: OnlineConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    opened = Run(cfg)
    if opened.result is not None:
        print(f"{cfg.out} is finished; --restart begins anew")
        return opened.result
    setup, objective = set_up(cfg), cfg.objective
    tx, critic_tx = setup.optimizers
    with jax.set_mesh(setup.mesh), StopRequest() as stop:
        state = init_state(
            setup.policy,
            tx,
            with_reference=cfg.keep_reference or objective.needs_reference,
            critic=init_critic(setup.model, setup.policy) if objective.needs_critic else None,
            critic_tx=critic_tx,
            reward_kl_coef=first_kl_coef(objective),
            mesh=setup.mesh,
        )
        state = opened.restore(state, data=setup.prompts.fingerprint)
        state = train(cfg, setup, state, opened, stop)
        return opened.finish(setup.model, state.policy, setup.tokenizer)


def measure_only(cfg: OnlineConfig) -> dict[str, float]:
    """The numbers of `cfg.model` on the held-out prompts, without training and without a folder."""
    setup = set_up(cfg)
    with jax.set_mesh(setup.mesh):
        return answer_held_out(cfg, setup, setup.policy, setup.policy)[0]


def train(
    cfg: OnlineConfig, setup: Setup, state: TrainState, opened: Run, stop: StopRequest
) -> TrainState:
    """The papers' loop. A step is reported while the device works on the next one."""
    functions, mesh, tokenizer = setup.functions, setup.mesh, setup.tokenizer
    host, objective = opened.host, cfg.objective
    # one update on fresh weights: old is the policy itself, nothing needs to be scored for it
    keep_old = cfg.updates_per_step > 1 or objective.needs_old
    pending = None

    def draw(attempt):
        prompts = setup.batches[host["position"]]
        host["position"] += 1
        key = step_key(cfg.seed, step, "sample", attempt)
        return prompts, functions.sample(state.policy, prompts, key)  # y_1..y_G ~ π_old(· | x)

    first = int(state.step)
    with Progress("train", total=cfg.num_steps, start=first) as progress:
        if first == 0:
            measure(cfg, setup, state, opened, progress, step=0)
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            rollout, judged, draws = fill_batch(cfg, draw, tokenizer)  # x ~ D, y, r(x, y)
            rollout = shard_rows(mesh, rollout)
            scores = {"score_BC": judged.score_BC, "valid_BC": judged.valid_BC}
            values = functions.score(  # log π_old, log π_ref, V
                state.policy if keep_old else None,
                state.reference if objective.needs_reference else None,
                state.critic.params if objective.needs_critic else None,
                rollout,
            )
            now = objective_now(objective, state)
            batch, numbers = functions.label(now, rollout, shard_rows(mesh, scores), values)
            updates = []
            for part in minibatches(cfg, batch, step):
                state, metrics = functions.update(state, now, part)
                updates.append(metrics)
            state = control_reward_kl(state, objective, numbers.get("kl_response"))
            state = replace(state, step=state.step + 1)
            if cfg.refresh_reference_every and (step + 1) % cfg.refresh_reference_every == 0:
                state = refresh_reference(state)

            if pending:
                opened.report(progress, *pending)
            host["tokens"] += int(to_host(rollout.mask_BT).sum())
            numbers |= {"draws": draws, "seconds": time.monotonic() - began}
            host["seconds"] += numbers["seconds"]
            pending = (step + 1, updates, numbers, judged)
            last = step + 1 == cfg.num_steps
            due = cfg.evaluation.every and (step + 1) % cfg.evaluation.every == 0
            if last or due or stop.requested or opened.checkpoints.due(step + 1):
                opened.report(progress, *pending)
                pending = None
            if last or due:
                measure(cfg, setup, state, opened, progress, step=step + 1)
            if last or stop.requested or opened.checkpoints.due(step + 1):
                opened.save(step + 1, state)
            if stop.requested and not last:
                stop.leave(cfg.out, step + 1)
    return state


def answer_held_out(cfg: OnlineConfig, setup: Setup, policy, reference):
    """`evaluate` on the held-out prompts, with the same keys every time."""
    key = step_key(cfg.seed, 0, "evaluate")
    return evaluate(
        setup.held_out,
        cfg.num_prompts,
        answer=lambda prompts: setup.functions.answer(policy, prompts, key),
        judge=lambda prompts, rollout: judge(cfg, setup.tokenizer, prompts, rollout),
        log_probs=lambda rollout: setup.functions.score(policy, reference, None, rollout),
    )


def measure(
    cfg: OnlineConfig,
    setup: Setup,
    state: TrainState,
    opened: Run,
    progress: Progress,
    *,
    step: int,
) -> None:
    """Evaluate and log; show a table of samples at the start and at the end."""
    numbers, judged = answer_held_out(cfg, setup, state.policy, state.reference)
    opened.folder.log(step, {f"eval/{name}": value for name, value in numbers.items()})
    opened.host.setdefault("before", numbers)
    opened.host["after"] = numbers
    shown = judged.take(np.arange(min(cfg.evaluation.samples_shown, len(judged.prompts))))
    opened.folder.sample(step, [{"held_out": True, **r} for r in shown.records(cfg.rewards)])
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    if step in (0, cfg.num_steps):
        progress.print(sample_table(*shown, reward_names(cfg.rewards), title="Held-out samples"))
    progress.print(f"held-out after {step} steps: {told}")


def load_prompts(cfg: OnlineConfig, tokenizer: Tokenizer) -> tuple[PromptSet, PromptSet]:
    """Training and held-out prompts, tokenised; sizes that cannot work are refused here."""
    length = cfg.sampling.max_prompt_tokens + cfg.sampling.max_new_tokens
    limit = read_config(cfg.model).max_positions
    if length > limit:
        raise ConfigError(
            f"sampling.max_prompt_tokens + max_new_tokens = {length}, but {cfg.model} was made "
            f"for at most {limit} positions"
        )
    train_rows, held_out_rows = cfg.prompts()
    options = dict(max_prompt_tokens=cfg.sampling.max_prompt_tokens, over_long=cfg.over_long)
    return (
        PromptSet.from_rows(train_rows, tokenizer, name="training prompts", **options),
        PromptSet.from_rows(held_out_rows, tokenizer, name="held-out prompts", **options),
    )


def first_kl_coef(objective: PolicyObjective) -> float | None:
    """β at the start where a controller adapts it; None where it is fixed."""
    kl = objective.reward_kl
    return None if kl is None or kl.controller is None else float(kl.coef)


def init_critic(model: Model, policy: Any) -> dict[str, Any]:
    """A critic whose trunk starts as the policy and whose head starts at 0."""
    return {"trunk": policy, "head": init_scalar_head(model.config.d_model)}
