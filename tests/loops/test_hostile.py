"""What a careless or hostile user does to a run: folders, rows and rewards that are none."""

import logging
import os
import sys
from pathlib import Path

import pytest
from chat_tokenizer import chat_tokenizer
from tiny import random_params
from toy import online_config, say, share_of_low_bytes, write_policy

from rlhf_jax.algorithms.ppo import ppo
from rlhf_jax.bind import bind
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online, sampling, setup
from rlhf_jax.loops.run import begin_anew, open_path
from rlhf_jax.models.convert import export_pretrained, read_config
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.report.run_folder import RunFolder
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.types import replace

# --- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [".", "round_0/samples"])
def test_what_another_process_writes_is_not_moved_aside(tmp_path, part):
    """It would go on by the names of its files: in the folder of the new run."""
    out = tmp_path / "out"
    with RunFolder(out / part), pytest.raises(ConfigError, match="another process is writing"):
        begin_anew(out)
    assert out.exists()
    begin_anew(out)
    assert (tmp_path / "out.1" / part / ".lock").exists() and not out.exists()


def test_where_one_is_is_not_moved_aside(tmp_path, monkeypatch, policy_folder):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for out in (".", "..", str(tmp_path)):
        cfg = online_config(policy_folder, out, restart=True)
        with pytest.raises(ConfigError, match=r"--restart would move .*, where you are"):
            online.run(cfg)
    with pytest.raises(ConfigError, match="out is empty"):
        online.run(online_config(policy_folder, ""))
    assert list(tmp_path.iterdir()) == [tmp_path / "work"]


def test_runs_samples_and_chains_of_runs_do_not_overwrite_each_other(policy_folder, tmp_path):
    drawn, trained = tmp_path / "drawn", tmp_path / "trained"
    cfg = online_config(policy_folder, trained)
    with RunFolder(trained) as folder:
        folder.write_config(cfg)
        folder.write_result({"steps": 2})
    with RunFolder(drawn) as folder:
        (drawn / "rows.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="drawn holds samples, and no run"):
        online.run(replace(cfg, out=str(drawn)))
    sample = sampling.SampleConfig(
        out=str(trained),
        model=str(policy_folder),
        prompts=bind(say),
        rewards=(bind(share_of_low_bytes),),
        sampling=cfg.sampling,
        num_prompts=2,
    )
    with pytest.raises(ConfigError, match="trained holds a run, and no samples"):
        sampling.run(sample)
    with pytest.raises(ConfigError, match="trained is the folder of one run"):
        open_path(cfg, for_several=True)
    assert open_path(replace(cfg, out=str(tmp_path)), for_several=True) == tmp_path


def test_what_a_killed_export_has_left_is_cleared(policy_folder, tmp_path):
    """In containers every process has the same number, and so the same names."""
    for kind in ("new", "old"):
        for number in (os.getpid(), 1):
            folder = tmp_path / f".policy.{kind}-{number}"
            folder.mkdir()
            (folder / "config.json").write_text("{}")
    config = read_config(policy_folder)
    for seed in (0, 1):
        params = random_params(Model(config), seed)
        export_pretrained(tmp_path / "policy", config, params, byte_tokenizer())
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]


def test_a_critic_that_is_no_reward_model_is_refused_before_the_run(policy_folder, tmp_path):
    cfg = online_config(policy_folder, tmp_path / "run", objective=ppo())
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    folders = {
        policy_folder: "is not a reward model",
        tmp_path / "empty": "config.json is missing",
        tmp_path / "file": "is not a folder",
        tmp_path / "none": "is not a folder",
    }
    for folder, message in folders.items():
        with pytest.raises(ConfigError, match=message):
            online.run(replace(cfg, critic_from=str(folder)))
    assert not Path(cfg.out).exists()


def test_a_critic_is_compared_on_the_text_of_a_conversation(monkeypatch, tmp_path):
    tokenizer = chat_tokenizer()
    tokenizer.save(tmp_path)
    rows = [{"prompt": [{"role": "user", "content": "hi"}]}]
    prompts = PromptSet.from_rows(rows, tokenizer, max_prompt_tokens=99)
    write_policy(tmp_path / "policy")
    config = read_config(tmp_path / "policy")
    monkeypatch.setattr(setup, "check_reward_model", lambda folder: None)
    monkeypatch.setattr(setup, "read_trunk_config", lambda folder: config)
    setup.check_critic(str(tmp_path), tokenizer, prompts, 8)


# --- rows ----------------------------------------------------------------------------------------


def one_list():
    return say()[0]


def two_rows():
    return say()[0][:2]


def texts():
    return ["a", "b"], ["c"]


def no_rows():
    return [], [{"prompt": "a"}]


def one_at_a_time():
    return iter(say()[0]), say()[1]


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (one_list, r"must return two lists, .*; it returned \[\{'prompt'"),
        (two_rows, "must return two lists"),
        (texts, "training prompts: row 0 is 'a', not a dict"),
        (no_rows, "training prompts: there are no rows"),
        (one_at_a_time, "training prompts: list_iterator is no list of rows"),
    ],
)
def test_prompts_that_are_none(policy_folder, tmp_path, prompts, message):
    with pytest.raises(ConfigError, match=message):
        online.run(online_config(policy_folder, tmp_path / "run", prompts=bind(prompts)))
    assert not (tmp_path / "run").exists()


def the_same_twice():
    return say()[0], say()[0][:3]


def test_held_out_prompts_that_are_trained_on_are_told(policy_folder, caplog):
    with caplog.at_level(logging.WARNING):
        setup.read_inputs(online_config(policy_folder, "o", prompts=bind(the_same_twice)))
        assert "3 held-out prompts are training prompts too" in caplog.text
        caplog.clear()
        setup.read_inputs(online_config(policy_folder, "o"))
        assert not caplog.text


# --- rewards -------------------------------------------------------------------------------------


def leaves(prompts, completions, rows):
    sys.exit()


def test_a_reward_that_leaves_does_not_end_the_run_as_a_success():
    asked = (["a"], ["b"], [{}])
    with pytest.raises(RuntimeError, match=r"SystemExit\(None\)") as error:
        score_completions([leaves], None, *asked)
    assert any("reward leaves" in note for note in error.value.__notes__)
    rewards = [leaves, share_of_low_bytes]
    assert score_completions(rewards, None, *asked, errors="skip").valid_BC.tolist() == [
        [False, True]
    ]
