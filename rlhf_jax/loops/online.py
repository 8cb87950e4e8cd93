"""Online reinforcement learning: PPO, GRPO, Dr. GRPO, RLOO, REINFORCE++, DAPO, GSPO.

One loop serves them all: which algorithm runs is a value, `OnlineConfig.objective`. Read `train`,
it is the box of the papers; `loops/functions.py` makes the jitted functions that it calls.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import Bound
from rlhf_jax.data.lengths import OVER_LONG
from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.loops.collect import fill_batch, judge, minibatches
from rlhf_jax.loops.common import RunConfig, StopRequest, step_key
from rlhf_jax.loops.evaluate import EvalConfig, evaluate
from rlhf_jax.loops.run import Run
from rlhf_jax.loops.setup import Setup, first_state, read_inputs, set_up
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.report.progress import Progress
from rlhf_jax.report.tables import sample_table
from rlhf_jax.rewards.compose import reward_names
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.train.state import (
    TrainState,
    control_reward_kl,
    objective_now,
    refresh_reference,
)
from rlhf_jax.types import replace


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
    """Hold the reference, and report the KL to it in evaluations, even where the objective does not
    read it."""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """How the held-out prompts are answered, and how often."""
    samples_every: int = 10
    """Steps between two steps of which a few completions are written to samples.jsonl."""

    def __post_init__(self):
        RunConfig.__post_init__(self)
        for name in ("num_prompts", "num_epochs", "max_resample", "samples_every"):
            check_number(name, getattr(self, name), low=1)
        check_choice("over_long", self.over_long, OVER_LONG)
        if not isinstance(self.rewards, (tuple, list)):
            raise ConfigError(f"rewards is {self.rewards!r}, not a tuple: write (bind(...),)")
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
        if self.objective.needs_group and self.sampling.greedy:
            raise ConfigError(
                "sampling.temperature=0 draws one answer G times: a group has nothing to compare"
            )
        if self.refresh_reference_every is not None:
            check_number("refresh_reference_every", self.refresh_reference_every, low=1)
            if not self.holds_reference:
                raise ConfigError(
                    "refresh_reference_every needs keep_reference: there is no reference"
                )
        check_divides("rows of a rollout", self.rows, "minibatch_rows", self.update_rows)
        micro = self.micro_rows or self.update_rows
        check_divides("minibatch_rows", self.update_rows, "micro_rows", micro)

    @property
    def weights(self) -> tuple[float, ...]:
        """One factor a reward function."""
        return self.reward_weights or (1.0,) * len(self.rewards)

    @property
    def holds_reference(self) -> bool:
        """A frozen copy of the policy is part of the state."""
        return self.keep_reference or self.objective.needs_reference

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


def run(cfg: OnlineConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    inputs = read_inputs(cfg)
    with Run(cfg) as opened, StopRequest() as stop:
        result = opened.finished(inputs.identity)
        if result is not None:
            return result
        setup = set_up(cfg, inputs)
        with jax.set_mesh(setup.mesh):
            state = opened.restore(first_state(cfg, setup), identity=inputs.identity)
            state = train(cfg, setup, state, opened, stop)
            result = opened.finish(
                lambda folder: export_pretrained(
                    folder, setup.model.config, state.policy, inputs.tokenizer
                )
            )
        if stop.requested:
            stop.leave(cfg.out, cfg.num_steps)
    return result


def measure_only(cfg: OnlineConfig) -> dict[str, float]:
    """The numbers of `cfg.model` on the held-out prompts, without training and without a folder."""
    setup = set_up(cfg, read_inputs(cfg))
    with jax.set_mesh(setup.mesh):
        return answer_held_out(cfg, setup, setup.policy, setup.policy)[0]


def train(
    cfg: OnlineConfig, setup: Setup, state: TrainState, opened: Run, stop: StopRequest
) -> TrainState:
    """The papers' loop. A step is reported while the device works on the next one."""
    functions, mesh, inputs = setup.functions, setup.mesh, setup.inputs
    host, objective = opened.host, cfg.objective
    # one update on fresh weights: old is the policy itself, nothing needs to be scored for it
    keep_old = cfg.updates_per_step > 1 or objective.needs_old
    pending = None

    def draw(attempt):
        prompts = inputs.batches[host["position"]]
        host["position"] += 1
        key = step_key(cfg.seed, step, "sample", attempt)
        return prompts, functions.sample(state.policy, prompts, key)  # y_1..y_G ~ π_old(· | x)

    first = int(state.step)
    with Progress("train", total=cfg.num_steps, start=first) as progress:
        if first == 0:
            measure(cfg, setup, state, opened, progress, step=0)
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            rollout, judged, draws = fill_batch(cfg, draw, inputs.tokenizer)  # x ~ D, y, r(x, y)
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
            stopping, last = stop.requested, step + 1 == cfg.num_steps
            due = last or (cfg.evaluation.every and (step + 1) % cfg.evaluation.every == 0)
            save = last or stopping or opened.checkpoints.due(step + 1)
            if due or save:  # wait here, so that the time is this step's
                jax.block_until_ready(updates)
            host["tokens"] += int(to_host(rollout.mask_BT).sum())
            numbers |= {"draws": draws, "seconds": time.monotonic() - began}
            host["seconds"] += numbers["seconds"]
            pending = (step + 1, updates, numbers, judged)
            if due or save:
                opened.report(progress, *pending)
                pending = None
            if due:
                measure(cfg, setup, state, opened, progress, step=step + 1)
            if save:
                opened.save(step + 1, state)
            if stopping and not last:
                stop.leave(cfg.out, step + 1)
    return state


def answer_held_out(cfg: OnlineConfig, setup: Setup, policy, reference):
    """`evaluate` on the held-out prompts, with the same keys every time."""
    key = step_key(cfg.seed, 0, "evaluate")
    return evaluate(
        setup.inputs.held_out,
        cfg.num_prompts,
        answer=lambda prompts: setup.functions.answer(policy, prompts, key),
        judge=lambda prompts, rollout: judge(cfg, setup.inputs.tokenizer, prompts, rollout),
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
