import gzip
import json
import logging

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.data.prompts import PromptSet, jsonl_prompts, read_jsonl
from rlhf_jax.errors import ConfigError

TEXTS = ["a", "bcd", "ef", "ghijk", "lm"]


def prompt_set(texts=TEXTS, length=6, tokenizer=None, **options):
    rows = [{"prompt": text, "answer": text.upper()} for text in texts]
    return PromptSet.from_rows(
        rows, tokenizer or CharacterTokenizer(), max_prompt_tokens=length, **options
    )


def test_left_padded_with_one_begin_token():
    prompts = prompt_set().take(np.array([1, 3]))
    a = ord("a") + 10
    assert prompts.tokens_PL.tolist() == [
        [0, 0, 1, a + 1, a + 2, a + 3],
        [1, a + 6, a + 7, a + 8, a + 9, a + 10],
    ]
    assert prompts.attend_PL.sum(axis=1).tolist() == [4, 6]
    assert prompts.id_P.tolist() == [1, 3]
    assert prompts.texts == ["bcd", "ghijk"]
    assert prompts.rows[1] == {"prompt": "ghijk", "answer": "GHIJK"}


def test_a_tokenizer_without_begin_token():
    prompts = prompt_set(tokenizer=CharacterTokenizer(bos_id=None)).take(np.array([0]))
    assert prompts.attend_PL.tolist() == [[False] * 5 + [True]]


def test_over_long_is_an_error_that_names_the_row():
    with pytest.raises(ConfigError, match=r"maths: row 3 has 6 tokens.*max_prompt_tokens=5"):
        prompt_set(length=5, name="maths")


def test_over_long_dropped_and_counted_without_renaming_the_others(caplog):
    with caplog.at_level(logging.WARNING):
        prompts = prompt_set(length=3, over_long="drop")
    assert (len(prompts), prompts.num_dropped, prompts.num_cut) == (3, 2, 0)
    assert prompts.id_of == [0, 2, 4]
    assert "2 of 5 rows dropped, 0 cut" in caplog.text


@pytest.mark.parametrize(("side", "kept"), [("left", "ijk"), ("right", "gh")])
def test_over_long_is_cut_to_exactly_the_limit(side, kept):
    """Ids are cut, never text: a special token inside the limit stays (pitfall: re-encoding)."""
    tokenizer = CharacterTokenizer()
    prompts = prompt_set(["x", "ghijk"], length=3, over_long=side)
    assert tokenizer.decode(prompts.ids[1]) == kept
    assert len(prompts.ids[1]) == 3
    assert (prompts.num_dropped, prompts.num_cut) == (0, 1)
    assert prompts.take(np.array([1])).texts == ["ghijk"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows"),
        ([{"prompt": "a"}, {"prompt": ""}], "row 1: 'prompt' is ''"),
        ([{"prompt": 3}], "row 0: 'prompt' is 3, not a non-empty string"),
        ([{"prompt": "a"}, {"prompt": "\udfff"}], "row 1: 'prompt' holds half of a surrogate"),
        ([{"question": "a"}], "row 0 has no 'prompt'; it has question"),
    ],
)
def test_rows_that_are_no_prompts(rows, message):
    with pytest.raises(ConfigError, match=message):
        PromptSet.from_rows(rows, CharacterTokenizer(), max_prompt_tokens=4)


def test_nothing_left_and_unknown_policy():
    with pytest.raises(ConfigError, match="every row is longer than 1"):
        prompt_set(length=1, over_long="drop")
    with pytest.raises(ConfigError, match="did you mean drop"):
        prompt_set(over_long="dropp")
    with pytest.raises(ConfigError, match="max_prompt_tokens=0"):
        prompt_set(length=0)


def test_batches_are_a_function_of_seed_and_step():
    batches = prompt_set().batches(2, seed=3)
    again = prompt_set().batches(2, seed=3)[5]
    assert batches[5].texts == again.texts
    np.testing.assert_array_equal(batches[5].tokens_PL, again.tokens_PL)
    assert batches[5].tokens_PL.shape == (2, 6)
    assert {t for step in range(10) for t in batches[step].texts} == set(TEXTS)


def test_in_order_counts_each_row_once():
    prompts = prompt_set()
    batches = list(prompts.in_order(2))
    assert [weight_P.tolist() for _, weight_P in batches] == [[1, 1], [1, 1], [1, 0]]
    assert all(batch.tokens_PL.shape == (2, 6) for batch, _ in batches)
    seen = [t for b, w in batches for t, one in zip(b.texts, w, strict=True) if one]
    assert seen == TEXTS
    # the mean length over rows, padding of the last batch aside
    total = sum((w * b.attend_PL.sum(axis=1)).sum() for b, w in batches)
    assert total / sum(w.sum() for _, w in batches) == np.mean([len(t) + 1 for t in TEXTS])


def test_a_batch_larger_than_the_set_is_still_in_order():
    ((batch, weight_P),) = prompt_set().in_order(8)
    assert batch.texts == TEXTS + ["lm"] * 3
    assert weight_P.tolist() == [1] * 5 + [0] * 3


def test_fingerprint_sees_a_change():
    same, other = prompt_set().fingerprint, prompt_set(TEXTS[::-1]).fingerprint
    assert same == prompt_set().fingerprint != other
    assert prompt_set(["ab", "c"]).fingerprint != prompt_set(["a", "bc"]).fingerprint


def test_fingerprint_sees_the_whole_record_and_the_id():
    def of(*rows, **options):
        options = {"max_prompt_tokens": 4, **options}
        return PromptSet.from_rows(rows, CharacterTokenizer(), **options).fingerprint

    row = {"prompt": "a", "answer": "1", "tags": {"x", "y"}, "image": np.zeros(2000)}
    changed = np.where(np.arange(2000) == 1000, 1.0, 0.0)  # where NumPy's text has "..."
    seen = [
        of(row),
        of({**row, "answer": "2"}),
        of({**row, "tags": {"x"}}),
        of({**row, "image": changed}),
        of({"prompt": "a"}),
        of(row, {"prompt": "a"}),
        of({"prompt": "a"}, row),
        of({"prompt": "abcdefgh"}, row, over_long="drop"),  # the same record under id 1
        of(row, max_prompt_tokens=1, over_long="left"),  # other tokens of it
    ]
    assert len(set(seen)) == len(seen)
    assert of(dict(reversed(row.items()))) == seen[0]
    assert of({"prompt": "a", "x": Plain()}) == of({"prompt": "a", "x": Plain()})


class Plain:
    """Shown with its address, which differs in every process."""


def write(path, *lines):
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_read_jsonl(tmp_path):
    row = {"prompt": "é\u2028x", "level": 3}
    raw = json.dumps(row, ensure_ascii=False)
    path = write(tmp_path / "a.jsonl", json.dumps({"prompt": "b"}), "", raw)
    assert read_jsonl(path) == [{"prompt": "b"}, row]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no rows"),
        (["", "  "], "holds no rows"),
        (['{"prompt": "a"}', "", '{"prompt": '], r"a\.jsonl:3 is not JSON"),
        (['["a"]'], r"a\.jsonl:1 is a list"),
        (['{"text": "a"}'], r"a\.jsonl:1 has no 'prompt'"),
        (['{"prompt": ""}'], r"a\.jsonl:1: 'prompt' is ''"),
        (['{"prompt": "a"}', '{"prompt": "a", "n": ' + "1" * 5000 + "}"], r"a\.jsonl:2 .*digits"),
        (['{"prompt": ' + "[" * 100_000], r"a\.jsonl:1 is not JSON: .*recursion"),
        (
            ['{"prompt": "a"}', r'{"prompt": "ab\ud800"}'],
            r"a\.jsonl:2: 'prompt' holds .*ud800",
        ),
    ],
)
def test_bad_jsonl_is_named_by_file_and_line(tmp_path, lines, message):
    with pytest.raises(ConfigError, match=message):
        read_jsonl(write(tmp_path / "a.jsonl", *lines))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b'{"prompt": "a"}\n{"prompt": "\xff"}\n',
            r"a\.jsonl:2 is not UTF-8 .* at byte 12",
        ),
        (gzip.compress(b'{"prompt": "a"}\n')[:-4], r"a\.jsonl cannot be read: .*end-of-stream"),
        ('{"prompt": "a"}'.encode("utf-16"), r"a\.jsonl:1 is not UTF-8 .* at byte 0"),
    ],
)
def test_what_is_no_text(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_jsonl(tmp_path / "a.jsonl")


def test_a_byte_order_mark_and_other_line_ends(tmp_path):
    rows = [{"prompt": "a"}, {"prompt": "b"}, {"prompt": "c"}]
    first, second, third = (json.dumps(row).encode() for row in rows)
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"\xef\xbb\xbf" + first + b"\r\n" + second + b"\r" + third)
    assert read_jsonl(file) == rows


def test_gzip_is_told_by_its_content(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(b'{"prompt": "a"}\n'))
    assert read_jsonl(tmp_path / "a.jsonl") == [{"prompt": "a"}]


def test_a_file_that_cannot_be_read(tmp_path, monkeypatch):
    def denied(_):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "a.jsonl", '{"prompt": "a"}')
    monkeypatch.setattr(type(tmp_path), "read_bytes", denied)
    with pytest.raises(ConfigError, match=r"a\.jsonl cannot be read: Permission denied"):
        read_jsonl(path)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl is not a file"):
        read_jsonl(tmp_path / "none.jsonl")


def test_held_out_prompts_may_not_be_trained_on(tmp_path):
    train = write(tmp_path / "train.jsonl", '{"prompt": "a"}', '{"prompt": "b"}')
    clean = write(tmp_path / "clean.jsonl", '{"prompt": "c"}')
    leaky = write(tmp_path / "leaky.jsonl", '{"prompt": "c"}', '{"prompt": "b"}')
    assert [len(rows) for rows in jsonl_prompts(train=train, held_out=clean)] == [2, 1]
    with pytest.raises(ConfigError, match=r"leaky\.jsonl: row 1 is a prompt of"):
        jsonl_prompts(train=train, held_out=leaky)
