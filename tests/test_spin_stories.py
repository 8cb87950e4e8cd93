"""SPIN's rounds: each plays against the policy of the last, on samples of its own."""

from pathlib import Path

import pytest
from toy import write_policy

from experiments import spin_stories
from experiments.spin_stories import SpinConfig, friendly, main, openings, pairs
from rlhf_jax.data.comparisons import ROWS_FILE
from rlhf_jax.errors import ConfigError
from rlhf_jax.types import replace


@pytest.fixture
def played(monkeypatch):
    """(what was run, its config) in order; numbers that tell the rounds apart."""
    ran = []

    def train(cfg):
        ran.append(("train", cfg))
        counts = {"steps": 5, "updates": 4, "seconds": 1.5, "tokens": 10}
        return {"before": {"score": 0.1, "kl": 0.0}, **counts}

    monkeypatch.setattr(spin_stories.sampling, "run", lambda cfg: ran.append(("sample", cfg)))
    monkeypatch.setattr(spin_stories.preference, "run", train)
    monkeypatch.setattr(
        spin_stories,
        "answer_from_folder",
        lambda cfg, policy, reference, *, like: {
            "score": 0.4,
            "kl": 3.0,
            "of": (policy, reference, like.seed),
        },
    )
    return ran


def test_each_round_plays_against_the_last(played, tmp_path, capsys):
    result = main(SpinConfig(out=str(tmp_path), model="base", seed=7, rounds=2))
    assert [name for name, _ in played] == ["sample", "train"] * 2
    for number, policy in enumerate(("base", f"{tmp_path}/round_0/policy")):
        (_, sample), (_, train) = played[2 * number : 2 * number + 2]
        folder = f"{tmp_path}/round_{number}"
        assert sample.model == train.model == policy  # the opponent and the reference are one
        assert sample.seed == train.seed == 7 + number
        assert (sample.out, train.out) == (f"{folder}/samples", folder)
        assert train.preferences.kw["samples"] == sample.out
        assert train.needs_reference
    assert result["before"]["score"] == 0.1
    # the whole way is measured from where it began, not from the last round
    assert result["after"]["of"] == (f"{tmp_path}/round_1/policy", "base", 7)
    counts = ("steps", "updates", "seconds", "tokens")
    assert [result[name] for name in counts] == [10, 8, 3.0, 20]
    assert (tmp_path / "result.json").exists()
    assert "VADER 0.100 -> 0.400, KL 3.0 nats" in capsys.readouterr().out


def test_what_the_rounds_set_is_not_set_elsewhere():
    with pytest.raises(ConfigError, match=r"dpo\.model is set by the rounds; use --model"):
        SpinConfig(dpo=replace(spin_stories.DPO, model="x"))
    with pytest.raises(ConfigError, match="it cannot be left out"):
        SpinConfig(dpo=replace(spin_stories.DPO, answers=None))
    with pytest.raises(ConfigError, match="rounds=0 is outside"):
        SpinConfig(rounds=0)


def test_friendly_stories_cut_as_long_as_samples(tmp_path, monkeypatch):
    folder = write_policy(tmp_path / "policy")
    begins = "Once upon a time there was"
    stories = [f"{begins} a {name}. {end}" for name, end in (("cat", "Joy!"), ("dog", "Woe."))]
    path = Path(tmp_path, "stories.txt")
    path.write_text("\n\n".join([*stories, *(f"{begins} {i} for all the rest." for i in "abcd")]))

    def vader(prompts, completions, rows):
        return [float("Jo" in text) for text in completions]

    monkeypatch.setattr(spin_stories, "vader", vader)

    def some(function, tokens, **more):
        return function(path=str(path), model=str(folder), least=0.5, tokens=tokens, **more)

    monkeypatch.setattr(
        spin_stories,
        "story_continuations",
        lambda *, path: [
            {"prompt": begins, "completion": story[len(begins) :]} for story in stories
        ],
    )
    monkeypatch.setattr(spin_stories, "story_openings", lambda *, path: ([], [{"prompt": "h"}]))
    (row,) = some(friendly, 10)
    assert row["completion"] == " a cat. Jo" and len(row["completion_ids"]) == 10
    assert some(friendly, 8) == []  # not yet friendly where it is cut
    assert some(friendly, 99) == []  # shorter than a sample: where it ends is no style to learn
    assert some(openings, 10) == ([{"prompt": begins}], [{"prompt": "h"}])
    (tmp_path / ROWS_FILE).write_text(
        f'{{"prompt": "{begins}", "prompt_ids": [1], "completions": [" no"], '
        '"completion_ids": [[5]], "scores": [0.1], "ended": [false]}\n'
    )
    (pair,) = some(pairs, 10, samples=str(tmp_path))
    assert (pair["chosen"], pair["rejected"]) == (" a cat. Jo", " no")
