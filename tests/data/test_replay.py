import json

import pytest

from rlhf_jax.data.replay import replayed_noisy_rankings, with_replay
from rlhf_jax.errors import ConfigError


def rows(count, name):
    return [{"prompt": f"{name}{i}"} for i in range(count)]


def test_a_tenth_of_the_whole_is_old():
    new, old = rows(90, "new"), rows(40, "old")
    mixed = with_replay(new, old, share=0.1, seed=0)
    assert mixed[:90] == new and len(mixed) == 100
    replayed = [row["prompt"] for row in mixed[90:]]
    assert len(set(replayed)) == 10 and all(p.startswith("old") for p in replayed)
    assert mixed == with_replay(new, old, share=0.1, seed=0)
    assert mixed != with_replay(new, old, share=0.1, seed=1)


def test_at_most_all_old_rows_are_taken():
    assert len(with_replay(rows(90, "new"), rows(4, "old"), share=0.1, seed=0)) == 94
    assert with_replay(rows(3, "new"), rows(4, "old"), share=0.0, seed=0) == rows(3, "new")
    assert with_replay(rows(3, "new"), [], share=0.1, seed=0) == rows(3, "new")
    with pytest.raises(ConfigError, match="share=1"):
        with_replay([], [], share=1.0, seed=0)


def test_rankings_of_several_draws(tmp_path):
    for name in ("one", "two"):
        lines = [
            {
                "prompt": f"p{i}",
                "prompt_ids": [1],
                "completions": [f"{name}a{i}", f"{name}b{i}"],
                "completion_ids": [[1], [2]],
                "scores": [0.0, 50.0],
                "ended": [True, True],
            }
            for i in range(20)
        ]
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    options = dict(temperature=1.0, share=0.25, held_out=5)
    both = tuple(str(tmp_path / name) for name in ("one", "two"))
    found = replayed_noisy_rankings(samples=both, **options)
    names = [row["completions"][0][:3] for row in found]
    assert names == ["two"] * 15 + ["one"] * 5
    # what is held out is of the newest draw, of prompts that no draw trains on
    held_out = replayed_noisy_rankings(samples=both, part="held_out", **options)
    assert [row["completions"][0][:3] for row in held_out] == ["two"] * 5
    assert not {row["prompt"] for row in held_out} & {row["prompt"] for row in found}
    assert all(row["ranks"] == [1, 0] for row in found)
    with pytest.raises(ConfigError, match="samples is empty"):
        replayed_noisy_rankings(samples=(), **options)
