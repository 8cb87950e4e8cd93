"""Offline preference runs: what they reach, what they hold, how they go on, what they refuse."""

import json
from pathlib import Path

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer
from toy import higher, labelled, preference_config, saved, say, share_of_low_bytes

from experiments.launch import launch
from rlhf_jax.algorithms.aot import aot
from rlhf_jax.algorithms.dpo import dpo
from rlhf_jax.algorithms.kto import kto
from rlhf_jax.algorithms.simpo import simpo
from rlhf_jax.bind import bind
from rlhf_jax.data.preferences import PreferenceSet
from rlhf_jax.data.unpaired import UnpairedSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import offline, preference
from rlhf_jax.loops.answers import AnswersConfig
from rlhf_jax.loops.held_out_preferences import pair_numbers, unpaired_numbers
from rlhf_jax.loops.run import Run
from rlhf_jax.parallel.mesh import MeshConfig, make_mesh
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device", "no_curves")
CLOCKS = {"time", "memory", "seconds"}
ANSWERS = AnswersConfig(
    prompts=bind(say),
    rewards=(bind(share_of_low_bytes),),
    max_prompt_tokens=8,
    max_new_tokens=4,
    num_prompts=3,
)


def lines_of(out):
    lines = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k.split("/")[0] not in CLOCKS} for line in lines]


@pytest.fixture(scope="module")
def finished(one_device, policy_folder, tmp_path_factory):
    """A longer DPO run with a precomputed reference, whose answers are measured too."""
    out = tmp_path_factory.mktemp("runs") / "dpo"
    cfg = preference_config(policy_folder, out, num_steps=30, answers=ANSWERS)
    return cfg, preference.run(cfg)


def test_dpo_prefers_what_it_was_taught_to(finished):
    cfg, result = finished
    before, after = result["before"], result["after"]
    assert before["loss"] == pytest.approx(np.log(2), abs=1e-6)
    assert before["accuracy"] == before["drift_chosen"] == before["drift_rejected"] == 0
    assert after["loss"] < 0.45 and after["accuracy"] == 1
    assert after["margin"] == pytest.approx(
        0.1 * (after["drift_chosen"] - after["drift_rejected"]), rel=1e-4
    )
    first = lines_of(cfg.out)[1]
    assert first["step"] == 1 and first["loss"] == pytest.approx(np.log(2), abs=1e-6)
    # 8 pairs a step, both sides with their ends
    assert result["tokens"] == sum(
        preference.read_inputs(cfg).rows.batches(8, 0)[step].mask_BST.sum() for step in range(30)
    )


def test_the_answers_are_measured_from_the_start(finished):
    _, result = finished
    before, after = result["before"], result["after"]
    assert before["kl"] == pytest.approx(0, abs=1e-5) and after["kl"] > 0.1
    assert 0 <= before["score"] <= 1 and 0 <= after["score"] <= 1
    assert after["length"] < before["length"]  # the pairs have taught it to end


def test_a_finished_run_is_not_run_again(finished):
    cfg, _ = finished
    assert preference.run(cfg) == json.loads(Path(cfg.out, "result.json").read_text())
    assert Path(cfg.out, "policy", "model.safetensors").exists()


@pytest.mark.parametrize("objective", [dpo(), kto()], ids=["dpo", "kto"])
def test_precomputing_the_reference_changes_no_number(policy_folder, tmp_path, objective, capsys):
    """TRL 2431: and with it, no copy of the reference is held or saved."""
    cfg = preference_config(policy_folder, tmp_path / "once", objective=objective)
    preference.run(cfg)
    assert "ask the reference 3/3" in capsys.readouterr().out  # 24 rows, 8 a batch
    every = replace(cfg, out=str(tmp_path / "every"), precompute_reference=False)
    preference.run(every)
    for a, b in zip(lines_of(cfg.out), lines_of(every.out), strict=True):
        assert a.keys() == b.keys()
        for name in a.keys() - {"phase"}:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
    held = {c.out: saved(c.out, 4)[0].keys() for c in (cfg, every)}
    assert not any(name.startswith("reference") for name in held[cfg.out])
    assert any(name.startswith("reference") for name in held[every.out])


def test_kto_begins_at_a_half_and_parts_the_classes(policy_folder, tmp_path):
    cfg = preference_config(policy_folder, tmp_path, objective=kto(), num_steps=15)
    result = preference.run(cfg)
    assert result["before"]["loss"] == pytest.approx(0.5, abs=1e-6)
    assert result["after"]["loss"] < 0.48
    assert result["after"]["drift_chosen"] > 0.3 > -0.3 > result["after"]["drift_rejected"]


def test_a_loss_without_a_reference_asks_it_for_held_out_rows_alone(
    policy_folder, tmp_path, capsys
):
    cfg = preference_config(policy_folder, tmp_path, objective=simpo(), num_steps=1)
    result = preference.run(cfg)
    assert "ask the reference 2/2" in capsys.readouterr().out  # 10 held-out rows
    assert result["before"]["drift_chosen"] == 0 != result["after"]["drift_chosen"]


def test_a_cache_is_shared_by_runs_of_the_same_model_and_rows(policy_folder, tmp_path, capsys):
    cfg = preference_config(
        policy_folder, tmp_path / "a", reference_cache=str(tmp_path / "cache"), num_steps=1
    )
    preference.run(cfg)
    assert "ask the reference" in capsys.readouterr().out
    preference.run(replace(cfg, out=str(tmp_path / "b"), objective=dpo(beta=0.3)))
    assert "ask the reference" not in capsys.readouterr().out
    # another model: the policy that the first run has trained
    preference.run(replace(cfg, out=str(tmp_path / "c"), model=str(tmp_path / "a" / "policy")))
    assert "ask the reference" in capsys.readouterr().out
    first = lines_of(tmp_path / "c")[1]["loss"]
    assert first == pytest.approx(np.log(2), abs=1e-6)


def test_a_run_that_dies_goes_on_to_the_bit(policy_folder, tmp_path, monkeypatch):
    straight = preference_config(policy_folder, tmp_path / "straight", num_steps=5)
    preference.run(straight)
    cfg = replace(straight, out=str(tmp_path / "died"))
    report = Run.report

    def dies(self, progress, step, *rest, **options):
        if step == 4:
            raise OSError("the disk is gone")
        report(self, progress, step, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "report", dies)
        with pytest.raises(OSError, match="the disk is gone"):
            preference.run(cfg)
    # what the reference said is gone too: the folder's model says it again, not the trained policy
    for file in Path(cfg.out, "reference").iterdir():
        file.unlink()
    preference.run(cfg)
    assert lines_of(cfg.out) == lines_of(straight.out)
    arrays = [saved(c.out, 5)[0] for c in (cfg, straight)]
    assert arrays[0].keys() == arrays[1].keys()
    for name, x in arrays[0].items():
        np.testing.assert_array_equal(x, arrays[1][name], err_msg=name)


@pytest.mark.parametrize("objective", [dpo(), kto()], ids=["dpo", "kto"])
def test_eight_devices_report_what_one_does(policy_folder, tmp_path, objective, monkeypatch):
    one = preference_config(policy_folder, tmp_path / "one", objective=objective, num_steps=2)
    preference.run(one)
    monkeypatch.setattr(offline, "make_mesh", make_mesh)
    eight = replace(
        one, out=str(tmp_path / "eight"), mesh=MeshConfig(data=2, fsdp=2, tensor=2), micro_rows=4
    )
    preference.run(eight)
    for a, b in zip(lines_of(one.out), lines_of(eight.out), strict=True):
        for name in a.keys() - {"phase"}:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-4, err_msg=name)


# --- held-out numbers -----------------------------------------------------------------------------


def test_held_out_pairs_by_hand():
    rows = PreferenceSet.from_rows(higher(rows=3), CharacterTokenizer(), max_tokens=10)
    ref_BS = np.float32([[-3, -4], [-5, -5], [-2, -9]])
    ratio_BS = np.float32([[1, -1], [0, 0], [-3, 2]])
    numbers = pair_numbers(dpo(beta=0.5), rows.with_reference(ref_BS), ref_BS + ratio_BS)
    margin_B = 0.5 * np.array([2, 0, -5])
    assert numbers["loss"] == pytest.approx(np.log1p(np.exp(-margin_B)).mean())
    assert numbers["accuracy"] == pytest.approx(1 / 3)  # a tie is not right
    assert numbers["margin"] == pytest.approx(margin_B.mean())
    assert numbers["drift_chosen"] == pytest.approx(-2 / 3)
    assert numbers["drift_rejected"] == pytest.approx(1 / 3)


def test_held_out_labels_by_hand():
    rows = UnpairedSet.from_rows(labelled(rows=4), CharacterTokenizer(), max_tokens=10)
    ratio_B, other_B = np.float32([1, -1, 3, 0]), np.float32([2, 0, 0, 0])
    zero = np.zeros(4, np.float32)
    numbers = unpaired_numbers(kto(beta=0.5), rows.with_reference(zero, zero), ratio_B, other_B)
    ahead_B = 0.5 * (ratio_B - 0.5) * [1, -1, 1, -1]  # z₀ = mean [2, 0, 0, 0]
    assert numbers["loss"] == pytest.approx((1 / (1 + np.exp(ahead_B))).mean())
    assert numbers["margin"] == pytest.approx(0.5 * (2 - -0.5))
    assert (numbers["drift_chosen"], numbers["drift_rejected"]) == (2, -0.5)
    desirable = replace(rows, desirable=[True] * 4).with_reference(zero, zero)
    numbers = unpaired_numbers(kto(), desirable, ratio_B, other_B)
    assert numbers.keys() == {"loss", "drift_chosen"}


# --- what a user can get wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "messages"),
    [
        (["--objective.loss.beta", -1], ["beta=-1.0 is outside (0"]),
        (["--objective.los.beta", 1], ["--objective.loss.beta FLOAT"]),
        (["--batch-rows", 25], ["a batch of 25 rows", "choose 1 to 24"]),
        (["--batch-rows", 6, "--micro-rows", 4], ["batch_rows=6", "micro_rows=4; nearest"]),
        (["--max-tokens", 5], ["preferences: row 0 has", "more than max_tokens=5", "over_long"]),
        (["--max-tokens", 33], ["max_tokens=33 is above the model's 32"]),
        (["--over-long", "lft"], ["over_long='lft'", "did you mean left?"]),
        (["--answers.max-new-tokens", 30], ["= 38 is above the model's 32 positions"]),
        (["--answers.temperature", -1], ["temperature=-1"]),
        (
            ["--answers.max-prompt-tokens", 3],
            ["held-out prompts: row 0 has", "max_prompt_tokens=3"],
        ),
        (["--model", "no/such/model"], ["no/such/model is not a folder"]),
    ],
    ids=str,
)
def test_options(policy_folder, tmp_path, argv, messages, monkeypatch, capsys):
    monkeypatch.setattr(offline, "train", never)
    cfg = preference_config(policy_folder, tmp_path, answers=ANSWERS)
    with pytest.raises(SystemExit) as stop:
        launch(cfg, preference.run, [str(option) for option in argv])
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stop.value.code == 2 and "Traceback" not in err
    for text in messages:
        assert text in err


def never(*args, **kw):
    raise AssertionError("the run was started")


def test_rows_of_the_other_kind(policy_folder, tmp_path):
    cfg = preference_config(policy_folder, tmp_path, preferences=bind(labelled))
    with pytest.raises(ConfigError, match="row 0: 'chosen' is None"):
        preference.run(cfg)
    cfg = preference_config(policy_folder, tmp_path, objective=kto(), preferences=bind(higher))
    with pytest.raises(ConfigError, match="row 0: 'label' is None"):
        preference.run(cfg)


def test_kto_needs_a_batch_of_two(policy_folder, tmp_path):
    with pytest.raises(ConfigError, match="batch_rows=1: a loss with mismatched pairs"):
        preference_config(policy_folder, tmp_path, objective=kto(), batch_rows=1)


def weighed(*, rows: int = 24):
    return [{**row, "weight": 1.0} for row in higher(rows=rows)]


def test_ranks_have_no_weights(policy_folder, tmp_path):
    cfg = preference_config(policy_folder, tmp_path, objective=aot(), preferences=bind(weighed))
    with pytest.raises(ConfigError, match="compares ranks over the batch"):
        preference.run(cfg)
    assert not any(tmp_path.iterdir())
