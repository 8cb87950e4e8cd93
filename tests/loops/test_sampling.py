"""Samples drawn once: the same in any batch, after any interruption, and reused."""

import json
from pathlib import Path

import pytest
from toy import say, share_of_low_bytes

from rlhf_jax.bind import bind
from rlhf_jax.data.comparisons import best_of_n, read_samples
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.errors import ConfigError, Interrupted
from rlhf_jax.loops import sampling
from rlhf_jax.models.tokenizer import Tokenizer
from rlhf_jax.rollout.sampler import SamplingConfig
from rlhf_jax.types import replace

pytestmark = pytest.mark.usefixtures("one_device")


def length_if_even(prompts, completions, rows):
    return [
        None if row["number"] % 2 else float(len(c))
        for c, row in zip(completions, rows, strict=True)
    ]


@pytest.fixture
def cfg(policy_folder, tmp_path):
    return sampling.SampleConfig(
        out=str(tmp_path / "samples"),
        model=str(policy_folder),
        prompts=bind(say, train=9),
        rewards=(bind(share_of_low_bytes),),
        sampling=SamplingConfig(num_samples=3, max_new_tokens=4, max_prompt_tokens=8),
        num_prompts=4,
    )


def test_rows_hold_what_was_drawn(cfg, policy_folder):
    rows = sampling.draw_rows(cfg)
    assert [row["prompt"] for row in rows] == [row["prompt"] for row in say(train=9)[0]]
    tokenizer = Tokenizer.from_folder(policy_folder)
    for row in rows:
        assert row["prompt_ids"] == tokenizer.encode(row["prompt"])
        assert row["number"] == int(row["prompt"][4:-1])
        texts = [tokenizer.decode_completion(row["prompt_ids"], i) for i in row["completion_ids"]]
        assert row["completions"] == texts
        assert row["scores"] == pytest.approx(share_of_low_bytes(None, texts, None))
        assert row["ended"] == [ids[-1] in tokenizer.end_ids for ids in row["completion_ids"]]
        assert all(
            len(ids) == 4
            for ids, e in zip(row["completion_ids"], row["ended"], strict=True)
            if not e
        )
    assert len({str(row["completion_ids"]) for row in rows}) == 9
    result = json.loads(Path(cfg.out, "result.json").read_text())
    assert (result["prompts"], result["completions"]) == (9, 27)
    assert result["tokens"] == sum(len(ids) for row in rows for ids in row["completion_ids"])


def test_trl_5242_the_drawn_ids_are_what_is_trained_on(cfg, policy_folder):
    """Broken UTF-8 shows as U+FFFD, so that encoding the text again gives other, more, ids."""
    rows = best_of_n(sampling.draw_rows(cfg))
    tokenizer = Tokenizer.from_folder(policy_folder)
    again = [tokenizer.encode(row["completion"], add_bos=False) for row in rows]
    drawn = [row["completion_ids"] for row in rows]
    assert again != drawn
    learnt = DemonstrationSet.from_rows(rows, tokenizer, max_tokens=16)
    pairs = [zip(*row, strict=True) for row in zip(learnt.ids, learnt.learn, strict=True)]
    assert [[i for i, learn in pair if learn] for pair in pairs] == drawn
    # a truncated completion has no end, and none is made up
    assert any(ids[-1] not in tokenizer.end_ids for ids in drawn)


def test_trl_2824_any_batch_draws_the_same_rows_and_each_sample_its_own(cfg, tmp_path):
    """Keys fold prompt and sample ids, never a place in a batch: as on any number of processes."""
    rows = sampling.draw_rows(cfg)
    for row in rows:
        assert len({tuple(ids) for ids in row["completion_ids"]}) == 3
    other = replace(cfg, out=str(tmp_path / "other"), num_prompts=7)
    assert sampling.draw_rows(other) == rows
    seed = replace(cfg, out=str(tmp_path / "seed"), seed=1)
    assert sampling.draw_rows(seed) != rows
    few = replace(cfg, out=str(tmp_path / "few"), max_prompts=2)
    assert sampling.draw_rows(few) == rows[:2]
    held_out = sampling.draw_rows(replace(cfg, out=str(tmp_path / "held"), part="held_out"))
    assert [row["number"] for row in held_out] == list(range(9, 15))


def test_a_function_that_does_not_apply_leaves_none(cfg):
    rows = sampling.draw_rows(replace(cfg, rewards=(bind(length_if_even),), max_prompts=2))
    assert rows[0]["scores"] == [float(len(text)) for text in rows[0]["completions"]]
    assert rows[1]["scores"] == [None] * 3


def test_what_is_drawn_is_not_drawn_again(cfg, monkeypatch):
    rows, result = sampling.draw_rows(cfg), sampling.run(cfg)
    monkeypatch.setattr(sampling, "load_policy", None)
    assert sampling.run(replace(cfg, num_prompts=5)) == result
    assert sampling.draw_rows(cfg) == rows


def test_trl_3185_a_stopped_run_goes_on_and_counts_on(cfg, tmp_path, monkeypatch):
    straight = replace(cfg, out=str(tmp_path / "straight"))
    rows, tokens = sampling.draw_rows(straight), sampling.run(straight)["tokens"]
    plain = sampling._append

    def stop_after_the_first_batch(file, new):
        plain(file, new)
        monkeypatch.setattr(sampling, "_append", plain)
        raise KeyboardInterrupt

    monkeypatch.setattr(sampling, "_append", stop_after_the_first_batch)
    with pytest.raises(KeyboardInterrupt):
        sampling.run(cfg)
    file = Path(cfg.out, "rows.jsonl")
    assert len(file.read_text().splitlines()) == 4
    with open(file, "a") as out:
        out.write('{"prompt": "torn')  # the process died while it wrote
    assert sampling.draw_rows(cfg) == rows
    assert sampling.run(cfg)["tokens"] == tokens


def test_a_request_to_stop_is_heard_between_batches(cfg, monkeypatch):
    plain = sampling._append

    def asked_to_stop(file, new):
        plain(file, new)
        requests[0].requested = True

    requests = []
    monkeypatch.setattr(sampling.StopRequest, "__enter__", lambda s: requests.append(s) or s)
    monkeypatch.setattr(sampling, "_append", asked_to_stop)
    with pytest.raises(Interrupted, match="stopped after step 4"):
        sampling.run(cfg)
    assert len(read_samples(cfg.out)) == 4


def test_nemo_rl_2519_samples_of_other_data_are_not_mixed_in(cfg, policy_folder, tmp_path):
    rows = sampling.draw_rows(cfg)
    with pytest.raises(ConfigError, match="samples of another seed"):
        sampling.run(replace(cfg, seed=3))
    with pytest.raises(ConfigError, match="samples of another model or data, prompts"):
        sampling.run(replace(cfg, prompts=bind(say, train=8)))
    assert sampling.draw_rows(replace(cfg, restart=True, seed=3)) != rows
    assert read_samples(f"{cfg.out}.1") == rows


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"part": "test"}, "part='test' is unknown"),
        ({"max_prompts": 0}, "max_prompts=0"),
        ({"rewards": ()}, "rewards is empty"),
        ({"rewards": bind(share_of_low_bytes)}, "is a Bound; it takes a tuple"),
        ({"reward_weights": (1.0, 2.0)}, "2 numbers for 1 rewards"),
        ({"num_prompts": 0}, "num_prompts=0"),
    ],
)
def test_options_out_of_range(cfg, wrong, message):
    with pytest.raises(ConfigError, match=message):
        replace(cfg, **wrong)


def named_scores():
    return [{"prompt": "a", "scores": 1}], []


def test_a_dataset_with_a_field_of_ours_is_refused(cfg):
    with pytest.raises(ConfigError, match=r"row 0 has \['scores'\] already"):
        sampling.run(replace(cfg, prompts=bind(named_scores)))
