"""Online preference learning (OAIF, 2402.04792, algorithm 1): DPO on pairs just written and judged.

Each step answers P prompts G times, scores the answers, prefers the best of each prompt to its
worst, and makes one update of a preference loss against the frozen reference. With G = 2 and a
reward function in place of the annotator it is the paper's box. Read `train`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from rlhf_jax.algorithms.preference import PreferenceObjective
from rlhf_jax.errors import ConfigError, check_divides
from rlhf_jax.loops.collect import Judged, judge
from rlhf_jax.loops.common import StopRequest, step_key
from rlhf_jax.loops.functions import Functions, samplers
from rlhf_jax.loops.measure import measure
from rlhf_jax.loops.online import COUNTS
from rlhf_jax.loops.preference import check_weighted
from rlhf_jax.loops.rollout_config import RolloutConfig
from rlhf_jax.loops.run import Run
from rlhf_jax.loops.setup import Inputs, Setup, read_prompts
from rlhf_jax.loops.start import export_policy, start_policy
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.multihost import to_host
from rlhf_jax.parallel.sharding import row_shards, shard_rows
from rlhf_jax.report.curves import Panel
from rlhf_jax.report.progress import Progress
from rlhf_jax.train.microbatch import check_micro_rows
from rlhf_jax.train.optim import make_optimizer
from rlhf_jax.train.preference import make_preference_update
from rlhf_jax.train.scoring import make_score
from rlhf_jax.train.state import TrainState, init_state, policy_of
from rlhf_jax.types import PreferenceBatch, Rollout, replace

PANELS = (
    Panel("Score", "score", (("score", "training"), ("eval/score", "held-out"))),
    Panel("KL to the reference", "nats / completion", (("eval/kl", "held-out"),)),
    Panel("Loss", "loss", (("loss", "policy"),)),
    Panel("Margin", "implicit reward", (("margin", "best − worst"),)),
    Panel("Pairs", "fraction", (("accuracy", "ranked right"), ("ties", "without a preference"))),
    Panel("Response length", "tokens", (("length", "training"), ("eval/length", "held-out"))),
    Panel("Gradient norm", "before clipping", (("grad_norm", "policy"),)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlinePreferenceConfig(RolloutConfig):
    """Everything an online preference run depends on."""

    objective: PreferenceObjective
    """The loss. Its numbers can be set here; its parts are swapped in a file."""

    def __post_init__(self):
        RolloutConfig.__post_init__(self)
        if self.sampling.num_samples < 2 or self.sampling.greedy:
            raise ConfigError(
                f"sampling.num_samples={self.sampling.num_samples} at temperature "
                f"{self.sampling.temperature}: a pair needs 2 answers or more, that can differ"
            )
        micro = self.micro_rows or self.num_prompts
        check_divides("num_prompts", self.num_prompts, "micro_rows", micro)


def run(cfg: OnlinePreferenceConfig) -> dict[str, Any]:
    """Train as `cfg` says, in its run folder; returns what result.json holds.

    Raises:
        ConfigError: whatever a user can mend, before the first step.
        Interrupted: asked to stop; the run is saved and the message says how to go on.
    """
    inputs = read_prompts(cfg)
    check_weighted(cfg.objective)  # a tie is a pair of weight 0
    with Run(cfg, panels=PANELS, counts=COUNTS) as opened, StopRequest() as stop:
        result = opened.finished(inputs.identity)
        if result is not None:
            return result
        mesh = make_mesh(cfg.mesh)
        check_divides("num_prompts", cfg.num_prompts, "mesh data*fsdp", row_shards(mesh))
        check_micro_rows(cfg.num_prompts, cfg.micro_rows, mesh)
        with jax.set_mesh(mesh):
            setup, state = set_up(cfg, inputs, mesh)
            state = opened.restore(state, identity=inputs.identity)
            state = train(cfg, setup, state, opened, stop)
            result = opened.finish(
                lambda folder: export_policy(folder, cfg, setup.model, state, inputs.tokenizer)
            )
        if stop.requested:
            stop.leave(cfg.out, cfg.num_steps)
    return result


def set_up(cfg: OnlinePreferenceConfig, inputs: Inputs, mesh: Mesh) -> tuple[Setup, TrainState]:
    """Load the model, make the functions and the state of step 0.

    `label` of the functions is `pair`: (rollout, index_PS, weight_P) -> PreferenceBatch.
    """
    start = start_policy(cfg, mesh)
    model = start.model
    tx = make_optimizer(cfg.optim, cfg.num_steps)
    tokenizer = inputs.tokenizer
    sampler_of = samplers(
        cfg,
        model,
        end_ids=tokenizer.end_ids,
        pad_id=tokenizer.pad_id,
        mesh=mesh,
        tokenizer=tokenizer,
    )
    answers = {"num_samples": cfg.evaluation.num_samples, **cfg.evaluation.decoding()}
    functions = Functions(
        sample=sampler_of(cfg.sampling),
        answer=sampler_of(replace(cfg.sampling, **answers)),
        greedy=sampler_of(cfg.sampling.greedily()),
        score=make_score(
            model,
            temperature=cfg.sampling.trainer_temperature,
            micro_rows=cfg.micro_rows,
            mesh=mesh,
        ),
        label=jax.jit(pair),
        update=make_preference_update(model, tx, micro_rows=cfg.micro_rows, mesh=mesh),
    )
    state = init_state(start.trained, tx, with_reference=True, base=start.base, mesh=mesh)
    return Setup(inputs, mesh, start, None, functions, (tx, None)), state


def train(
    cfg: OnlinePreferenceConfig, setup: Setup, state: TrainState, opened: Run, stop: StopRequest
) -> TrainState:
    """The paper's loop. A step is reported while the device works on the next one."""
    functions, inputs, host = setup.functions, setup.inputs, opened.host
    first = int(state.step)
    with Progress("train", total=cfg.num_steps, start=first) as progress:
        if first == 0:
            measure(cfg, setup, state, opened, progress, step=0)
        for step in range(first, cfg.num_steps):
            began = time.monotonic()
            prompts = inputs.batches[step]  # x ~ D
            key = step_key(cfg.seed, step, "sample")
            rollout = functions.sample(policy_of(state), prompts, key)  # y_1..y_G ~ π(· | x)
            judged = judge(cfg, inputs.tokenizer, prompts, rollout, watch=cfg.watch)  # r(x, y)
            labels = best_and_worst(judged, cfg.sampling.num_samples)  # y_w, y_l
            batch = functions.label(rollout, *shard_rows(setup.mesh, labels))
            state, metrics = functions.update(state, cfg.objective, batch)
            state = replace(state, step=state.step + 1)

            numbers = draw_numbers(cfg, rollout, judged, labels[1])
            host["tokens_drawn"] += int(to_host(rollout.mask_BT).sum())
            host["tokens_trained"] += int(to_host(batch.mask_BST)[labels[1] > 0].sum())
            numbers |= {name: host[name] for name in COUNTS}
            due = opened.due(step + 1, stop, cfg.evaluation.every)
            opened.report(progress, step + 1, [metrics], numbers, judged, began=began, due=due)
            if due.measure:
                measure(cfg, setup, state, opened, progress, step=step + 1)
            if due.save:
                opened.save(step + 1, state)
            if due.leave:
                stop.leave(cfg.out, step + 1)
    return state


def best_and_worst(judged: Judged, num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """For each prompt the rows of its highest and its lowest total score, and the pair's weight.

    Of equal scores the first row is taken. Where all scores of a prompt are equal, or fewer than
    two apply, nothing is preferred: the weight is 0, else 1.

    Args:
        judged: G rows a prompt, the rows of a prompt beside each other.
        num_samples: G.

    Returns:
        index_PS int32 and weight_P float32.
    """
    score_PG = judged.total_B.reshape(-1, num_samples)
    valid_PG = judged.valid_BC.any(axis=1).reshape(-1, num_samples)
    best_P = np.where(valid_PG, score_PG, -np.inf).argmax(axis=1)
    worst_P = np.where(valid_PG, score_PG, np.inf).argmin(axis=1)
    first_P = np.arange(0, score_PG.size, num_samples)
    index_PS = (np.stack([best_P, worst_P], axis=1) + first_P[:, None]).astype(np.int32)
    ahead_P = judged.total_B[index_PS[:, 0]] > judged.total_B[index_PS[:, 1]]
    return index_PS, ((valid_PG.sum(axis=1) >= 2) & ahead_P).astype(np.float32)


def pair(rollout: Rollout, index_PS: Array, weight_P: Array) -> PreferenceBatch:
    """The chosen and the rejected rows of a rollout beside each other, one row a prompt."""
    return PreferenceBatch(
        tokens_BST=rollout.tokens_BT[index_PS],
        attend_BST=rollout.attend_BT[index_PS],
        mask_BST=rollout.mask_BT[index_PS],
        weight_B=weight_P,
    )


def draw_numbers(
    cfg: OnlinePreferenceConfig, rollout: Rollout, judged: Judged, weight_P: np.ndarray
) -> dict[str, float]:
    """What is logged of a step's draws: score, ties, length, and entropy in nats a token."""
    mask_BT, entropy_BT, truncated_B = to_host(
        (rollout.mask_BT, rollout.entropy_BT, rollout.truncated_B)
    )
    applies_B = judged.valid_BC.any(axis=1)
    numbers = {
        "ties": float(1 - weight_P.mean()),
        "length": float(mask_BT.sum(axis=1).mean()),
        "truncated": float(truncated_B.mean()),
        "entropy": float(entropy_BT[mask_BT].mean()),
    }
    if applies_B.any():
        numbers["score"] = float(judged.total_B[applies_B].mean())
    return numbers | judged.means(cfg.rewards, cfg.watch) | judged.seconds()
