"""What a user can get wrong: each has a message that names it, and exit code 2."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toy import online_config, sft_config, share_of_low_bytes

from experiments.launch import launch
from rlhf_jax.algorithms.dapo import dapo
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.data.prompts import jsonl_prompts
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import offline, online, setup, sft
from rlhf_jax.parallel.mesh import make_mesh
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


@pytest.fixture
def refused(capsys):
    """Launch, expect exit code 2, and return the message on one line."""

    def run(cfg, *argv, loop=online):
        with pytest.raises(SystemExit) as stop:
            launch(cfg, loop.run, [str(option) for option in argv])
        err = " ".join(capsys.readouterr().err.replace("│", " ").split())
        assert stop.value.code == 2, err
        assert "Traceback" not in err
        return err

    return run


@pytest.fixture
def cfg(policy_folder, tmp_path):
    return online_config(policy_folder, tmp_path / "run")


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "messages"),
    [
        (["--num-step", 3], ["--num-step", "--num-steps INT"]),
        (["--objective.surogate.low", 3], ["--objective.surrogate.low FLOAT"]),
        (["--num-steps", "three"], ["--num-steps", "'three'"]),
        (["--num-steps", 0], ["num_steps=0 is outside [1"]),
        (["--seed", -1], ["seed=-1 is outside [0"]),
        (["--objective.surrogate.low", -0.1], ["surrogate.low=-0.1 is outside [0"]),
        (["--objective.surrogate.high", "nan"], ["surrogate.high=nan is not a finite number"]),
        (["--objective.surrogate.high", "inf"], ["surrogate.high=inf is not a finite number"]),
        (["--objective.loss-kl.coef", -1], ["coef=-1.0 is outside [0"]),
        (["--optim.learning-rate", "inf"], ["optim.learning_rate=inf is not a finite number"]),
        (["--optim.schedule", "cosin"], ["optim.schedule='cosin'", "did you mean cosine?"]),
        (["--remat", "al"], ["remat='al'", "choose from dots, full, none"]),
        (["--compute-dtype", "float16"], ["compute_dtype='float16'", "did you mean", "bfloat16"]),
        (["--on-nonfinite", "stopp"], ["on_nonfinite='stopp'", "did you mean stop?"]),
        (["--over-long", "dropp"], ["over_long='dropp'", "did you mean drop?"]),
        (["--sampling.temperature", -1], ["temperature=-1"]),
        (["--sampling.num-samples", 1], ["group_norm", "num_samples=1 must be at least 2"]),
        (["--sampling.num-samples", 0], ["num_samples=0"]),
        (["--reward-weights", 1, 2], ["reward_weights has 2 numbers for 1 rewards"]),
        (["--reward-weights", "nan"], ["reward_weights", "nan"]),
        # 16 rows a rollout
        (["--minibatch-rows", 6], ["minibatch_rows=6; nearest: [2, 4, 8], or", "=12 or 18"]),
        (["--micro-rows", 5], ["16 does not divide by micro_rows=5; nearest: [2, 4, 8]"]),
        (
            ["--minibatch-rows", 8, "--micro-rows", 16],
            ["minibatch_rows=8 does not divide by micro_rows=16; nearest: [2, 4, 8]"],
        ),
        (["--mesh.data", 3], ["mesh data=3", "1 devices", "(1, 1, 1)"]),
        (["--mesh.data", 0], ["mesh.data=0"]),
        (["--mesh.data", -1, "--mesh.fsdp", -1], ["only one axis may be -1"]),
        (["--model", "no/such/model"], ["no/such/model is not a folder"]),
        (["--model", "Qwen/Qwen3-0.6B"], ["hf download Qwen/Qwen3-0.6B --local-dir FOLDER"]),
        (["--sampling.max-new-tokens", 30], ["= 38", "at most 32 positions"]),
        (["--num-prompts", 17], ["a batch of 17 rows", "choose 1 to 16"]),
        (["--checkpoint.every", 0], ["checkpoint.every=0"]),
        (["--evaluation.every", 0], ["evaluation.every=0"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if value and str(value[0])[:2] == "--" else "",
)
def test_options(refused, cfg, argv, messages, monkeypatch):
    monkeypatch.setattr(online, "train", never)
    message = refused(cfg, *argv)
    for text in messages:
        assert text in message


def never(*args, **kw):
    raise AssertionError("the run was started")


@pytest.mark.parametrize(
    ("argv", "messages"),
    [
        (
            ["--batch-rows", 6, "--micro-rows", 4],
            ["batch_rows=6", "micro_rows=4; nearest: [2, 3"],
        ),
        (["--batch-rows", 17], ["a batch of 17 rows", "choose 1 to 16"]),
        (["--max-tokens", 3], ["row 0 has", "more than max_tokens=3", "over_long"]),
        (["--max-tokens", 17], ["max_tokens=17 is above the model's 16"]),
        (
            ["--decoder.num-kv-heads", 3],
            ["num_kv_heads=3 does not divide num_heads=4", "[1, 2, 4]"],
        ),
        (["--decoder.d-model", 12], ["head_dim=3 must be even"]),
        (["--model", "no/such/model"], ["no/such/model is not a folder"]),
        (["--model", "Qwen/Qwen3-0.6B"], ["hf download Qwen/Qwen3-0.6B --local-dir FOLDER"]),
    ],
    ids=str,
)
def test_options_of_imitation(refused, tmp_path, argv, messages, monkeypatch):
    monkeypatch.setattr(offline, "train", never)
    message = refused(sft_config(tmp_path), *argv, loop=sft)
    for text in messages:
        assert text in message


def test_rows_must_divide_by_the_row_shards(policy_folder, tmp_path, refused, monkeypatch):
    monkeypatch.setattr(setup, "make_mesh", make_mesh)  # all eight devices
    monkeypatch.setattr(offline, "make_mesh", make_mesh)
    cfg = online_config(policy_folder, tmp_path)
    message = refused(cfg)
    assert "num_prompts=4 does not divide by mesh data*fsdp=8" in message
    message = refused(cfg, "--num-prompts", 8, "--micro-rows", 4)
    assert "micro_rows=4 does not divide by mesh data*fsdp=8" in message
    cfg = sft_config(tmp_path)
    message = refused(cfg, "--batch-rows", 4, loop=sft)
    assert "batch_rows=4 does not divide by mesh data*fsdp=8" in message
    message = refused(cfg, "--batch-rows", 8, "--micro-rows", 4, loop=sft)
    assert "micro_rows=4 does not divide by mesh data*fsdp=8" in message


def test_a_group_filter_needs_groups(policy_folder, tmp_path):
    with pytest.raises(ConfigError, match="num_samples=1 must be at least 2"):
        online_config(policy_folder, tmp_path, objective=dapo(), num_samples=1)
    # PPO compares nothing within a prompt
    online_config(policy_folder, tmp_path, objective=ppo(), num_samples=1)


def test_one_real_process(policy_folder, tmp_path):
    """What the shell sees: a line on stderr, nothing written, code 2."""
    script = tmp_path / "wrong.py"
    script.write_text(
        "from experiments.launch import launch\n"
        "from toy import online_config\n"
        "from rlhf_jax.loops.online import run\n"
        f"launch(online_config({str(policy_folder)!r}, {str(tmp_path / 'run')!r}), run)\n"
    )
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script), "--minibatch-rows", "5"],
        env={"PYTHONPATH": f"{tests}:{tests.parent}", "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    told = " ".join(done.stderr.replace("│", " ").split())
    assert "rows of a rollout=16 does not divide by minibatch_rows=5; nearest: [2, 4, 8]" in told
    assert "Traceback" not in told and "Warning" not in told
    assert not (tmp_path / "run").exists()


# --- model folders -------------------------------------------------------------------------------


@pytest.fixture
def model_copy(policy_folder, tmp_path):
    return Path(shutil.copytree(policy_folder, tmp_path / "model"))


def edit(file, **changes):
    content = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def test_truncated_weights(refused, cfg, model_copy):
    file = model_copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert str(file) in refused(cfg, "--model", model_copy)


def test_missing_weights(refused, cfg, model_copy):
    (model_copy / "model.safetensors").unlink()
    assert str(model_copy) in refused(cfg, "--model", model_copy)


def test_unsupported_architecture(refused, cfg, model_copy):
    edit(model_copy / "config.json", architectures=["MambaForCausalLM"], model_type="mamba")
    message = refused(cfg, "--model", model_copy)
    assert "Mamba" in message or "mamba" in message
    assert "LlamaForCausalLM" in message or "llama" in message


def test_a_tokenizer_without_an_end(refused, cfg, model_copy):
    edit(model_copy / "tokenizer_config.json", eos_token=None)
    for name in ("generation_config.json", "config.json"):
        edit(model_copy / name, eos_token_id=None)
    special = model_copy / "special_tokens_map.json"
    if special.exists():
        edit(special, eos_token=None)
    message = refused(cfg, "--model", model_copy)
    assert "has no end" in message and "eos_token" in message


def test_a_tokenizer_without_a_pad_pads_with_its_end(cfg, model_copy):
    edit(model_copy / "tokenizer_config.json", pad_token=None)
    edit(model_copy / "generation_config.json", pad_token_id=None)
    inputs = online.read_inputs(replace(cfg, model=str(model_copy)))
    assert inputs.tokenizer.pad_id == inputs.tokenizer.eos_id == inputs.prompts.pad_id


# --- prompts -------------------------------------------------------------------------------------


def test_prompt_files(refused, cfg, tmp_path):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    train.write_text("")
    held_out.write_text('{"prompt": "b"}\n')
    cfg = replace(cfg, prompts=bind(jsonl_prompts, train=str(train), held_out=str(held_out)))
    assert f"{train} holds no rows" in refused(cfg)
    assert "missing.jsonl is not a file" in refused(cfg, "--prompts.train", "missing.jsonl")
    train.write_text('{"prompt": "a"}\n{"text": "c"}\n')
    assert f"{train}:2 has no 'prompt'" in refused(cfg)
    train.write_text('{"prompt": "a"}\n{"prompt": ""}\n')
    assert f"{train}:2: 'prompt' is '', not a non-empty string" in refused(cfg)
    train.write_text('{"prompt": "b"}\n')
    assert "row 0 is a prompt of" in refused(cfg)


def test_a_prompt_longer_than_the_limit(refused, cfg):
    message = refused(cfg, "--sampling.max-prompt-tokens", 7)
    # "say 10:" and its begin token are the first to be too long
    assert "training prompts: row 10 has 8 tokens, more than max_prompt_tokens=7" in message
    assert 'over_long="drop", "left" or "right"' in message
    sampling = replace(cfg.sampling, max_prompt_tokens=7)
    cut = online.read_inputs(replace(cfg, sampling=sampling, over_long="left")).prompts
    assert (len(cut), cut.num_cut, cut.num_dropped) == (16, 6, 0)


# --- rewards -------------------------------------------------------------------------------------


def too_few(prompts, completions, rows):
    return [0.0] * (len(rows) - 1)


def a_nan(prompts, completions, rows):
    return [0.0, float("nan")] + [0.0] * (len(rows) - 2)


def a_text(prompts, completions, rows):
    return ["good"] * len(rows)


def not_for_any(prompts, completions, rows):
    return [None] * len(rows)


def raises(prompts, completions, rows):
    return [row["no such field"] for row in rows]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (too_few, "reward too_few returned 3 scores for 4 completions"),
        (a_nan, "reward a_nan, row 1: the score is nan"),
        (a_text, "reward a_text, row 0: 'good' is not a number"),
    ],
)
def test_rewards_that_break_their_contract(refused, cfg, reward, message):
    assert message in refused(replace(cfg, rewards=(bind(reward),)))


def test_a_reward_that_raises_is_named_beside_its_traceback(cfg):
    rewards = (bind(share_of_low_bytes), bind(raises))
    with pytest.raises(KeyError, match="no such field") as error:
        launch(replace(cfg, rewards=rewards), online.run, [])
    assert any("reward raises" in note for note in error.value.__notes__)


def test_a_reward_that_never_applies_leaves_the_policy_alone(cfg):
    online.run(replace(cfg, rewards=(bind(not_for_any),)))
    lines = [json.loads(x) for x in Path(cfg.out, "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "unscored" in line]
    assert [line["unscored"] for line in steps] == [1, 1]
    assert all(line["loss"] == line["grad_norm"] == 0 for line in steps)
    assert "eval/score" not in lines[0]
    weights = [Path(f, "model.safetensors").read_bytes() for f in (cfg.model, f"{cfg.out}/policy")]
    assert weights[0] == weights[1]


# --- run folders ---------------------------------------------------------------------------------


def test_a_folder_that_holds_another_run(refused, cfg):
    cfg = replace(cfg, prompts=bind(jsonl_prompts, train=f"{cfg.out}.t", held_out=f"{cfg.out}.h"))
    prompts = [f'{{"prompt": "{i}"}}\n' for i in range(9)]
    Path(f"{cfg.out}.t").write_text("".join(prompts[:6]))
    Path(f"{cfg.out}.h").write_text("".join(prompts[6:]))
    online.run(cfg)

    message = refused(cfg, "--seed", 1, "--optim.learning-rate", 0.5)
    assert f"{cfg.out} holds a run with another optim, seed" in message
    assert "name a new --out, or pass --restart" in message

    Path(f"{cfg.out}.t").write_text("".join(reversed(prompts[:6])))
    message = refused(cfg, "--num-steps", 4)
    assert f"the model or the data of {cfg.out} has changed" in message

    # as told: moved aside, nothing lost
    launch(cfg, online.run, ["--seed", "1", "--restart", "--num-steps", "1"])
    moved = json.loads(Path(f"{cfg.out}.1", "result.json").read_text())
    assert (moved["seed"], moved["steps"]) == (0, 2)
    assert json.loads(Path(cfg.out, "result.json").read_text())["seed"] == 1


def test_an_option_mended_before_the_first_checkpoint(refused, cfg):
    broken = replace(cfg, rewards=(bind(too_few),), num_steps=1)
    refused(broken)
    assert Path(cfg.out, "config.json").exists()
    launch(replace(broken, rewards=(bind(share_of_low_bytes),)), online.run, ["--seed", "3"])
    config = json.loads(Path(cfg.out, "config.json").read_text())["config"]
    assert config["seed"] == 3 and np.isfinite(config["optim"]["learning_rate"])


def test_a_run_folder_that_is_a_file(refused, cfg, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file cannot be made" in refused(cfg, "--out", tmp_path / "file")
