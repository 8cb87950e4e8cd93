"""Texts as turns of a chat template, and questions about databases."""

import itertools
import sqlite3
from pathlib import Path

import pytest
from chat_tokenizer import chat_tokenizer, learnt

from rlhf_jax.bind import bind
from rlhf_jax.data.chats import as_chat, chat_prompts, chat_rows
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.data.sql import first_statement, linked, sql_demonstrations, sql_prompts, tables_of
from rlhf_jax.errors import ConfigError

ROW = {"prompt": "2+2?", "completion": "4", "answer": 4}


def rows(*, n: int):
    return [{**ROW, "prompt": f"{i}+{i}?"} for i in range(n)]


def parts(*, n: int):
    return rows(n=n), [ROW]


def test_a_prompt_is_the_users_turn_and_a_completion_the_assistants():
    assert as_chat(ROW, "Be brief.") == {
        "prompt": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
        ],
        "completion": [{"role": "assistant", "content": "4"}],
        "answer": 4,
    }
    assert [m["role"] for m in as_chat({"prompt": "hi"})["prompt"]] == ["user"]
    pair = as_chat({"prompt": "a", "chosen": "b", "rejected": "c"})
    assert pair["rejected"] == [{"role": "assistant", "content": "c"}]
    assert as_chat(as_chat(ROW)) == as_chat(ROW)


def test_what_cannot_be_asked_is_refused():
    with pytest.raises(ConfigError, match="this one is a conversation"):
        as_chat(as_chat(ROW), "Be brief.")
    with pytest.raises(ConfigError, match="no 'prompt'; it has question"):
        as_chat({"question": "?"})


def test_a_run_reads_what_the_template_makes():
    tokenizer = chat_tokenizer()
    made = bind(chat_rows, of=bind(rows, n=2), system="S")()
    data = DemonstrationSet.from_rows(made, tokenizer, max_tokens=99)
    turn = "<|start|>system\nS<|end|>\n<|start|>user\n{}<|end|>\n<|start|>assistant\n"
    assert learnt(tokenizer, data.ids[1], data.learn[1]) == turn.format("1+1?") + "[4<|end|>]"
    train, held_out = bind(chat_prompts, of=bind(parts, n=3), system="S")()
    assert (len(train), len(held_out)) == (3, 1)
    prompts = PromptSet.from_rows(held_out, tokenizer, max_prompt_tokens=99)
    assert prompts.texts == [turn.format("2+2?")]
    assert prompts.rows[0]["answer"] == 4


SCRIPT = "CREATE TABLE town (id int, name text); CREATE TABLE river (name text, miles real);"


@pytest.fixture
def questions(tmp_path):
    """Options of `sql_prompts`: five questions about one database, one about another."""
    (tmp_path / "towns.sql").write_text(SCRIPT)
    base = sqlite3.connect(tmp_path / "file.sql")
    base.executescript("CREATE TABLE pet (name text);")
    base.close()
    lines = [f'towns,How many {i}?,"SELECT {i};SELECT COUNT(*)",' for i in range(5)]
    lines += ["file,Which pet?,SELECT name FROM pet,Use names.", "absent,?,SELECT 1,"]
    path = tmp_path / "q.csv"
    path.write_text("\n".join(["db_name,question,query,instructions", *lines]) + "\n")
    options = dict(path=str(path), folder=str(tmp_path), suffix=".sql")
    return dict(**options, databases=("towns", "file"), held_out=2)


def test_questions_come_with_the_tables_of_their_database(questions):
    train, held_out = sql_prompts(**questions)
    assert (len(train), len(held_out)) == (4, 2)
    asked = {row["prompt"]: row for row in train + held_out}
    row = asked["town(id, name)\nriver(name, miles)\nHow many 3?"]
    assert (row["database"], row["query"]) == ("towns.sql", "SELECT 3;SELECT COUNT(*)")
    assert "pet(name)\nUse names.\nWhich pet?" in asked


def test_demonstrations_are_the_training_questions_with_the_first_gold_query(questions):
    found = sql_demonstrations(**questions)
    assert [row["prompt"] for row in found] == [
        row["prompt"] for row in sql_prompts(**questions)[0]
    ]
    held_out = sql_demonstrations(**questions, part="held_out")
    assert not {row["prompt"] for row in found} & {row["prompt"] for row in held_out}
    completions = {row["completion"] for row in found + held_out}
    assert "```sql\nSELECT 3\n```" in completions
    assert "```sql\nSELECT name FROM pet\n```" in completions


def test_only_the_tables_that_a_question_names_and_short_queries(questions):
    with pytest.raises(ConfigError, match="asks nothing about file"):  # SELECT name FROM pet
        sql_prompts(**questions, longest=10)
    towns = questions | {"databases": ("towns",)}
    assert len([*itertools.chain(*sql_prompts(**towns, longest=10))]) == 5
    train, held_out = sql_prompts(**towns, most_tables=1)
    assert {row["prompt"].split("\n")[0] for row in train + held_out} == {"town(id, name)"}
    found = sql_demonstrations(**towns, most_tables=1)
    assert [row["prompt"] for row in found] == [row["prompt"] for row in train]
    with pytest.raises(ConfigError, match="most_tables"):
        sql_prompts(**towns, most_tables=0)


def test_tables_are_linked_by_their_words():
    tables = "town(id, name)\nriver(name, miles)\nlake_area(town_id, depth)"
    assert linked(tables, "How deep are the lakes?", 1) == "town(id, name)"  # "deep" is not "depth"
    assert linked(tables, "What depth has the lake of the town?", 2) == (
        "town(id, name)\nlake_area(town_id, depth)"
    )
    assert linked(tables, "How long is it in miles?", 1) == "river(name, miles)"
    assert linked(tables, "?", 9) == tables


def test_the_first_statement_ends_outside_quotes():
    assert first_statement("SELECT ';' ; SELECT 2;") == "SELECT ';'"
    assert first_statement(" SELECT 1 ") == "SELECT 1"


def test_databases_that_cannot_be_asked_about_are_refused(questions, tmp_path):
    with pytest.raises(ConfigError, match=r"none\.sql is not a file"):
        sql_prompts(**questions | {"databases": ("none",)})
    (tmp_path / "other.sql").write_text(SCRIPT)
    with pytest.raises(ConfigError, match="asks nothing about other"):
        sql_prompts(**questions | {"databases": ("towns", "other")})
    Path(questions["path"]).write_text("db_name,question,query\ntowns,Why?,\nfile,a,b\n")
    with pytest.raises(ConfigError, match="no gold query for 'Why"):
        sql_prompts(**questions)
    for name, text, why in (
        ("broken.sql", "CREATE TABLE (", "no database that SQLite reads"),
        ("empty.sql", "SELECT 1;", "holds no table"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=why):
            tables_of(str(tmp_path / name))
