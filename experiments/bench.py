"""What a GRPO step costs on three workloads, each part of it, with and without shared prompts.

    python -m experiments.bench --out bench.json                 # U, R and R0 on a 4.2 M model
    python -m experiments.bench --workloads R --rounds 5

U: 8 prompts of 8 tokens, 8 responses each, all of 64 tokens, KL to a reference (β .04).
R: 8 prompts of 384 tokens, 16 responses each, whose longest is 8 times the median, half of the
groups with equal scores; β .04. R0: the same without KL, where those groups need no update.

Weights are random and so are the responses, which are cut to the workload's lengths after they were
drawn. The ways are timed in turns, in one process, and compared by the median of the rounds' ratios
with the least and the largest. Columns are what is run, padding included; needed are the tokens
that must be: each prompt once, each response once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.bench_step import DECODER, STEP
from experiments.launch import launch
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.errors import check_choice, check_number
from rlhf_jax.loops.functions import build
from rlhf_jax.models.config import DecoderShape
from rlhf_jax.models.transformer import Model
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.parallel.sharding import shard_rows
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.train.layout import columns_run
from rlhf_jax.train.state import init_params, init_state
from rlhf_jax.types import Prompts, Rollout, replace

_RAGGED = SamplingConfig(num_samples=16, max_new_tokens=512, max_prompt_tokens=384)
WORKLOADS = {
    "U": STEP,
    "R": replace(STEP, sampling=_RAGGED, micro_rows=2),
    "R0": replace(STEP, sampling=_RAGGED, micro_rows=2, objective=grpo(beta=None)),
}
WAYS = ("shared", "apart")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """What is timed, how often, and where the numbers go."""

    out: str = "bench.json"
    """File of all numbers."""
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    """Which of U, R and R0."""
    rounds: int = 3
    """Timed rounds, after one that compiles."""
    seed: int = 0
    """Of prompts, lengths and scores."""
    decoder: DecoderShape = field(default_factory=lambda: DECODER)
    """Shape of the decoder."""
    vocab_size: int = 4096
    """Its vocabulary."""

    def __post_init__(self):
        check_number("rounds", self.rounds, low=1)
        for name in self.workloads:
            check_choice("workloads", name, WORKLOADS)


CONFIG = BenchConfig()


def ragged_lengths(rng: np.random.Generator, rows: int, longest: int) -> np.ndarray:
    """length_B, log-normal, with a median of an eighth of the longest."""
    spread = np.exp(np.sort(rng.normal(size=rows)) * np.log(8.0) / 2.5)
    scaled = longest / 8 * spread / np.median(spread)
    length_B = np.clip(np.round(scaled), 1, longest).astype(int)
    length_B[-1] = longest
    return rng.permutation(length_B)


def cut(rollout: Rollout, length_B: np.ndarray, prompt_columns: int) -> Rollout:
    """The rollout as if each response had ended after so many tokens."""
    mask_BT, attend_BT = np.array(rollout.mask_BT), np.array(rollout.attend_BT)
    column_T = np.arange(mask_BT.shape[1])[None] - prompt_columns
    keep_BT = column_T < length_B[:, None]
    return replace(rollout, mask_BT=mask_BT & keep_BT, attend_BT=attend_BT & keep_BT)


def main(cfg: BenchConfig) -> dict[str, Any]:
    """Time every workload, print a table and write it as JSON."""
    found = {name: run_workload(cfg, WORKLOADS[name]) for name in cfg.workloads}
    Path(cfg.out).write_text(json.dumps(found, indent=1))
    print(f"{'':6}{'part':10}" + "".join(f"{way:>10}" for way in WAYS) + f"{'ratio':>8}  (min-max)")
    for name, parts in found.items():
        for part, row in parts["seconds"].items():
            ratio = row["ratio"]
            print(
                f"{name:6}{part:10}"
                + "".join(f"{np.median(row[way]):9.3f}s" for way in WAYS)
                + f"{np.median(ratio):8.2f}  ({min(ratio):.2f}-{max(ratio):.2f})"
            )
        for part, row in parts["columns"].items():
            print(
                f"{name:6}{part:10}"
                + "".join(f"{row[way]:10}" for way in WAYS)
                + f"{row['apart'] / row['shared']:8.2f}  columns, {row['needed']} needed"
            )
    return found


def run_workload(cfg: BenchConfig, step) -> dict[str, Any]:
    """Seconds of every part in every round, and the columns that are run."""
    rng = np.random.default_rng(cfg.seed)
    model, mesh = Model(cfg.decoder.config(cfg.vocab_size)), make_mesh(step.mesh)
    length, room = step.sampling.max_prompt_tokens, step.sampling.max_new_tokens
    prompts = _prompts(rng, step, cfg.vocab_size)
    length_B = np.full(step.rows, room)
    score_PG = rng.integers(0, 2, (step.num_prompts, step.sampling.num_samples))
    if room > 64:
        length_B = ragged_lengths(rng, step.rows, room)
        score_PG[::2] = 1
    scores = {
        "score_BC": score_PG.reshape(-1, 1).astype(np.float32),
        "valid_BC": np.ones((step.rows, 1), bool),
    }
    seconds: dict[str, dict[str, list[float]]] = {}
    columns: dict[str, dict[str, int]] = {}

    def timed(part: str, way: str, fn: Callable, *arguments):
        began = time.perf_counter()
        out = jax.block_until_ready(fn(*arguments))
        seconds.setdefault(part, {}).setdefault(way, []).append(time.perf_counter() - began)
        return out

    with jax.set_mesh(mesh):
        ways, states = {}, {}
        for way in WAYS:
            options = replace(step, share_prompts=way == "shared")
            ways[way], (tx, _) = build(options, model, end_ids=(), pad_id=0, mesh=mesh)
            params = init_params(model, jax.random.key(0), mesh=mesh)
            states[way] = init_state(params, tx, with_reference=True, mesh=mesh)
        for number in range(cfg.rounds + 1):
            for way in WAYS if number % 2 else reversed(WAYS):
                functions, state = ways[way], states[way]
                draw = (functions.sample, state.policy, prompts, jax.random.key(number))
                rollout = cut(timed("sampling", way, *draw), length_B, length)
                rollout = shard_rows(mesh, rollout)
                reference = state.reference if step.objective.needs_reference else None
                layout = functions.lay_out(rollout)
                asked = (None, reference, None, rollout, layout)
                values = timed("scoring", way, functions.score, *asked)
                judged = shard_rows(mesh, scores)
                batch, _ = functions.label(step.objective, rollout, judged, values)
                layouts = layout, functions.lay_out(batch)
                arguments = (functions.update, state, step.objective, batch, layouts[1])
                states[way], _ = timed("update", way, *arguments)
                _count(columns, way, step, (reference is not None, layouts), length_B, batch)
    for row in seconds.values():
        for way in WAYS:
            row[way] = row[way][1:]
        row["ratio"] = [b / a for a, b in zip(row["shared"], row["apart"], strict=True)]
    return {"seconds": seconds, "columns": columns}


def _count(columns, way, step, asked, length_B, batch) -> None:
    scored, layouts = asked
    room, length = step.sampling.max_new_tokens, step.sampling.max_prompt_tokens
    teaches_B = np.ones(step.rows, bool)
    if not step.objective.idle_rows_teach:
        teaches_B = (np.asarray(batch.advantage_BT) != 0).any(axis=1)
    for part, layout, rows_B in (
        ("scoring", layouts[0], np.full(step.rows, scored)),
        ("update", layouts[1], teaches_B),
    ):
        prompts = int(rows_B.reshape(step.num_prompts, -1).any(axis=1).sum())
        run = step.rows * (length + room) if layout is None else columns_run(layout, room)
        row = columns.setdefault(part, {"needed": prompts * length + int(length_B[rows_B].sum())})
        row[way] = run if part == "update" or scored else 0
    if not scored:
        columns.pop("scoring")


def _prompts(rng: np.random.Generator, step, vocab_size: int) -> Prompts:
    shape = (step.num_prompts, step.sampling.max_prompt_tokens)
    tokens_PL = rng.integers(3, vocab_size, shape).astype(np.int32)
    return Prompts(
        tokens_PL=tokens_PL,
        attend_PL=np.ones(shape, bool),
        id_P=np.arange(step.num_prompts, dtype=np.int32),
        texts=[""] * step.num_prompts,
        rows=[{}] * step.num_prompts,
    )


if __name__ == "__main__":
    launch(CONFIG, main)
