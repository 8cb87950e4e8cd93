"""A reward model's run: it learns, is normalised where it is saved, resumes; what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from experiments.launch import launch
from rlhf_jax.bind import bind
from rlhf_jax.data.judges import as_pairs
from rlhf_jax.errors import ConfigError
from rlhf_jax.loops import reward_model
from rlhf_jax.loops.reward_model import RewardModelConfig, normalisation
from rlhf_jax.rewards.learned import learned
from rlhf_jax.train.checkpoint import CheckpointConfig
from rlhf_jax.train.optim import OptimConfig
from rlhf_jax.types import replace

SHIFT = {"first": 0}
pytestmark = pytest.mark.usefixtures("one_device", "no_curves")


def count_x(*, rows: int = 24, first: int = 0, pairs: bool = False):
    """The more x, the better; two of three completions where there are not three."""
    ranked = []
    for i in range(first + SHIFT["first"], first + SHIFT["first"] + rows):
        x = np.random.default_rng(i).permutation(4)[: 3 if i % 3 else 2]
        texts = ["x" * n + "y" * (3 - n) for n in x]
        scores = [float(n) for n in x]
        ranked.append({"prompt": f"{i}:", "completions": texts, "scores": scores})
    return as_pairs(ranked) if pairs else ranked


def plain(*, rows: int = 40):
    """Reference texts."""
    return [{"prompt": f"{i}:", "completion": "xyyx"[i % 3 :]} for i in range(rows)]


def reward_config(model, out, **changes) -> RewardModelConfig:
    options = dict(
        rankings=bind(count_x),
        held_out=bind(count_x, rows=10, first=100),
        num_steps=4,
        batch_rows=8,
        max_tokens=10,
        optim=OptimConfig(learning_rate=1e-2),
        checkpoint=CheckpointConfig(every=2, keep=10),
    )
    return RewardModelConfig(out=str(out), model=str(model), **options | changes)


def scores_of(out, rows):
    texts = [(row["prompt"], row["completion"]) for row in rows]
    prompts, completions = map(list, zip(*texts, strict=True))
    return np.array(learned(prompts, completions, [], model=f"{out}/reward_model"))


def flat(rankings):
    return [
        {"prompt": row["prompt"], "completion": text}
        for row in rankings
        for text in row["completions"]
    ]


@pytest.fixture(scope="module")
def finished(policy_folder, one_device, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "count"
    cfg = reward_config(policy_folder, out, num_steps=20)
    return cfg, out, reward_model.run(cfg)


def test_it_learns_to_count(finished):
    cfg, out, result = finished
    assert result == json.loads((out / "result.json").read_text())
    before, after = result["before"], result["after"]
    assert before["accuracy"] < 0.8 and before["loss"] > 0.5
    assert after["accuracy"] > 0.9 and after["loss"] < 0.3
    # all texts are of one length, and the labels are those of the true scores
    assert after["accuracy_by_length"] == 0.5 and after["accuracy_true_score"] == 1.0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "accuracy", "lead", "score", "grad_norm"} <= set(lines[1])
    assert reward_model.run(cfg) == result  # is not run again


def test_held_out_numbers_are_of_every_pair_once(finished):
    """Ten rankings in batches of eight: the fill of the last counts nothing."""
    cfg, out, result = finished
    rankings = cfg.held_out()
    scores = iter(scores_of(out, flat(rankings)))
    right, losses = [], []
    gain = json.loads((out / "reward_model" / "reward_model.json").read_text())["gain"]
    for row in rankings:
        found = [next(scores) / gain for _ in row["completions"]]  # as they were in training
        leads = [
            found[i] - found[j]
            for i, a in enumerate(row["scores"])
            for j, b in enumerate(row["scores"])
            if a > b
        ]
        right += [lead > 0 for lead in leads]
        losses.append(np.mean(np.log1p(np.exp(-np.array(leads)))))
    assert result["after"]["accuracy"] == pytest.approx(np.mean(right))
    assert result["after"]["loss"] == pytest.approx(np.mean(losses), rel=1e-4)


def test_the_saved_score_has_mean_0_and_deviation_1(finished):
    cfg, out, _ = finished
    scores = scores_of(out, flat(cfg.rankings()))
    assert len(scores) < cfg.reference_rows  # all of them are the reference
    assert scores.mean() == pytest.approx(0, abs=1e-4) and scores.std() == pytest.approx(1, 1e-4)


def test_reference_texts_of_their_own_and_a_shift_alone(finished, tmp_path):
    cfg, _, _ = finished
    kinds = {}
    for kind in ("none", "centre", "unit"):
        options = {} if kind == "none" else {"reference": bind(plain)}
        part = replace(cfg, out=str(tmp_path / kind), num_steps=2, normalise=kind, **options)
        reward_model.run(part)
        kinds[kind] = scores_of(part.out, plain())
    assert kinds["none"].std() > 0.01 and abs(kinds["none"].mean()) > 0.01
    np.testing.assert_allclose(kinds["centre"], kinds["none"] - kinds["none"].mean(), atol=1e-5)
    np.testing.assert_allclose(kinds["unit"], kinds["centre"] / kinds["none"].std(), atol=1e-4)


def test_normalised_before_training_too(finished, tmp_path):
    cfg, _, _ = finished
    part = replace(cfg, out=str(tmp_path), num_steps=1, normalise_first=True, held_out=None)
    slow = replace(part, optim=OptimConfig(learning_rate=1e-9))
    reward_model.run(slow)
    notes = json.loads((tmp_path / "reward_model" / "reward_model.json").read_text())
    # what it began with was mean 0 and deviation 1 already
    assert notes["gain"] == pytest.approx(1, rel=1e-4)
    assert notes["bias"] == pytest.approx(0, abs=1e-4) and abs(notes["head_bias"]) > 0.01


def test_the_worked_normalisation():
    scores = np.array([-2.0, 6.0, -2.0, 6.0])  # mean 2, deviation 4
    assert normalisation(scores, "unit") == (0.25, -0.5)
    assert normalisation(scores, "centre") == (1.0, -2.0)
    with pytest.raises(ConfigError, match="all 3 reference texts score 2"):
        normalisation(np.full(3, 2.0), "unit")


def test_a_run_in_two_parts_is_one_run(policy_folder, tmp_path, monkeypatch):
    whole = reward_config(policy_folder, tmp_path / "whole", normalise_first=True)
    parts = replace(whole, out=str(tmp_path / "parts"))
    reward_model.run(whole)
    reward_model.run(replace(parts, num_steps=2))
    reward_model.run(parts)
    for name in ("model.safetensors", "reward_model.json"):
        one, other = (Path(cfg.out, "reward_model", name).read_bytes() for cfg in (whole, parts))
        assert one == other, name
    # the same options, and other rows behind them
    monkeypatch.setitem(SHIFT, "first", 1)
    with pytest.raises(ConfigError, match=r"model or the data .* has changed"):
        reward_model.run(replace(parts, num_steps=5))


def test_two_seeds_begin_with_two_heads(policy_folder, tmp_path):
    heads = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        still = OptimConfig(learning_rate=1e-9)
        cfg = reward_config(policy_folder, tmp_path / name, num_steps=1, seed=seed, optim=still)
        reward_model.run(replace(cfg, normalise="none"))
        file = Path(cfg.out, "reward_model", "model.safetensors")
        heads[name] = load_file(file)["score.weight"]
    assert (heads["a"] == heads["b"]).all() and np.abs(heads["a"] - heads["c"]).max() > 0.01


def test_a_reward_model_is_trained_further_on_pairs(finished, tmp_path):
    cfg, out, result = finished
    pairs = bind(count_x, pairs=True)
    more = replace(cfg, out=str(tmp_path), model=f"{out}/reward_model", rankings=pairs, num_steps=1)
    before = reward_model.run(more)["before"]
    assert before["accuracy"] == result["after"]["accuracy"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--normalise", "units"], "normalise='units' is unknown; did you mean unit?"),
        (["--normalise", "none", "--normalise-first"], 'normalise="none" reads no reference'),
        (["--reference-rows", "1"], "reference_rows=1 is outside [2"),
        (["--objective.centre", "-1"], "centre=-1.0 is outside [0"),
        (["--batch-rows", "25"], "a batch of 25 rows cannot be drawn without repeats from 24"),
        (["--max-tokens", "33"], "max_tokens=33 is above the model's 32 positions"),
        (["--max-tokens", "4"], "rankings: row 0 has 7 tokens, more than max_tokens=4"),
        (["--rankings.rows", "0"], "rankings: there are no rows"),
        (["--held-out.rows", "0"], "held-out rankings: there are no rows"),
        (["--micro-rows", "3"], "8 does not divide by micro_rows=3; nearest"),
        (["--model", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_what_is_refused(argv, message, policy_folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        # options that are None cannot be set by a text
        cfg = reward_config(policy_folder, tmp_path / "run")
        cfg = replace(cfg, objective=replace(cfg.objective, centre=0.1))
        launch(cfg, reward_model.run, argv)
    err = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert stop.value.code == 2 and message in err, err
    assert not (tmp_path / "run" / "checkpoints").exists()
