"""Prompts shared in scoring and update: the run that every response with its own prompt gives."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy import online_config

from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.bind import bind
from rlhf_jax.loops import functions, online
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


def seldom(prompts, completions, rows):
    """1 or 0; prompts of even number never get anything, so their advantages are all 0."""
    return [
        float(row["number"] % 2 and text < "\x80")
        for text, row in zip(completions, rows, strict=True)
    ]


def numbers_of(cfg):
    online.run(cfg)
    lines = Path(cfg.out, "metrics.jsonl").read_text().splitlines()
    return [x for line in lines if "grad_norm" in (x := json.loads(line))]


def test_a_run_with_shared_prompts_is_the_run_without(policy_folder, tmp_path, monkeypatch):
    left_out = []
    plain = functions.lay_out

    def watched(mask_BT, *args, **kw):
        left_out.append(int((~np.asarray(mask_BT).any(axis=1)).sum()))
        return plain(mask_BT, *args, **kw)

    monkeypatch.setattr(functions, "lay_out", watched)
    cfg = online_config(
        policy_folder, tmp_path / "shared", objective=grpo(beta=None), rewards=(bind(seldom),)
    )
    shared = numbers_of(cfg)
    calls = len(left_out)
    apart = numbers_of(replace(cfg, out=str(tmp_path / "apart"), share_prompts=False))
    assert len(left_out) == calls > 0 and max(left_out) >= 4, "groups without advantage are run"
    assert len(shared) == len(apart) == 2
    for one, other in zip(shared, apart, strict=True):
        assert one["tokens_trained"] == other["tokens_trained"]
        for name in ("score", "length", "grad_norm"):
            assert one[name] == pytest.approx(other[name], rel=1e-4), name
    assert shared[0]["grad_norm"] > 0
