"""Held-out prompts answered beside a run that draws no answers of its own."""

import pytest
from toy import say, sft_config, share_of_low_bytes, write_policy

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import sft
from rlhf_jax.loops.answers import AnswersConfig, answer_from_folder
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")

ANSWERS = AnswersConfig(
    prompts=bind(say, train=2),
    rewards=(bind(share_of_low_bytes),),
    num_prompts=4,
    max_prompt_tokens=8,
    max_new_tokens=4,
)


@pytest.fixture(scope="module")
def finished(one_device, policy_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "answers"
    cfg = sft_config(out, model=str(policy_folder), answers=ANSWERS, num_steps=20)
    return cfg, sft.run(cfg)


def test_imitation_tells_what_its_answers_are_worth(finished):
    _, result = finished
    before, after = result["before"], result["after"]
    assert before["kl"] == pytest.approx(0, abs=1e-5)
    # two digits and an end are imitated: the answers end, and are unlikely from the start
    assert after["kl"] > 1
    assert after["length"] < before["length"] - 1
    assert after["truncated"] < before["truncated"] - 0.5
    assert before.keys() == after.keys() >= {"score", "length", "truncated", "distinct_2"}


def test_the_folder_answers_as_the_run_did(finished, policy_folder):
    cfg, result = finished
    numbers = answer_from_folder(ANSWERS, f"{cfg.out}/policy", cfg.model, like=cfg)
    assert numbers == pytest.approx(result["after"], rel=1e-4)
    start = answer_from_folder(ANSWERS, cfg.model, cfg.model, like=cfg)
    assert start == pytest.approx(result["before"], rel=1e-4, abs=1e-5)
    other = answer_from_folder(ANSWERS, cfg.model, cfg.model, like=replace(cfg, seed=1))
    assert other["ref_perplexity"] != start["ref_perplexity"]


def test_answers_of_a_model_of_another_shape(finished, policy_folder, tmp_path):
    deeper = write_policy(tmp_path / "deeper", num_layers=2)
    with pytest.raises(ConfigError, match="decoders of different shapes"):
        answer_from_folder(ANSWERS, str(policy_folder), str(deeper), like=finished[0])


def test_a_new_decoder_has_no_start_to_compare_with(tmp_path):
    with pytest.raises(ConfigError, match="name a model"):
        sft_config(tmp_path, answers=ANSWERS)


def test_prompts_that_are_too_long_for_the_model(finished, tmp_path):
    longer = replace(ANSWERS, max_new_tokens=30)
    with pytest.raises(ConfigError, match=r"max_new_tokens = 38 is above the model's 32"):
        sft.run(replace(finished[0], out=str(tmp_path), answers=longer))
