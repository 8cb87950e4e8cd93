import csv
import os
import sqlite3
from pathlib import Path

import pytest

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.sql import is_formatted, query_of, sql
from rlhf_jax.rewards.sql_work import is_ordered, same_table, statements

SCRIPT = """
CREATE TABLE town (name TEXT, people INTEGER, area REAL, founded TEXT);
INSERT INTO town VALUES ('Rome', 2800000, 1285.0, NULL), ('Oslo', 700000, 454.03, '1040');
INSERT INTO town VALUES ('Bern', 134000, 51.62, '1191'), ('Bari', 134000, 117.39, NULL);
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("databases")
    (path / "towns.sql").write_text(SCRIPT)
    base = sqlite3.connect(path / "towns.sqlite")
    base.executescript(SCRIPT)
    base.close()
    (path / "broken.sql").write_text("CREATE TABLE (;")
    return str(path)


def score(folder, gold, query, database="towns.sql", **options):
    row = {"database": database, "query": gold}
    return sql(["?"], [query], [row], folder=folder, **options)[0]


@pytest.mark.parametrize("database", ["towns.sql", "towns.sqlite"])
@pytest.mark.parametrize(
    ("gold", "query", "right"),
    [
        ("SELECT name FROM town", "SELECT name FROM town ORDER BY people", 1),
        ("SELECT name FROM town", "SELECT t.name AS other FROM town t", 1),
        ("SELECT name FROM town ORDER BY area", "SELECT name FROM town ORDER BY area DESC", 0),
        ("SELECT name FROM town", "SELECT DISTINCT name FROM town", 1),
        ("SELECT people FROM town", "SELECT DISTINCT people FROM town", 0),
        ("SELECT name, area FROM town", "SELECT area, name FROM town", 1),
        ("SELECT name, area FROM town ORDER BY area", "SELECT area, name FROM town ORDER BY 1", 1),
        ("SELECT name, area FROM town", "SELECT name FROM town", 0),
        ("SELECT name FROM town", "SELECT name, name FROM town", 0),
        ("SELECT COUNT(*) FROM town", "SELECT 4.0", 1),
        ("SELECT SUM(area) / 3 FROM town", "SELECT SUM(area / 3) FROM town", 1),
        ("SELECT SUM(area) FROM town", "SELECT SUM(area) + 0.1 FROM town", 0),
        ("SELECT founded FROM town", "SELECT COALESCE(founded, '') FROM town", 0),
        ("SELECT founded FROM town", "SELECT founded FROM town ORDER BY founded DESC", 1),
        ("SELECT '3'", "SELECT 3", 0),
        ("SELECT 1; SELECT 2;", "SELECT 2", 1),
        ("SELECT 1; SELECT 2;", "SELECT 3", 0),
        ("SELECT 1", "SELECT 1; SELECT 2", 0),
        ("SELECT name FROM town WHERE people < 0", "SELECT area FROM town WHERE people < 0", 1),
        ("SELECT name FROM town WHERE people < 0", "SELECT 1, 2 FROM town WHERE people < 0", 0),
        ("SELECT 1", "SELEC 1", 0),
        ("SELECT 1", "no query", 0),
    ],
)
def test_rules_of_comparison(folder, database, gold, query, right):
    assert score(folder, gold, query, database) == right


def test_the_strict_order_of_columns(folder):
    strict = {"columns": "given"}
    assert (
        score(folder, "SELECT name, area FROM town", "SELECT area, name FROM town", **strict) == 0
    )
    assert (
        score(folder, "SELECT name, area FROM town", "SELECT name, area FROM town", **strict) == 1
    )
    with pytest.raises(ConfigError, match="columns='all' is unknown"):
        score(folder, "SELECT 1", "SELECT 1", columns="all")


def test_columns_with_the_same_cells_are_told_apart_by_their_rows():
    gold = (2, [(1, 2), (2, 1), (3, 3)])
    same, other = (2, [(2, 1), (1, 2), (3, 3)]), (2, [(1, 1), (2, 2), (3, 3)])
    rules = {"ordered": False, "any_columns": True, "tolerance": 1e-6}
    assert same_table(gold, same, **rules) and not same_table(gold, other, **rules)


@pytest.mark.parametrize(
    "query",
    [
        *("DELETE FROM town", "DROP TABLE town", "UPDATE town SET people = 0"),
        *("INSERT INTO town SELECT * FROM town", "CREATE TEMP TABLE x AS SELECT 1"),
        *("ATTACH 'other.sqlite' AS other", "PRAGMA writable_schema = 1", "VACUUM INTO 'x'"),
        *("SELECT load_extension('x')", "SELECT readfile('/etc/passwd')", "SELECT zeroblob(1e9)"),
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c",
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c",
        "SELECT hex(randomblob(400000)) FROM town a, town b, town c, town d, town e, town f",
    ],
)
def test_what_changes_reads_elsewhere_or_never_ends_scores_0(folder, query):
    before = Path(folder, "towns.sqlite").read_bytes()
    assert score(folder, "SELECT 1", query, "towns.sqlite") == 0
    # through one connection: the next query finds everything as it was
    assert score(folder, "SELECT COUNT(*) FROM town", "SELECT 4", "towns.sqlite") == 1
    assert Path(folder, "towns.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("database", "gold"),
    [
        ("missing.sql", "SELECT 1"),
        ("broken.sql", "SELECT 1"),
        ("towns.sql", "SELECT nothing"),
        ("towns.sql", ""),
        ("towns.sql", " ; "),
        ("towns.sql", None),
        (None, "SELECT 1"),
    ],
)
def test_a_gold_query_that_fails_is_counted_and_not_scored(folder, database, gold):
    rows = [{"database": database, "query": gold}, {"database": "towns.sql", "query": "SELECT 1"}]
    reward = bind(sql, folder=folder)
    for query, right in (("SELECT 1", 1), ("none", 0)):
        found = score_completions([reward], None, ["?"] * 2, [query] * 2, rows)
        assert found.valid_BC[:, 0].tolist() == [False, True] and found.score_BC[1, 0] == right
        assert found.numbers["reward_unreadable_gold/sql"] == 1


def test_the_bonus_for_the_format(folder):
    fenced = "```sql\nSELECT {}\n```"
    completions = [
        fenced.format(1),
        fenced.format(2),
        "SELECT 1",
        fenced.format(1) * 2,
        "```sql\n```",
    ]
    rows = [{"database": "towns.sql", "query": "SELECT 1"}] * 5
    found = sql(["?"] * 5, completions, rows, folder=folder, format_bonus=0.25)
    assert found == [1.25, 0.25, 1, 1, 0]
    assert not is_formatted("```\nSELECT 1\n```")


@pytest.mark.parametrize(
    ("completion", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("It is:\n```sql\nSELECT 1;\n```\nDone", "SELECT 1;"),
        ("```\nSELECT 1\n```\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("<think>SELECT 1</think><answer>SELECT 2</answer>", "SELECT 2"),
        ("<sql>with x as (select 1) select * from x</sql>", "with x as (select 1) select * from x"),
        ("I go with this: SELECT 1", "SELECT 1"),
        ("<think>SELECT 1", None),
        ("none", None),
    ],
)
def test_which_part_is_the_query(completion, query):
    assert query_of(completion) == query


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT a FROM t ORDER BY a", True),
        ("select a from t order\n by a limit 3", True),
        ("SELECT a FROM (SELECT a FROM t ORDER BY a)", False),
        ("SELECT 'x ORDER BY y' FROM t", False),
        ("SELECT a FROM t -- ORDER BY a", False),
        ("SELECT a /* ORDER BY */ FROM t", False),
        ("SELECT RANK() OVER (ORDER BY a) FROM t", False),
        ('SELECT "ORDER BY" FROM t', False),
        ("SELECT 'open", False),
    ],
)
def test_whether_a_query_is_ordered(query, ordered):
    assert is_ordered(query) == ordered


def test_statements_are_cut_outside_quotes():
    text = "SELECT ';'; SELECT 2 -- ;\n; SELECT 3"
    assert list(statements(text)) == ["SELECT ';'", "SELECT 2 -- ;", "SELECT 3"]


def test_all_gold_queries_of_sql_eval_score_1():
    shared = os.environ.get("RLHF_JAX_SHARED", Path(__file__).parents[3] / "shared")
    folder = Path(shared, "data", "sql")
    if not folder.exists():
        pytest.skip(f"{folder} is not there; set RLHF_JAX_SHARED")
    with open(folder / "questions_gen_sqlite.csv", newline="") as file:
        asked = list(csv.DictReader(file))
    rows = [
        {"database": f"{row['db_name']}.sqlite.sql", "query": row["query"]}
        for row in asked
        if (folder / f"{row['db_name']}.sqlite.sql").exists()
    ]
    golds = [(row, gold) for row in rows for gold in statements(row["query"])]
    assert len(rows) == 160 and len(golds) == 275
    scores = sql(["?"] * 275, [g for _, g in golds], [r for r, _ in golds], folder=str(folder))
    assert scores == [1.0] * 275
    # each question answered with the next one's query
    first = [next(statements(row["query"])) for row in rows]
    assert sum(sql(["?"] * 160, first[1:] + first[:1], rows, folder=str(folder))) <= 2
