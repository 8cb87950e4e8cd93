"""Imitation: the loss goes down, the folder is complete, a model can be trained further."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from toy import sft_config, spell

from rlhf_jax.bind import bind
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.mixture import mixture
from rlhf_jax.loops import sft
from rlhf_jax.models.convert import load_pretrained
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.models.transformer import Model
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def finished(one_device, tmp_path_factory):
    cfg = sft_config(tmp_path_factory.mktemp("runs") / "spell", num_steps=60, batch_rows=16)
    return cfg, Path(cfg.out), sft.run(cfg)


def losses(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def test_the_loss_goes_down(finished):
    _, out, _ = finished
    loss = losses(out)
    # an untrained decoder of 259 ids is near log 259 = 5.6 nats
    assert 4.5 < loss[0] < 7
    assert loss[-1] < 0.3


def test_the_folder_holds_everything(finished):
    cfg, out, result = finished
    assert result == json.loads((out / "result.json").read_text())
    assert result["steps"] == 60
    # two digits and an end, 16 rows, 60 steps
    assert result["tokens"] == 3 * 16 * 60
    assert json.loads((out / "config.json").read_text())["config"]["batch_rows"] == 16
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert list((out / "tensorboard").rglob("events.out*"))
    assert sft.run(cfg) == result  # is not run again


def test_the_exported_model_says_what_it_was_taught(finished):
    cfg, out, _ = finished
    tokenizer = Tokenizer.from_folder(out / "policy")
    config, params = load_pretrained(out / "policy")
    model = Model(config)
    rows = DemonstrationSet.from_rows(spell(), tokenizer, max_tokens=cfg.max_tokens)
    batch = rows.take(np.arange(16))
    hidden_BTD = model.hidden(params, batch.tokens_BT, batch.attend_BT)
    greedy_BT = np.asarray(model.logits(params, hidden_BTD).argmax(-1))
    right_BT = greedy_BT[:, :-1] == batch.tokens_BT[:, 1:]
    assert (right_BT | ~batch.mask_BT[:, 1:]).all(axis=1).sum() >= 15


@pytest.mark.usefixtures("no_curves")
def test_a_given_model_is_trained_further(finished, tmp_path):
    cfg, out, _ = finished
    more = replace(cfg, out=str(tmp_path), model=str(out / "policy"), num_steps=2)
    sft.run(more)
    assert losses(tmp_path)[0] < 0.5


@pytest.mark.usefixtures("no_curves")
def test_seeds_differ_and_repeat(tmp_path):
    loss = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        cfg = sft_config(tmp_path / name, num_steps=2, seed=seed)
        sft.run(cfg)
        loss[name] = losses(Path(cfg.out))
    assert loss["a"] == loss["b"] != loss["c"]


@pytest.mark.usefixtures("no_curves")
def test_the_held_out_loss_is_the_pooled_mean_of_all_rows(finished, tmp_path):
    cfg, out, _ = finished
    held_out = bind(spell, rows=11)  # the last batch of 8 is filled up with copies
    more = replace(cfg, out=str(tmp_path), model=str(out / "policy"), num_steps=1, batch_rows=8)
    measured = sft.run(replace(more, held_out=held_out))["before"]
    config, params = load_pretrained(out / "policy")
    tokenizer, model = Tokenizer.from_folder(out / "policy"), Model(config)
    rows = DemonstrationSet.from_rows(held_out(), tokenizer, max_tokens=cfg.max_tokens)
    batch = rows.take(np.arange(11))
    logits = model.logits(params, model.hidden(params, batch.tokens_BT, batch.attend_BT))
    logp_BTV = np.asarray(jax.nn.log_softmax(logits[:, :-1]))
    logp_BT = np.take_along_axis(logp_BTV, batch.tokens_BT[:, 1:, None], axis=2)[..., 0]
    assert measured["loss"] == pytest.approx(-logp_BT[batch.mask_BT[:, 1:]].mean(), rel=1e-4)
    assert measured["perplexity"] == pytest.approx(np.exp(measured["loss"]))


@pytest.mark.usefixtures("no_curves")
def test_packed_rows_and_mixtures_train(tmp_path):
    """A batch counts packed rows: four of 14 columns hold more than four demonstrations."""
    both = bind(mixture, parts=(bind(spell), bind(spell)), weights=(3.0, 1.0))
    for name, changes in {
        "packed": dict(packing=True, max_tokens=14, batch_rows=4),
        "mixed": dict(demonstrations=both, batch_rows=4),
    }.items():
        cfg = sft_config(tmp_path / name, num_steps=2, **changes)
        result = sft.run(cfg)
        assert np.isfinite(losses(Path(cfg.out))).all()
        unpacked = 3 * 4 * 2
        more = result["tokens"] > unpacked
        assert more if name == "packed" else result["tokens"] == unpacked
