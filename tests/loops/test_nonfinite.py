"""A step that is not finite is never applied; then the run stops, or skips it, as asked."""

import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toy import offline_config, online_config, share_of_low_bytes

from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.bind import bind
from rlhf_jax.loops import offline, online
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device")


def now_and_then_huge(prompts, completions, rows):
    """Prompt 2's scores are numbers whose sum float32 cannot hold."""
    scores = share_of_low_bytes(prompts, completions, rows)
    huge = np.linspace(2e38, 3e38, len(rows))
    return [
        float(h) if row["number"] == 2 else s for s, h, row in zip(scores, huge, rows, strict=True)
    ]


@pytest.fixture
def cfg(policy_folder, tmp_path):
    return online_config(
        policy_folder,
        tmp_path / "run",
        objective=dr_grpo(length=4),
        rewards=(bind(now_and_then_huge),),
        num_steps=6,
    )


def steps_of(cfg):
    lines = Path(cfg.out, "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "skipped" in line]


def rows_of_prompt_2(cfg, step):
    """Which rows of a step answer it (there is one draw a step)."""
    prompts = online.set_up(cfg).batches[step - 1]
    return [b for b in range(16) if prompts.rows[b // 4]["number"] == 2]


def test_it_stops_and_names_the_rows(cfg):
    with pytest.raises(FloatingPointError, match="the update was not applied") as error:
        online.run(cfg)
    told = re.search(r"step (\d+), update 0: .*not finite \(rows (\[.*\])\)", str(error.value))
    step, rows = int(told[1]), json.loads(told[2])
    assert rows == rows_of_prompt_2(cfg, step) != []
    assert [line["skipped"] for line in steps_of(cfg)] == [0] * (step - 1) + [1]
    # nothing was saved after it: the same command comes to the same step again
    saved = [int(path.name[-8:]) for path in Path(cfg.out, "checkpoints").iterdir()]
    assert max(saved) < step
    with pytest.raises(FloatingPointError, match=f"step {step}, "):
        online.run(cfg)


def test_it_can_go_on_without_the_step(cfg):
    with pytest.warns(UserWarning, match="not finite .*skipped") as warned:
        online.run(replace(cfg, on_nonfinite="skip"))
    steps = steps_of(cfg)
    bad = [line["step"] for line in steps if line["skipped"]]
    assert 0 < len(bad) < len(steps) == 6
    assert len([w for w in warned if "skipped" in str(w.message)]) == len(bad)
    assert bad == [step for step in range(1, 7) if rows_of_prompt_2(cfg, step)]
    # the steps around it learn: the skipped one has left nothing behind
    assert all(np.isfinite(line["grad_norm"]) for line in steps if not line["skipped"])
    weights = load_file(Path(cfg.out, "policy", "model.safetensors"))
    assert all(np.isfinite(x).all() for x in weights.values())


def test_a_step_alone_changes_nothing_when_skipped(cfg):
    skipping = replace(cfg, on_nonfinite="skip")
    first = next(step for step in range(1, 7) if rows_of_prompt_2(cfg, step))
    ends = []
    for steps in (first - 1, first):
        out = f"{cfg.out}{steps}"
        if steps == 0:
            ends.append(Path(cfg.model, "model.safetensors").read_bytes())
            continue
        with pytest.warns(UserWarning, match="skipped") if steps == first else nullcontext():
            online.run(replace(skipping, out=out, num_steps=steps))
        ends.append(Path(out, "policy", "model.safetensors").read_bytes())
    assert ends[0] == ends[1]


def test_broken_weights_stop_the_first_step(policy_folder, tmp_path):
    """A pretrained model with a number that is none."""
    folder = Path(shutil.copytree(policy_folder, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    cfg = online_config(folder, tmp_path / "run")
    with pytest.raises(FloatingPointError, match=r"step 1, update 0: .*rows \[0, 1, 2"):
        online.run(cfg)


def test_imitation_stops_likewise(tmp_path):
    cfg = offline_config(tmp_path, num_steps=2)
    cfg = replace(cfg, optim=replace(cfg.optim, learning_rate=1e38))
    with pytest.raises(FloatingPointError, match="step 2, update 0"):
        offline.run(cfg)
