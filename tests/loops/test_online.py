"""Whole online runs: the score rises, the folder is complete, every algorithm trains."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from toy import online_config, share_of_low_bytes, write_policy

from rlhf_jax.algorithms.cispo import cispo
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.dr_grpo import dr_grpo
from rlhf_jax.algorithms.gmpo import gmpo
from rlhf_jax.algorithms.grpo import grpo
from rlhf_jax.algorithms.gspo import gspo
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.algorithms.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from rlhf_jax.algorithms.rloo import rloo
from rlhf_jax.algorithms.sapo import sapo
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online
from rlhf_jax.models.convert import load_pretrained
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.report.resolved import resolved
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device")


def lines_of(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def series(folder, metric):
    return [line[metric] for line in lines_of(folder) if metric in line]


@pytest.fixture(scope="module")
def finished(one_device, policy_folder, tmp_path_factory):
    """A run of 24 steps: its config, its folder, what it returned."""
    out = tmp_path_factory.mktemp("runs") / "toy"
    cfg = online_config(policy_folder, out, num_steps=24)
    return cfg, out, online.run(cfg)


def test_the_score_rises(finished):
    _, out, result = finished
    score = series(out, "score")
    assert len(score) == 24
    assert np.mean(score[-4:]) > np.mean(score[:4]) + 0.2
    assert result["after"]["score"] > result["before"]["score"]
    # the policy moved away from the reference, which stood still
    assert result["before"]["kl"] == 0 and result["after"]["kl"] > 1


def test_the_folder_holds_everything(finished):
    cfg, out, result = finished
    config = json.loads((out / "config.json").read_text())
    assert config["config"] == json.loads(json.dumps(resolved(cfg)))
    assert config["versions"]["jax"] == jax.__version__
    assert config["commit"] is None or len(config["commit"].removesuffix("+dirty")) == 40

    lines = lines_of(out)
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, 25))
    for line in lines:
        assert None not in line.values(), f"not finite: {line}"
    # the trainer computes what the sampler drew from, on every update
    assert max(series(out, "sampler_gap")) <= 1e-5 and len(series(out, "sampler_gap_max")) == 24
    assert {"score", "kl_response", "length", "entropy", "grad_norm"} <= lines[1].keys()
    assert {"seconds", "seconds/draw", "memory/host"} <= lines[1].keys()
    assert [line["step"] for line in lines if "eval/score" in line] == [0, 24]

    samples = lines_of(out, "samples.jsonl")
    assert {s["step"] for s in samples} == set(range(25))
    held_out = [s for s in samples if s.get("held_out")]
    assert [s["prompt"] for s in held_out] == [f"say {i}:" for i in range(16, 22)] * 2
    for s in samples:
        judged = share_of_low_bytes([s["prompt"]], [s["completion"]], [{}])
        assert judged == pytest.approx([s["share_of_low_bytes"]])

    assert list((out / "tensorboard").rglob("events.out*"))
    assert "finished, 24 of 24 steps" in (out / "report.html").read_text()
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert result == json.loads((out / "result.json").read_text())
    assert result["steps"] == result["updates"] == 24 and result["seed"] == 0
    tokens = sum(round(16 * length) for length in series(out, "length"))
    assert result["tokens_drawn"] == result["tokens_trained"] == tokens
    assert result["tokens_per_second"] > 0


def test_the_exported_policy_is_the_trained_one(finished):
    cfg, out, result = finished
    assert sorted(path.name for path in (out / "checkpoints").iterdir())[-1] == "step_00000024"
    assert Tokenizer.from_folder(out / "policy").end_ids == (2,)
    # answering the held-out prompts anew gives the numbers of the run's end
    measured = online.measure_only(replace(cfg, model=str(out / "policy")))
    for name in ("score", "length", "truncated", "distinct_2"):
        assert measured[name] == result["after"][name]
    assert measured["kl"] == 0


def test_a_finished_run_is_not_run_again(finished, capsys):
    cfg, out, result = finished
    before = (out / "metrics.jsonl").read_text()
    assert online.run(cfg) == result
    assert "is finished" in capsys.readouterr().out
    assert (out / "metrics.jsonl").read_text() == before


ALGORITHMS = {
    "grpo": grpo(),
    "dr_grpo": dr_grpo(length=4),
    "rloo": rloo(),
    "reinforce_pp": reinforce_pp(),
    "reinforce_pp_baseline": reinforce_pp_baseline(),
    "dapo": dapo(max_length=4, cache=2),
    "gspo": gspo(),
    "cispo": cispo(),
    "sapo": sapo(),
    "gmpo": gmpo(),
    "ppo": ppo(),
}


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains(name, policy_folder, tmp_path):
    objective = ALGORITHMS[name]
    cfg = online_config(
        policy_folder, tmp_path, objective=objective, num_steps=1, num_epochs=2, max_resample=2
    )
    online.run(cfg)
    _, before = load_pretrained(policy_folder)
    _, after = load_pretrained(tmp_path / "policy")
    moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), before, after)
    assert min(jax.tree.leaves(moved)) > 0, moved
    step = next(line for line in lines_of(tmp_path) if "loss" in line)
    assert None not in step.values(), step
    assert step["updates"] == 2 and step["skipped"] == 0
    # the second update saw the policy that had sampled
    assert step["kl_old"] > 0 and step["ratio_max"] > 1
    assert ("value_loss" in step) == ("critic_grad_norm" in step) == objective.needs_critic


def mostly_equal(prompts, completions, rows):
    """Prompts with an odd number are right whatever is said: groups that teach nothing."""
    scores = share_of_low_bytes(prompts, completions, rows)
    return [1.0 if row["number"] % 2 else s for s, row in zip(scores, rows, strict=True)]


@pytest.mark.usefixtures("no_curves")
def test_dapo_draws_again_until_the_batch_is_full(policy_folder, tmp_path):
    cfg = online_config(
        policy_folder,
        tmp_path,
        objective=dapo(),
        rewards=(bind(mostly_equal),),
        num_steps=3,
        max_resample=3,
    )
    online.run(cfg)
    draws = [int(n) for n in series(tmp_path, "draws")]
    assert len(draws) == 3 and max(draws) > 1 and max(draws) <= 3
    for line in lines_of(tmp_path):
        if "draws" in line and line["draws"] < 3:
            assert line["groups_kept"] == 1
    # the step's samples are those that were kept, not those that were drawn first
    trained = [s for s in lines_of(tmp_path, "samples.jsonl") if not s.get("held_out")]
    assert len(trained) == 3 * 4
    full = {step for step, n in enumerate(draws, start=1) if n < 3}
    assert all(int(s["prompt"][4:-1]) % 2 == 0 for s in trained if s["step"] in full)
    # discarded draws were drawn too; rows that teach nothing are not trained on
    last = lines_of(tmp_path)[-2]
    per_draw = 16 * 4
    assert last["tokens_drawn"] <= per_draw * sum(draws)
    assert last["tokens_drawn"] > per_draw * 3 >= last["tokens_trained"] > 0
    # every draw moved on in the data
    host = tmp_path / "checkpoints" / "step_00000003" / "host.json"
    assert json.loads(host.read_text())["host"]["position"] == sum(draws)


def test_filters_shape_the_draws_and_greedy_evaluation_goes_without(policy_folder, tmp_path):
    cfg = online_config(policy_folder, tmp_path / "run", num_steps=1)
    result = online.run(replace(cfg, sampling=replace(cfg.sampling, top_p=0.9, top_k=20)))
    assert result["steps"] == 1


def test_a_run_goes_on_with_other_micro_batches_but_not_with_fewer_steps(policy_folder, tmp_path):
    cfg = online_config(policy_folder, tmp_path / "run", num_steps=2)
    online.run(cfg)
    result = online.run(replace(cfg, num_steps=4, micro_rows=8))
    assert result["steps"] == 4
    assert online.run(replace(cfg, num_steps=3))["steps"] == 4  # finished, and says so
    Path(cfg.out, "result.json").unlink()
    with pytest.raises(ConfigError, match="has made 4 steps already, more than num_steps=3"):
        online.run(replace(cfg, num_steps=3))


def test_a_decaying_rate_does_not_change_its_end_under_way(policy_folder, tmp_path):
    optim = OptimConfig(learning_rate=1e-2, schedule="linear")
    cfg = online_config(policy_folder, tmp_path / "run", num_steps=2, optim=optim)
    online.run(cfg)
    with pytest.raises(ConfigError, match="another num_steps"):
        online.run(replace(cfg, num_steps=4))


def test_another_model_in_the_same_folder_is_noticed(policy_folder, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(policy_folder, model)
    cfg = online_config(model, tmp_path / "run", num_steps=1)
    online.run(cfg)
    shutil.rmtree(model)
    write_policy(model, seed=1)
    with pytest.raises(ConfigError, match=r"the model or the data of .* has changed"):
        online.run(cfg)
