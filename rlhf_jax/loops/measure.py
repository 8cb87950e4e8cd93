"""The held-out numbers of an online run: measured, logged and shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlhf_jax.loops.collect import Judged, judge
from rlhf_jax.loops.common import step_key
from rlhf_jax.loops.evaluate import evaluate
from rlhf_jax.loops.run import Run
from rlhf_jax.loops.setup import Setup
from rlhf_jax.report.curves import ONLINE_PANELS, Panel
from rlhf_jax.report.progress import Progress
from rlhf_jax.report.tables import sample_table
from rlhf_jax.rewards.compose import reward_names
from rlhf_jax.rewards.notes import counting
from rlhf_jax.train.state import TrainState, policy_of, reference_of


def panels_of(cfg) -> tuple[Panel, ...]:
    """The curves of a run: beside the score those of the watched functions."""
    watched = [
        Panel(
            f"Watched: {name}",
            "score",
            ((f"watch/{name}", "training"), (f"eval/watch/{name}", "held-out")),
        )
        for name in reward_names(cfg.watch)
    ]
    return (ONLINE_PANELS[0], *watched, *ONLINE_PANELS[1:])


def answer_held_out(
    cfg, setup: Setup, policy: Any, reference: Any
) -> tuple[dict[str, float], Judged]:
    """`evaluate` on the held-out prompts, with the same keys every time, and each function's mean
    (`Judged.means`)."""
    key = step_key(cfg.seed, 0, "evaluate")
    with counting() as counts:
        numbers, judged = evaluate(
            setup.inputs.held_out,
            cfg.num_prompts,
            answer=lambda prompts: setup.functions.answer(policy, prompts, key),
            judge=lambda prompts, rollout: judge(
                cfg, setup.inputs.tokenizer, prompts, rollout, watch=cfg.watch
            ),
            log_probs=lambda rollout: setup.functions.score(policy, reference, None, rollout),
            config=cfg.evaluation,
            greedy=lambda prompts: setup.functions.greedy(policy, prompts, key),
        )
    failures = {k: float(v) for k, v in counts.items() if k.startswith("reward_failures/")}
    return numbers | failures | judged.means(cfg.rewards, cfg.watch), judged


def measure(
    cfg, setup: Setup, state: TrainState, opened: Run, progress: Progress, *, step: int
) -> None:
    """Evaluate and log; show a table of samples at the start and at the end."""
    numbers, judged = answer_held_out(cfg, setup, policy_of(state), reference_of(state))
    opened.folder.log(step, {f"eval/{name}": value for name, value in numbers.items()})
    opened.host.setdefault("before", numbers)
    opened.host["after"] = numbers
    first_of_each = np.arange(0, len(judged.prompts), cfg.evaluation.num_samples)
    shown = judged.take(first_of_each[: cfg.evaluation.samples_shown])
    records = shown.records(cfg.rewards, cfg.watch)
    opened.folder.sample(step, [{"held_out": True, **record} for record in records])
    told = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    if step in (0, cfg.num_steps):
        table = shown.table(cfg.rewards, cfg.watch)
        progress.print(
            sample_table(shown.prompts, shown.completions, *table, title="Held-out samples")
        )
    progress.print(f"held-out after {step} steps: {told}")
