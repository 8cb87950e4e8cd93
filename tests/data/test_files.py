"""Every kind of file gives the same rows; what is broken is named by file and line."""

import gzip
import json
import logging

import pyarrow as pa
import pyarrow.parquet
import pytest

from rlhf_jax.data.files import MAX_BYTES, read_records
from rlhf_jax.data.sources import file_prompts, file_rows, tfds_rows
from rlhf_jax.errors import ConfigError

ROWS = [{"prompt": "é\u2028x", "completion": "b"}, {"prompt": 'c,"\nd', "completion": "e"}]
CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def write(path, data):
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write_arrow(folder, rows):
    folder.mkdir()
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(folder / "data.arrow"), "wb") as file,
        pa.ipc.new_stream(file, table.schema) as writer,
    ):
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    return str(folder)


def csv_of(rows, mark=","):
    cell = lambda text: '"' + text.replace('"', '""') + '"'  # noqa: E731
    return "".join(
        mark.join(cells) + "\r\n"
        for cells in [list(rows[0]), *([cell(v) for v in row.values()] for row in rows)]
    )


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_the_same_rows_of_every_kind(tmp_path, kind, zipped):
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), path)
        data = path.read_bytes()
    else:
        texts = {
            "jsonl": lines(ROWS),
            "json": json.dumps(ROWS, indent=1),
            "csv": csv_of(ROWS),
            "tsv": csv_of(ROWS, "\t"),
        }
        data = texts[kind].encode()
    path = write(
        tmp_path / f"a.{kind}{'.gz' if zipped else ''}", gzip.compress(data) if zipped else data
    )
    assert file_rows(path=path, shape="demonstration") == ROWS


def test_a_saved_dataset_folder_without_its_library(tmp_path):
    path = write_arrow(tmp_path / "d", ROWS)
    assert file_rows(path=path, shape="demonstration") == ROWS
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match=r"several splits; name the folder of one: .*both/train"):
        read_records(tmp_path / "both")


def test_plain_text_is_a_prompt_a_line(tmp_path):
    path = write(tmp_path / "a.txt", "one\n\n two \r\nthree")
    assert [row["prompt"] for row in file_rows(path=path, shape="prompt")] == [
        "one",
        " two ",
        "three",
    ]


GOOD = '{"prompt": "a"}'
BROKEN = [
    (b'{"prompt": ', r"is not JSON: Expecting value at column 12"),
    (b'["a"]', r"is a list, not an object"),
    (b'{"prompt": 3}', r"'prompt' is 3, not a string"),
    (b'{"text": "a"}', r"has no 'prompt'; it has text"),
    (b'{"prompt": " "}', r"'prompt' is ' ', not a non-empty string"),
    (b'{"prompt": "\xff"}', r"is not UTF-8 text: invalid start byte at byte 12"),
    (b'{"prompt": "' + b"x" * (MAX_BYTES + 1) + b'"}', r"'prompt' has 1000001 bytes"),
    (rb'{"prompt": "a\u0000"}', r"'prompt' holds a NUL character at 1"),
    (b'{"prompt": "a\x00"}', r"is not JSON: Invalid control character"),
    (rb'{"prompt": "\ud800"}', r"'prompt' holds half of a surrogate pair"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_bad_row_is_refused_or_skipped_and_told(tmp_path, caplog, line, message):
    path = write(tmp_path / "a.jsonl", b"\n".join([GOOD.encode(), b"", line, GOOD.encode()]))
    with pytest.raises(ConfigError, match=rf"a\.jsonl:3:? {message}"):
        file_rows(path=path, shape="prompt")
    with caplog.at_level(logging.WARNING):
        assert file_rows(path=path, shape="prompt", bad="skip") == [{"prompt": "a"}] * 2
    assert "1 bad of 3 records skipped" in caplog.text
    assert "a.jsonl:3" in caplog.text


def test_all_bad_rows_are_counted(tmp_path):
    path = write(tmp_path / "a.jsonl", "[]\n" * 8)
    with pytest.raises(ConfigError, match=r"a\.jsonl:5 is a list.*\n… and 3 more"):
        file_rows(path=path, shape="prompt")
    with pytest.raises(ConfigError, match="holds no rows that can be used"):
        file_rows(path=path, shape="prompt", bad="skip")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"prompt\na\n\xff\n", r"a\.csv:3 is not UTF-8"),
        ("a.csv", b"prompt,b\na,b\nc\n", r"a\.csv:3 has 1 cells for 2 columns"),
        ("a.csv", b"a,a\n", r"each needs a name of its own"),
        ("a.csv", b'prompt\n"a\nb', r"a\.csv:2 is not CSV"),
        ("a.json", b'[{"prompt": "a"},\n {"prompt": ]', r"a\.json:2 is not JSON"),
        ("a.json", b'{"prompt": "a"}', r"not a JSON list of objects"),
        ("a.json", b'[{"prompt": "a"}] 3', r"goes on after the end"),
        ("a.json", b'[{"prompt": "a"}\n{}]', r"a\.json:1 is not JSON: no comma"),
        ("a.parquet", b"PAR1", r"a\.parquet is no parquet file"),
        ("a.xml", b"<a/>", r"told by its name; known are \.jsonl"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, name, content, message):
    with pytest.raises(ConfigError, match=message):
        file_rows(path=write(tmp_path / name, content), shape="prompt")


SHAPED = {
    "messages": ({"messages": CHAT}, {"messages": CHAT[:1]}),
    "demonstration": ({"prompt": CHAT[:1], "completion": CHAT[1:]}, {"prompt": "a"}),
    "preference": (
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"chosen": "b", "rejected": "c"},
    ),
    "unpaired": (
        {"prompt": "a", "completion": "b", "label": False},
        {"prompt": "a", "completion": "b", "label": 1},
    ),
    "stepwise": (
        {"prompt": "a", "completions": ["b", "c"], "labels": [True, False]},
        {"prompt": "a", "completions": ["b", "c"], "labels": [True]},
    ),
    "ranking": (
        {"prompt": "a", "completions": ["b", "c"], "scores": [1, 2]},
        {"prompt": "a", "completions": ["b", "c"]},
    ),
    "verifiable": ({"prompt": "a", "answer": "4"}, {"prompt": "a", "answer": ""}),
    "prompt": ({"prompt": CHAT[:1]}, {"prompt": CHAT}),
}


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("shape", SHAPED)
def test_shapes(tmp_path, shape, cached):
    good, wrong = SHAPED[shape]
    path = write(tmp_path / "a.jsonl", lines([{**good, "n": None}, good]))
    options = {"cache": str(tmp_path / "cache")} if cached else {}
    for _ in range(2):
        assert file_rows(path=path, shape=shape, **options) == [{**good, "n": None}, good]
    bad = write(tmp_path / "b.jsonl", lines([good, wrong]))
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"b\.jsonl:2"):
            file_rows(path=bad, shape=shape, **options)


def test_a_pair_without_a_prompt_has_what_both_sides_begin_with(tmp_path):
    whole = [*CHAT, {"role": "user", "content": "r"}]
    rows = [
        {"chosen": "U: hi A: yes", "rejected": "U: hi A: no"},
        {
            "chosen": [*whole, {"role": "assistant", "content": "x"}],
            "rejected": [*whole, {"role": "assistant", "content": "y"}],
        },
        {"chosen": CHAT, "rejected": CHAT},
    ]
    path = write(tmp_path / "a.jsonl", lines(rows))
    text, chat, same = file_rows(path=path, shape="preference")
    assert text == {"prompt": "U: hi A: ", "chosen": "yes", "rejected": "no"}
    assert chat["prompt"] == whole
    assert [m["content"] for side in ("chosen", "rejected") for m in chat[side]] == ["x", "y"]
    assert (same["prompt"], same["chosen"]) == (CHAT[:1], CHAT[1:])


def test_cells_of_a_table_are_what_the_shape_wants(tmp_path):
    row = {"prompt": "7", "completion": "[8]", "label": "TRUE"}
    path = write(tmp_path / "a.csv", csv_of([row]))
    assert file_rows(path=path, shape="unpaired") == [{**row, "label": True}]
    chat = {"messages": json.dumps(CHAT)}
    assert file_rows(path=write(tmp_path / "b.csv", csv_of([chat])), shape="messages") == [
        {"messages": CHAT}
    ]


def test_renamed_fields(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"question": "a", "prompt": "old", "n": 1}\n')
    rows = file_rows(path=path, shape="prompt", rename=("prompt=question",))
    assert rows == [{"prompt": "a", "n": 1}]
    with pytest.raises(ConfigError, match="'new=old'"):
        file_rows(path=path, shape="prompt", rename=("prompt",))


def test_held_out_by_content_whatever_the_order(tmp_path):
    rows = [{"prompt": f"p{i % 9}", "n": i} for i in range(18)]
    path = write(tmp_path / "a.jsonl", lines(rows))
    turned = write(tmp_path / "b.jsonl", lines(rows[::-1]))
    train, held_out = file_prompts(path=path, held_out=3)
    assert (len(train), len(held_out)) == (12, 6), "all rows of a prompt are on one side"
    again = file_rows(path=turned, shape="prompt", part="held_out", held_out=3)
    assert sorted(r["n"] for r in again) == sorted(r["n"] for r in held_out)
    with pytest.raises(ConfigError, match="9 distinct prompts are too few to hold out 9"):
        file_prompts(path=path, held_out=9)


def test_held_out_of_a_test_file(tmp_path):
    train = write(tmp_path / "train.jsonl", lines([{"prompt": f"p{i}"} for i in range(4)]))
    test = write(tmp_path / "test.jsonl", lines([{"prompt": f"t{i}"} for i in range(5)]))
    for asked, found in ((2, 2), (0, 5)):
        rows, held_out = file_prompts(path=train, held_out=asked, held_out_path=test)
        assert (len(rows), len(held_out)) == (4, found)
        assert {row["prompt"][0] for row in held_out} == {"t"}
    leaky = write(tmp_path / "leaky.jsonl", lines([{"prompt": "t"}, {"prompt": "p3"}]))
    with pytest.raises(ConfigError, match=r"'p3' is a prompt of .*train"):
        file_prompts(path=train, held_out=0, held_out_path=leaky)


# Prepared


def test_prepared_once_and_again_when_a_byte_changes(tmp_path, caplog, monkeypatch):
    cache = str(tmp_path / "cache")
    path = write(tmp_path / "a.jsonl", GOOD + "\n[]\n")
    options = dict(shape="prompt", bad="skip", cache=cache)
    first = file_rows(path=path, **options)
    monkeypatch.setattr("rlhf_jax.data.sources.read_records", None)  # not read a second time
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert file_rows(path=path, **options) == first
    assert "a.jsonl:2 is a list, not an object" in caplog.text, "and what is missing is told again"
    with pytest.raises(ConfigError, match=r"a\.jsonl:2"):
        file_rows(path=path, shape="prompt", cache=cache)
    monkeypatch.undo()
    write(tmp_path / "a.jsonl", '{"prompt": "b"}\n')
    assert file_rows(path=path, **options) == [{"prompt": "b"}]


def test_a_prepared_folder_is_an_ordinary_dataset(tmp_path):
    path = write(tmp_path / "a.jsonl", lines([{"prompt": f"p{i}", "n": [i]} for i in range(5)]))
    file_rows(path=path, shape="prompt", cache=str(tmp_path / "cache"))
    (folder,) = (tmp_path / "cache" / "rows").glob("prompt-*/1.0.0")
    rows = tfds_rows(name=str(folder), shape="prompt", split="train[:40%]")
    assert [row["prompt"] for row in rows] == ["p0", "p1"]
    with pytest.raises(ConfigError, match="'nowhere_at_all', split 'train'"):
        tfds_rows(name="nowhere_at_all", shape="prompt", data_dir=str(tmp_path))
