"""Online preference learning: which rows make a pair, what a run reaches, how it goes on."""

import json
from pathlib import Path

import numpy as np
import pytest
from toy import online_preference_config, saved

from rlhf_jax.algorithms.aot import aot
from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import online_preference
from rlhf_jax.loops.collect import Judged
from rlhf_jax.loops.online_preference import best_and_worst
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")
CLOCKS = {"time", "memory", "seconds", "reward_seconds"}


def lines_of(out):
    lines = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k.split("/")[0] not in CLOCKS} for line in lines]


def judged(scores, valid=None):
    score_BC = np.float32(scores).reshape(-1, 1)
    valid_BC = np.ones_like(score_BC, bool) if valid is None else np.reshape(valid, (-1, 1))
    texts = [""] * len(score_BC)
    return Judged(texts, texts, score_BC, np.asarray(valid_BC, bool))


def test_best_and_worst_of_each_prompt():
    index_PS, weight_P = best_and_worst(judged([0.2, 0.9, -0.5, 3, 3, 2]), 3)
    assert index_PS.tolist() == [[1, 2], [3, 5]]
    assert weight_P.tolist() == [1, 1]


def test_a_tie_prefers_nothing():
    _, weight_P = best_and_worst(judged([1, 1, 0, 1]), 2)
    assert weight_P.tolist() == [0, 1]


def test_an_answer_that_no_function_scores_is_in_no_pair():
    # its score of 0 means nothing, though it would be the worst, or the best
    index_PS, weight_P = best_and_worst(
        judged([2, 0, 1, -1, 0, -2, 0, 5, 0], [1, 0, 1, 1, 0, 1, 0, 1, 0]), 3
    )
    assert index_PS[:2].tolist() == [[0, 2], [3, 5]]
    assert weight_P.tolist() == [1, 1, 0]


@pytest.fixture(scope="module")
def finished(one_device, policy_folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "online"
    cfg = online_preference_config(policy_folder, out, num_steps=15)
    return cfg, online_preference.run(cfg)


def test_the_score_rises(finished):
    cfg, result = finished
    lines = [line for line in lines_of(cfg.out) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, 16))
    assert lines[0]["loss"] == pytest.approx(np.log(2), abs=1e-6)
    score = [line["score"] for line in lines]
    assert np.mean(score[-4:]) > np.mean(score[:4]) + 0.1
    assert result["after"]["kl"] > 0 == result["before"]["kl"]
    assert result["tokens_drawn"] >= result["tokens_trained"] > 0
    assert 0 <= lines[0]["ties"] < 1


def always(prompts, completions, rows):
    return [1.0] * len(completions)


def test_a_step_of_ties_is_no_update(finished, policy_folder, tmp_path):
    cfg = online_preference_config(policy_folder, tmp_path, rewards=(bind(always),))
    result = online_preference.run(cfg)
    assert result["updates"] == 0 and result["tokens_trained"] == 0
    assert [line["ties"] for line in lines_of(tmp_path) if "ties" in line] == [1, 1]


def test_a_run_that_went_on_ends_as_one_that_never_stopped(finished, policy_folder, tmp_path):
    straight = online_preference_config(policy_folder, tmp_path / "straight", num_steps=4)
    online_preference.run(straight)
    cfg = replace(straight, out=str(tmp_path / "stopped"), num_steps=2)
    online_preference.run(cfg)
    online_preference.run(replace(cfg, num_steps=4))
    arrays = [saved(c.out, 4)[0] for c in (straight, cfg)]
    assert any(name.startswith("reference") for name in arrays[0])
    for name, x in arrays[0].items():
        np.testing.assert_array_equal(x, arrays[1][name], err_msg=name)


def test_what_cannot_make_pairs_is_refused(policy_folder, tmp_path):
    cfg = online_preference_config(policy_folder, tmp_path)
    for changes in ({"num_samples": 1}, {"temperature": 0.0}):
        with pytest.raises(ConfigError, match="a pair needs 2 answers or more"):
            replace(cfg, sampling=replace(cfg.sampling, **changes))
    with pytest.raises(ConfigError, match="num_prompts=4 does not divide by micro_rows=3"):
        replace(cfg, micro_rows=3)
    with pytest.raises(ConfigError, match="compares ranks over the batch"):
        online_preference.run(replace(cfg, objective=aot()))
    assert not any(tmp_path.iterdir())
