"""What the command says of a file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from chat_tokenizer import chat_tokenizer

from rlhf_jax.data.__main__ import main
from rlhf_jax.data.inspect import inspect_file
from rlhf_jax.models.tokenizer import byte_tokenizer

PAIRS = [{"prompt": "ab", "completion": "c" * n} for n in (1, 1, 2, 3)]
DIALOGUE = [{"role": "user", "content": "[hi]"}, {"role": "assistant", "content": "yo"}]


def write(path, rows):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return str(path)


def test_counts_lengths_and_bad_rows(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [*PAIRS, "{", {"prompt": "x"}])
    assert main(["inspect", path, "--bad", "1"]) == 1
    said = capsys.readouterr().out
    assert "4 rows of demonstration" in said
    assert "repeated rows 1, repeated prompts 3, bad rows 2" in said
    assert "a.jsonl:5 is not JSON" in said
    assert "and 1 more" in said
    learnt = next(line for line in said.split("\n") if "learnt " in line and "│" in line)
    assert [int(n) for n in learnt.split("│")[2:-1]] == [2, 2, 4, 4, 4, 4]
    assert "line 1: learnt" in said
    assert "<bos>ab⟦c<eos>⟧" in said
    assert said.count("⟦") - said.count("⟦ ⟧") == 3


def test_clean_files_and_files_that_cannot_be_read(tmp_path, capsys):
    assert main(["inspect", write(tmp_path / "a.jsonl", PAIRS)]) == 0
    assert main(["inspect", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl is not a file" in capsys.readouterr().err


def test_the_command_says_nothing_of_other_libraries(tmp_path):
    """Neither that torch is missing nor that a text is longer than the tokenizer's own limit."""
    tokenizer = byte_tokenizer()
    tokenizer.save(tmp_path / "model")
    file = tmp_path / "model" / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_max_length": 4}))
    path = write(tmp_path / "a.jsonl", PAIRS)
    command = ["-m", "rlhf_jax.data", "inspect", path, "--model", str(tmp_path / "model")]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dialogue_as_a_model_sees_it(tmp_path, capsys):
    chat_tokenizer().save(tmp_path / "model")
    path = write(tmp_path / "a.jsonl", [{"messages": DIALOGUE}])
    assert main(["inspect", path, "--model", str(tmp_path / "model")]) == 0
    said = capsys.readouterr().out
    assert "1 rows of messages" in said
    assert "<|start|>user\n[hi]<|end|>\n<|start|>assistant\n⟦yo<|end|>⟧" in said


@pytest.mark.parametrize(
    ("row", "shape", "parts"),
    [
        ({"prompt": "ab", "answer": "4"}, "verifiable", {"prompt": [1]}),
        (
            {"prompt": "x", "chosen": "y", "rejected": "yz"},
            "preference",
            {"learnt of chosen": [2], "whole of chosen": [3], "learnt of rejected": [3],
             "whole of rejected": [4]},
        ),
    ],
)  # fmt: skip
def test_shapes(tmp_path, row, shape, parts):
    found = inspect_file(write(tmp_path / "a.jsonl", [row]), chat_tokenizer())
    assert (found.shape, found.tokens, found.bad) == (shape, parts, [])
    assert len(found.examples) == (2 if shape == "preference" else 1)


def test_rows_that_a_template_refuses_are_bad_rows(tmp_path):
    tokenizer = chat_tokenizer("{{ raise_exception('no') }}")
    found = inspect_file(write(tmp_path / "a.jsonl", [{"messages": DIALOGUE}]), tokenizer)
    assert [(row.line, "refuses" in row.why) for row in found.bad] == [(1, True)]


def test_rows_alike_are_told_once_with_a_name_that_fits(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [{"question": "ab", "answer": "c"}] * 3)
    assert main(["inspect", path]) == 1
    said = capsys.readouterr().out
    assert said.count("has no 'prompt'; it has question, answer") == 1
    assert "if 'question' is it, rename: prompt=question (2 more rows alike)" in said
    assert main(["inspect", path, "--rename", "prompt=question"]) == 0
    said = capsys.readouterr().out
    assert "line 1: a prompt, to be answered\n<bos>ab\n" in said and "⟦" not in said


def test_texts_as_an_instruct_model_is_asked(tmp_path, capsys):
    chat_tokenizer().save(tmp_path / "model")
    path = write(tmp_path / "a.jsonl", PAIRS)
    asked = ["inspect", path, "--model", str(tmp_path / "model"), "--chat", "--system", "[be]"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "system\n[be]<|end|>\n<|start|>user\nab<|end|>\n<|start|>assistant\n⟦c<|end|>⟧" in said
    assert main(["inspect", path, "--system", "x"]) == 2
    assert "give both" in capsys.readouterr().err
