"""Human preferences between answers: the order of the pairs, ties, and the split."""

import json

import pytest
from conftest import SHARED

from rlhf_jax.data.qa_feedback import (
    preferred_answers,
    qa_feedback,
    ranked_answers,
    read_feedback,
)
from rlhf_jax.errors import ConfigError


def record(**changes):
    # a > b > c > d, but b and c tie, as do a and d
    answers = {f"prediction {n}": text for n, text in enumerate("abcd", start=1)}
    return {"question": "Who?", **answers, "preference": [1, 1, 0, 0, 1, 2], **changes}


def write(folder, content):
    file = folder / "feedback.json"
    file.write_text(json.dumps(content))
    return file


def test_pairs_in_the_order_of_the_file(tmp_path):
    rows = preferred_answers(read_feedback(write(tmp_path, [record()])))
    assert [(row["chosen"], row["rejected"]) for row in rows] == [
        *(("a", "b"), ("a", "c"), ("b", "d"), ("d", "c"))
    ]
    assert {row["prompt"] for row in rows} == {"Who?\n"}


def test_ranks_count_what_is_better(tmp_path):
    (row,) = ranked_answers(read_feedback(write(tmp_path, [record()])))
    assert row["completions"] == ["a", "b", "c", "d"] and row["ranks"] == [0, 1, 2, 1]


def test_a_question_is_on_one_side(tmp_path):
    records = [record(question=f"{i % 10}?") for i in range(20)]
    file = write(tmp_path, records)
    parts = {}
    for part in ("train", "held_out"):
        rows = qa_feedback(path=str(file), part=part, held_out=3)
        ranked = qa_feedback(path=str(file), part=part, held_out=3, ranked=True)
        parts[part] = {row["prompt"] for row in rows}
        assert parts[part] == {row["prompt"] for row in ranked}
        assert len(rows) == 4 * len(ranked)
    assert len(parts["held_out"]) == 3 and len(parts["train"]) == 7
    assert not parts["held_out"] & parts["train"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "is not a JSON list of records"),
        ([], "is not a JSON list of records"),
        ([record(), 3], "record 1 is not an object"),
        ([record(question=None)], "record 0: 'question' is None"),
        ([record(**{"prediction 4": 3})], "record 0: 'prediction 4' is 3"),
        ([record(preference=[1, 1, 1])], "'preference' is .*, not six of 0, 1 and 2"),
        ([record(preference=[1, 1, 1, 1, 1, 3])], "not six of 0, 1 and 2"),
    ],
)
def test_a_file_that_is_none(tmp_path, content, message):
    with pytest.raises(ConfigError, match=message):
        read_feedback(write(tmp_path, content))
    (tmp_path / "cut.json").write_text('[{"question": ')
    with pytest.raises(ConfigError, match=r"cut\.json:1 is not JSON"):
        read_feedback(tmp_path / "cut.json")


def test_the_published_file():
    file = SHARED / "data" / "qa_feedback" / "dev_feedback.json"
    if not file.exists():
        pytest.skip(f"qa_feedback is not at {file}; set RLHF_JAX_SHARED")
    records = read_feedback(file)
    rows = preferred_answers(records)
    assert (len(records), len(rows)) == (500, 2616)
    wins = {(row["prompt"], row["chosen"], row["rejected"]) for row in rows}
    beaten = {}
    for prompt, chosen, rejected in wins:
        beaten.setdefault((prompt, chosen), set()).add(rejected)
    # in the order that is assumed no three judgements make a circle
    for prompt, a, b in wins:
        for c in beaten.get((prompt, b), ()):
            assert (prompt, c, a) not in wins
