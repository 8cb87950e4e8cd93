import io

import numpy as np
from rich.console import Console

from rlhf_jax.report.tables import sample_table, visible


def render(table, width=100):
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue()


def test_scores_totals_and_what_does_not_apply():
    table = sample_table(
        ["1+1=", "2+2="],
        ["2", "5"],
        np.array([[1.0, 0.25], [0.0, 0.0]], np.float32),
        np.array([[True, True], [True, False]]),
        ["exact", "short"],
        title="step 3",
    )
    lines = [line.split() for line in render(table).splitlines()]
    assert ["step", "3"] in lines
    assert ["prompt", "completion", "exact", "short", "total"] in lines
    assert ["1+1=", "2", "1", "0.25", "1.25"] in lines
    assert ["2+2=", "5", "0", "-", "0"] in lines


def test_one_function_needs_no_total_and_an_unscored_row_shows_it():
    two = sample_table(
        ["p"], ["c"], np.zeros((1, 2)), np.zeros((1, 2), bool), ["a", "b"], title="t"
    )
    assert ["p", "c", "-", "-", "-"] in [line.split() for line in render(two).splitlines()]
    one = sample_table(["p"], ["c"], np.ones((1, 1)), np.ones((1, 1), bool), ["a"], title="t")
    assert "total" not in render(one)


def test_text_cannot_act_on_the_terminal():
    hostile = "[red]x[/] \x1b[31m\x07\n\t\u202eend"
    table = sample_table(
        [hostile], [hostile], np.ones((1, 1)), np.ones((1, 1), bool), ["[bold]a"], title="[b]t"
    )
    text = render(table, width=200)
    assert text.count("[red]x[/] \\x1b[31m\\x07\\n\\t\\u202eend") == 2
    assert "[bold]a" in text and "[b]t" in text
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text


def test_long_texts_keep_their_beginning_and_end():
    shown = visible("a" * 50 + "b" * 50, 30).plain
    assert len(shown) == 30 and shown == "a" * 17 + "..." + "b" * 10
    assert visible("é ü", 30).plain == "é ü"


def test_rows_are_spread_over_the_batch():
    texts = [f"p{i}" for i in range(9)]
    table = sample_table(
        texts, texts, np.ones((9, 1)), np.ones((9, 1), bool), ["a"], title="t", limit=3
    )
    assert [c.plain for c in table.columns[0]._cells] == ["p0", "p4", "p8"]
