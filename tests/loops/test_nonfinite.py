"""A step that is not finite is never applied; then the run stops, or skips it, as asked."""

import json
import re
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from toy import online_config, saved, share_of_low_bytes

from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.bind import bind
from rlhf_jax.loops import online
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


def now_and_then_large(prompts, completions, rows):
    """Prompt 2's scores are far above 1."""
    scores = share_of_low_bytes(prompts, completions, rows)
    large = np.linspace(20, 30, len(rows))
    return [
        float(x) if row["number"] == 2 else s for s, x, row in zip(scores, large, rows, strict=True)
    ]


def blow_up(scored, score_B):
    """A shaping gone wrong: what is far above 1 becomes numbers whose sum float32 cannot hold."""
    return jnp.where(score_B > 10, score_B * 1e37, score_B)


@pytest.fixture
def cfg(policy_folder, tmp_path):
    return online_config(
        policy_folder,
        tmp_path / "run",
        objective=replace(dr_grpo(length=4), shape_score=(bind(blow_up),)),
        rewards=(bind(now_and_then_large),),
        num_steps=6,
    )


def steps_of(cfg):
    lines = Path(cfg.out, "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "skipped" in line]


def rows_of_prompt_2(cfg, step):
    """Which rows of a step answer it (there is one draw a step)."""
    prompts = online.read_inputs(cfg).batches[step - 1]
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
    each = CheckpointConfig(every=1, keep=10)
    with pytest.warns(UserWarning, match="not finite .*skipped") as warned:
        online.run(replace(cfg, on_nonfinite="skip", checkpoint=each))
    steps = steps_of(cfg)
    bad = [line["step"] for line in steps if line["skipped"]]
    assert 0 < len(bad) < len(steps) == 6
    assert len([w for w in warned if "skipped" in str(w.message)]) == len(bad)
    assert bad == [step for step in range(1, 7) if rows_of_prompt_2(cfg, step)]
    assert all(np.isfinite(line["grad_norm"]) for line in steps if not line["skipped"])
    # a skipped step leaves parameters and optimizer as they were, the others do not
    for step in range(2, 7):
        before, after = (saved(cfg.out, s)[0] for s in (step - 1, step))
        del before["step"], after["step"]
        same = all((x == after[name]).all() for name, x in before.items())
        assert same == (step in bad)


def test_broken_weights_stop_the_first_step(cfg, policy_folder, tmp_path):
    """A pretrained model with a number that is none."""
    folder = Path(shutil.copytree(policy_folder, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = np.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    cfg = replace(cfg, model=str(folder))
    with pytest.raises(FloatingPointError, match=r"step 1, update 0: .*rows \[0, 1, 2"):
        online.run(cfg)
