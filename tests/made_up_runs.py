"""Run folders made up for the reports: written as a run writes them, without running."""

import json

import numpy as np

from rlhf_jax.report.run_folder import RunFolder

PROMPTS = ("Say <b>hello</b> & go:", "Count to three:")


def config(out, *, seed=0, high=0.2, num_steps=80):
    clip = {"fn": "rlhf_jax.losses.surrogate:clipped", "high": high, "low": 0.2}
    return {
        "out": str(out),
        "restart": False,
        "seed": seed,
        "num_steps": num_steps,
        "model": f"{out}/warmup/policy",
        "prompts": {"fn": "rlhf_jax.data.synthetic:sum_prompts", "seed": seed},
        "objective": {"surrogate": clip},
        "sampling": {"num_samples": 8},
    }


def online_lines(num_steps, *, seed=0, gain=0.5):
    """What an online run logs: its score rises by `gain`, and nothing else moves."""
    noise = np.random.default_rng(seed)
    for step in range(num_steps + 1):
        done = step / num_steps
        if step:
            yield (
                step,
                {
                    "score": 0.2 + gain * done + noise.normal(0, 0.02),
                    "watch/gold": 0.2 + 0.2 * done + noise.normal(0, 0.02),
                    "length": 20.0 + noise.normal(0, 0.3),
                    "length_better": 21.0,
                    "length_worse": float("nan"),
                    "entropy": 1.5 + noise.normal(0, 0.02),
                    "kl_response": 2 * done,
                    "clip_low": 0.0,
                    "clip_high": 0.0,
                    "groups_equal": 0.1,
                    "sampler_gap": 1e-6,
                    "skipped": 0.0,
                    "seconds": 1.0 + 9.0 * (step == 1),
                    "reward_seconds/exact": 0.25,
                    "tokens_drawn": 100.0 * step,
                    "memory/host": 1.5,
                },
            )
        if step % 20 == 0:
            yield step, {"eval/score": 0.2 + gain * done, "eval/length": 20.0, "eval/kl": 2 * done}


def write_run(path, lines=None, *, finished=True, samples=True, lock=False, **options):
    """A run folder; with `lock` the writer still holds it, and is returned."""
    cfg = config(path, **options)
    folder = RunFolder(path)
    record = {"config": cfg, "earlier": [], "commit": "0" * 40, "started": "2026-01-01T00:00:00"}
    record["changed"] = {"objective.surrogate.high": [0.2, 0.28], "seed": [0, 3]}
    record["devices"] = {"kind": "cpu", "count": 1}
    (folder.path / "config.json").write_text(json.dumps(record))
    for step, numbers in online_lines(cfg["num_steps"]) if lines is None else lines:
        folder.log(step, numbers)
        if samples and step % 20 == 0 and "eval/score" in numbers:
            folder.sample(step, sampled(step))
    if finished:
        folder.write_result({"steps": cfg["num_steps"], "updates": 2 * cfg["num_steps"]})
    if lock:
        return folder
    folder.close()
    return path


def sampled(step):
    """Four held-out and eight training rows; the score falls as the number of the row rises."""
    for row in range(12):
        yield {
            **({"held_out": True} if row < 4 else {}),
            "prompt": PROMPTS[row % 2] if row < 4 else f"prompt {row}",
            "completion": f"<script>boom({row})</script> answer {row} of step {step}\n\x1b[2J",
            "exact": None if row == 7 else 10.0 - row - step / 100,
        }
