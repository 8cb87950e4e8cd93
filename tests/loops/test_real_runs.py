"""The experiments on real models and data, in tiny form: their own parts, small sizes."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from chat_tokenizer import chat_tokenizer
from safetensors.numpy import load_file
from tiny import random_params

from experiments import grpo_gsm8k, grpo_gsm8k_8b, sft_gsm8k, sft_gsm8k_8b, sql_grpo
from experiments import grpo_reasoning_gym as gym
from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, sft
from rlhf_jax.models.config import DecoderConfig
from rlhf_jax.models.convert import export_pretrained
from rlhf_jax.models.reward import RewardNotes, begin_reward_model, export_reward_model
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory):
    """A tiny random model with a chat template, over bytes."""
    tokenizer = chat_tokenizer()
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size,
        num_layers=1,
        d_model=32,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        d_ff=64,
        max_positions=512,
    )
    folder = tmp_path_factory.mktemp("chat") / "policy"
    export_pretrained(folder, config, random_params(Model(config), 0), tokenizer)
    return folder


def tiny(cfg, model, out, **changes):
    """An online config at 2 prompts, 2 samples of 4 tokens and 2 steps."""
    small = dict(num_samples=2, max_new_tokens=4, max_prompt_tokens=320)
    options = dict(num_steps=2, num_prompts=2, lora=replace(cfg.lora, rank=2))
    sampling = replace(cfg.sampling, **small)
    return replace(cfg, model=str(model), out=str(out), sampling=sampling, **options | changes)


def samples(out):
    return [json.loads(line) for line in Path(out, "samples.jsonl").read_text().splitlines()]


def test_sums_of_reasoning_gym(chat_folder, tmp_path):
    pytest.importorskip("reasoning_gym")
    few = gym.CONFIG.prompts.kw["of"].replace(train=8, held_out=4)
    prompts = gym.CONFIG.prompts.replace(of=few)
    cfg = tiny(gym.CONFIG, chat_folder, tmp_path / "run", prompts=prompts)
    result = online.run(cfg)
    assert result["before"]["kl"] == 0 and 0 <= result["after"]["score"] <= 1
    shown = samples(cfg.out)[0]
    assert shown["prompt"].startswith("<|start|>system\nAnswer with the number alone.<|end|>")
    assert shown["prompt"].endswith("=<|end|>\n<|start|>assistant\n")
    assert Path(cfg.out, "adapter", "adapter_config.json").exists()


SCRIPT = "CREATE TABLE town (id int, name text); INSERT INTO town VALUES (1, 'Ulm'), (2, 'Bonn');"


@pytest.fixture
def sql_config(chat_folder, tmp_path):
    (tmp_path / "towns.sqlite.sql").write_text(SCRIPT)
    rows = [f"towns,What is {i} more?,SELECT id + {i} FROM town" for i in range(6)]
    path = tmp_path / "q.csv"
    path.write_text("\n".join(["db_name,question,query", *rows]) + "\n")
    data = dict(path=str(path), folder=str(tmp_path), databases=("towns",), held_out=2)

    def on(bound):
        return bound.replace(of=bound.kw["of"].replace(**data))

    cfg, lora = sql_grpo.CONFIG, replace(sql_grpo.LORA, rank=2)
    execution = sql_grpo.EXECUTION.replace(folder=str(tmp_path))
    answers = replace(
        cfg.sft.answers,
        prompts=on(cfg.sft.answers.prompts),
        rewards=(execution,),
        num_prompts=2,
        max_prompt_tokens=320,
        max_new_tokens=4,
    )
    imitation = replace(
        cfg.sft,
        demonstrations=on(cfg.sft.demonstrations),
        held_out=on(cfg.sft.held_out),
        answers=answers,
        num_steps=2,
        batch_rows=2,
        optim=replace(cfg.sft.optim, learning_rate=1e-2),
        lora=lora,
    )
    (reward,) = cfg.grpo.rewards
    grpo = tiny(
        cfg.grpo,
        "",
        "",
        prompts=on(cfg.grpo.prompts),
        rewards=(reward.replace(folder=str(tmp_path)),),
        watch=(execution,),
    )
    model, out = str(chat_folder), str(tmp_path / "run")
    return replace(cfg, model=model, out=out, sft=imitation, grpo=grpo)


def test_sql_goes_on_from_the_adapter_of_its_first_stage(sql_config, capsys):
    cfg = sql_config
    told = sql_grpo.main(cfg)
    assert "held-out execution accuracy: start 0.0% -> sft" in capsys.readouterr().out
    record = json.loads(Path(cfg.out, "grpo", "config.json").read_text())
    assert record["config"]["lora"]["adapter"] == f"{cfg.out}/sft/adapter"
    grpo = json.loads(Path(cfg.out, "grpo", "result.json").read_text())
    assert grpo["before"]["kl"] == 0
    assert told["sft"] == grpo["before"]["watch/sql"]  # one policy, measured by either stage

    imitated, improved = (
        load_file(f"{cfg.out}/{stage}/adapter/adapter_model.safetensors")
        for stage in ("sft", "grpo")
    )
    steps = cfg.grpo.num_steps * cfg.grpo.optim.learning_rate
    for name, array in imitated.items():  # none began anew: B would be all but zero
        np.testing.assert_allclose(improved[name], array, atol=2 * steps)
        assert "lora_B" not in name or np.abs(array).max() > 10 * steps
    # the same command again runs nothing anew
    assert sql_grpo.main(cfg) == told
    assert capsys.readouterr().out.count("is finished") == 2


def test_stages_of_other_adapters_are_refused():
    with pytest.raises(ConfigError, match=r"grpo\.lora goes on from sft\.lora"):
        replace(sql_grpo.CONFIG, grpo=replace(sql_grpo.GRPO, lora=None))
    with pytest.raises(ConfigError, match="use --seed"):
        replace(sql_grpo.CONFIG, sft=replace(sql_grpo.SFT, seed=1))


@pytest.fixture
def gsm8k(tmp_path):
    """bound -> the same on six training problems and three test problems."""
    for name, base, count in (("train", 10, 6), ("test", 20, 3)):
        rows = [
            {"question": f"{base + i} and 1?", "answer": f"{base + i}+1\n#### {base + i + 1}"}
            for i in range(count)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines)

    def on(bound):
        of = bound.kw["of"]
        paths = {k: str(tmp_path / Path(v).name) for k, v in of.kw.items() if "path" in k}
        return bound.replace(
            of=of.replace(**paths, **({"held_out": 2} if of.kw.get("held_out") else {}))
        )

    return on


def test_grpo_on_gsm8k(chat_folder, gsm8k, tmp_path):
    pytest.importorskip("math_verify")
    pytest.importorskip("regex")
    base = grpo_gsm8k.CONFIG
    cfg = tiny(base, chat_folder, tmp_path / "run", prompts=gsm8k(base.prompts))
    result = online.run(cfg)
    assert {"score/maths", "score/matches", "kl"} <= result["after"].keys()
    shown = [row for row in samples(cfg.out) if row.get("held_out")]
    assert {"maths", "matches"} <= shown[0].keys()
    assert {row["prompt"].count(" and 1?<|end|>\n<|start|>assistant\n") for row in shown} == {1}
    assert all("user\n2" in row["prompt"] for row in shown)  # of the test file


@pytest.mark.parametrize(
    ("completion", "scores"),
    [
        ("6*7=<<6*7=42>>42\n#### 42", (1.0, 1.0)),
        ("It is 42\n#### 1,042\n", (0.0, 1.0)),
        ("The answer is 42.", (1.0, 0.0)),
        ("#### 42\nand so on", (1.0, 0.0)),
    ],
)
def test_what_gsm8k_rewards(completion, scores):
    pytest.importorskip("math_verify")
    pytest.importorskip("regex")
    row = {"answer": "6*7=<<6*7=42>>42\n#### 42"}
    found = [reward(["?"], [completion], [row])[0] for reward in grpo_gsm8k.CONFIG.rewards]
    assert tuple(found) == scores


def test_sft_on_gsm8k(chat_folder, gsm8k, tmp_path):
    pytest.importorskip("math_verify")
    pytest.importorskip("regex")
    base = sft_gsm8k.CONFIG
    answers = replace(
        base.answers,
        prompts=gsm8k(base.answers.prompts),
        num_prompts=2,
        max_prompt_tokens=320,
        max_new_tokens=4,
    )
    cfg = replace(
        base,
        model=str(chat_folder),
        out=str(tmp_path / "run"),
        demonstrations=gsm8k(base.demonstrations),
        held_out=gsm8k(base.held_out),
        answers=answers,
        num_steps=3,
        batch_rows=2,
        optim=replace(base.optim, learning_rate=1e-2, warmup_updates=0),
        lora=replace(base.lora, rank=2),
    )
    result = sft.run(cfg)
    assert result["after"]["loss"] < result["before"]["loss"]
    assert "score" in result["after"] and result["before"]["kl"] == pytest.approx(0, abs=1e-5)


def test_a_critic_is_checked_on_prompts_that_are_conversations(chat_folder, gsm8k, tmp_path):
    model, params = begin_reward_model(str(chat_folder), jax.random.key(0))
    folder, tokenizer = tmp_path / "reward", Tokenizer.from_folder(chat_folder)
    export_reward_model(folder, model.config, params, tokenizer, RewardNotes(max_tokens=400))
    prompts = gsm8k(grpo_gsm8k.CONFIG.prompts)
    options = dict(prompts=prompts, objective=ppo(), critic_from=str(folder))
    cfg = tiny(grpo_gsm8k.CONFIG, chat_folder, tmp_path / "run", **options)
    assert len(online.read_inputs(cfg).prompts) == 6


@pytest.mark.parametrize("module", [grpo_gsm8k_8b, sft_gsm8k_8b])
def test_settings_of_a_pod_divide(module):
    cfg = module.CONFIG
    shards = cfg.mesh.data * cfg.mesh.fsdp
    assert shards * cfg.mesh.tensor == 64
    if module is grpo_gsm8k_8b:
        assert cfg.num_prompts % shards == 0 and cfg.micro_rows % shards == 0
        assert cfg.prompts.kw["of"].kw["held_out"] == 0  # all test problems
    else:
        assert cfg.batch_rows % shards == 0 and cfg.answers.num_prompts % shards == 0
        assert cfg.held_out.kw["of"].kw["part"] == "all"
    assert cfg.lora is None
