"""Online reinforcement learning by policy gradients: PPO, GRPO, RLOO, ReMax and their relatives.

One loop serves them all: which algorithm runs is a value, `OnlineConfig.objective`. Read `train`,
it is the box of the papers; `loops/functions.py` makes the jitted functions that it calls.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from rlhf_jax.algorithms.objective import PolicyObjective
from rlhf_jax.bind import Bound
from rlhf_jax.data.frontier import FrontierConfig
from rlhf_jax.errors import ConfigError, check_divides, check_number
from rlhf_jax.loops.collect import fill_batch, minibatches
from rlhf_jax.loops.common import StopRequest
from rlhf_jax.loops.draws import Draws
from rlhf_jax.loops.measure import answer_held_out, measure, panels_of
from rlhf_jax.loops.rollout_config import RolloutConfig
from rlhf_jax.loops.run import Run
from rlhf_jax.loops.setup import Setup, first_state, read_inputs, set_up
from rlhf_jax.loops.start import export_policy
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.train.state import (
    TrainState,
    control_reward_kl,
    critic_of,
    objective_now,
    policy_of,
    reference_of,
    refresh_reference,
)
from rlhf_jax.types import replace

# Response tokens so far: of every draw (discarded groups and greedy baselines too), and of those
# the ones that an update counted.
COUNTS = ("tokens_drawn", "tokens_trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineConfig(RolloutConfig):
    """Everything an online run depends on."""

    objective: PolicyObjective
    """The algorithm. Its numbers can be set here; its parts are swapped in a file."""
    num_epochs: int = 1
    """Passes over each rollout (μ of the papers)."""
    minibatch_rows: int | None = None
    """Rows of one optimizer update. None: the whole rollout, one update an epoch."""
    share_prompts: bool = True
    """Run each prompt once for all its responses in scoring and update, with several short ones in
    a row and without those that no gradient comes from. The same numbers to rounding; off: every
    response with its prompt in a padded row."""
    critic_optim: OptimConfig = field(default_factory=OptimConfig)
    """The critic's optimizer; used where the objective has a value term."""
    refresh_reference_every: int | None = None
    """Steps (rollouts) after which the reference is renewed from the policy. None: never."""
    refresh_mix: float = 1.0
    """How far a renewal goes: ref ← mix·policy + (1 − mix)·ref. 1 copies the policy; with a renewal
    every step and a small mix the reference is a moving average."""
    critic_from: str | None = None
    """Folder of a reward model (same tokenizer) that the critic begins as. None: the policy's trunk
    with a head of zeros."""
    process_reward: Bound | None = None
    """Scores steps within a completion: (prompts, completions, rows) -> for each a list of (end
    character, score), or None. For advantages that read step scores."""
    frontier: FrontierConfig | None = None
    """Draw prompts that are always or never solved less often. None: every prompt in its turn."""
    max_resample: int = 4
    """Where the objective filters groups (DAPO): at most this many draws to fill one batch."""
    keep_reference: bool = True
    """Hold the reference, and report the KL to it in evaluations, even where the objective does not
    read it."""

    def __post_init__(self):
        RolloutConfig.__post_init__(self)
        for name in ("num_epochs", "max_resample"):
            check_number(name, getattr(self, name), low=1)
        if self.objective.needs_group and self.sampling.num_samples < 2:
            raise ConfigError(
                f"{self.objective.advantage} compares the samples of one prompt: "
                f"sampling.num_samples={self.sampling.num_samples} must be at least 2"
            )
        if self.objective.needs_group and self.sampling.greedy:
            raise ConfigError(
                "sampling.temperature=0 draws one answer G times: a group has nothing to compare"
            )
        _check_reference(self)
        _check_parts(self)
        check_divides("rows of a rollout", self.rows, "minibatch_rows", self.update_rows)
        micro = self.micro_rows or self.update_rows
        check_divides("minibatch_rows", self.update_rows, "micro_rows", micro)

    @property
    def holds_reference(self) -> bool:
        """A frozen copy of the policy is part of the state."""
        return self.keep_reference or self.objective.needs_reference

    @property
    def update_rows(self) -> int:
        """Rows of one optimizer update."""
        return self.minibatch_rows or self.rows

    @property
    def updates_per_step(self) -> int:
        """Optimizer updates of one rollout, over all epochs."""
        return self.num_epochs * (self.rows // self.update_rows)


def _check_reference(cfg: OnlineConfig) -> None:
    check_number("refresh_mix", cfg.refresh_mix, low=0, high=1, open_low=True)
    if cfg.refresh_reference_every is None:
        if cfg.refresh_mix != 1:
            raise ConfigError("refresh_mix is set, but refresh_reference_every=None renews nothing")
        return
    check_number("refresh_reference_every", cfg.refresh_reference_every, low=1)
    if cfg.refresh_mix != 1 and cfg.lora is not None:
        raise ConfigError("lora: a reference of adapters is renewed whole; refresh_mix must be 1")
    if not cfg.holds_reference:
        raise ConfigError("refresh_reference_every needs keep_reference: there is no reference")


def _check_parts(cfg: OnlineConfig) -> None:
    """What the objective reads is there, and what is there is read."""
    objective = cfg.objective
    if cfg.process_reward is not None and cfg.dialogue is not None:
        raise ConfigError("process_reward scores steps of an answer; a dialogue's are its turns")
    if cfg.critic_from is not None and not objective.needs_critic:
        raise ConfigError("critic_from is set, but the objective has no value term: no critic")
    if objective.needs_steps and cfg.process_reward is None and cfg.dialogue is None:
        raise ConfigError(f"{objective.advantage} reads step scores; give process_reward=bind(...)")
    if cfg.process_reward is not None and not objective.needs_steps:
        raise ConfigError(f"process_reward is set, but {objective.advantage} reads no step scores")


def run(cfg: OnlineConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    inputs = read_inputs(cfg)
    with Run(cfg, panels=panels_of(cfg), counts=COUNTS) as opened, StopRequest() as stop:
        result = opened.finished(inputs.identity)
        if result is not None:
            return result
        setup = set_up(cfg, inputs)
        with jax.set_mesh(setup.mesh):
            state = opened.restore(first_state(cfg, setup), identity=inputs.identity)
            state = train(cfg, setup, state, opened, stop)
            result = opened.finish(
                lambda folder: export_policy(folder, cfg, setup.model, state, inputs.tokenizer)
            )
        if stop.requested:
            stop.leave(cfg.out, cfg.num_steps)
    return result


def measure_only(cfg: OnlineConfig) -> dict[str, float]:
    """The numbers of `cfg.model` on the held-out prompts, without training and without a folder."""
    setup = set_up(cfg, read_inputs(cfg))
    with jax.set_mesh(setup.mesh):
        start = setup.start.params
        return answer_held_out(cfg, setup, start, start)[0]


def train(
    cfg: OnlineConfig, setup: Setup, state: TrainState, opened: Run, stop: StopRequest
) -> TrainState:
    """The papers' loop. A step is reported while the device works on the next one."""
    functions, mesh = setup.functions, setup.mesh
    host, objective = opened.host, cfg.objective
    # one update on fresh weights: old is the policy itself, nothing needs to be scored for it
    keep_old = cfg.updates_per_step > 1 or objective.needs_old
    draws, first = Draws(cfg, setup, host), int(state.step)
    with Progress("train", total=cfg.num_steps, start=first) as progress:
        if first == 0:
            measure(cfg, setup, state, opened, progress, step=0)
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            rollout, judged, num_draws = fill_batch(  # x ~ D, y_1..y_G ~ π_old(· | x), r(x, y)
                cfg,
                partial(draws.draw, policy_of(state), step),
                setup.inputs.tokenizer,
                greedy=partial(draws.greedy, policy_of(state)) if objective.needs_greedy else None,
                frontier=draws.frontier,
            )
            drawn = time.monotonic() - began  # the end of the last update is in it
            rollout, scores = shard_rows(mesh, (rollout, judged.scores()))
            values = functions.score(  # log π_old, log π_ref, V
                policy_of(state) if keep_old else None,
                reference_of(state) if objective.needs_reference else None,
                critic_of(state) if objective.needs_critic else None,
                rollout,
                functions.lay_out(rollout),
            )
            now = objective_now(objective, state)
            batch, numbers = functions.label(now, rollout, scores, values)
            updates = []
            for part in minibatches(cfg, batch, step):
                state, metrics = functions.update(state, now, part, functions.lay_out(part))
                updates.append(metrics)
            state = control_reward_kl(state, objective, numbers.get("kl_response"))
            state = replace(state, step=state.step + 1)
            if cfg.refresh_reference_every and (step + 1) % cfg.refresh_reference_every == 0:
                state = refresh_reference(state, cfg.refresh_mix)

            host["tokens_trained"] += int(to_host(batch.mask_BT).sum())
            numbers |= draws.numbers() | judged.means(cfg.rewards, cfg.watch) | judged.seconds()
            numbers |= {name: host[name] for name in COUNTS}
            numbers |= {"draws": num_draws, "seconds/draw": drawn}
            due = opened.due(step + 1, stop, cfg.evaluation.every)
            opened.report(progress, step + 1, updates, numbers, judged, began=began, due=due)
            if due.measure:
                measure(cfg, setup, state, opened, progress, step=step + 1)
            if due.save:
                opened.save(step + 1, state)
            if due.leave:
                stop.leave(cfg.out, step + 1)
    return state
