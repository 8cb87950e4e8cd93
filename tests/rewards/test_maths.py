"""Whether two answers are equal, with the publicly reported cases by name."""

import threading
import time

import pytest

pytest.importorskip("math_verify")

from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.maths import maths, multiple_choice, quick_verdict
from rlhf_jax.rewards.numbers import list_of, number, same_list

# It passes every quick look and keeps math-verify busy for minutes.
HANGS = "1+" * 300 + r"\sin(\cos(\tan(x^{x^{x}})))^{99}(x+y+z+1)^{60}(x+y-z-1)^{60}"


def score(gold, answer):
    return maths(["?"], [f"\\boxed{{{answer}}}"], [{"answer": gold}])[0]


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        pytest.param(r"\frac{1}{2}", r"\frac{1}{2}", 1, id="ms_swift_10147_nested_braces"),
        pytest.param(r"\frac{1}{2}", r"\frac{1}{3}", 0, id="ms_swift_10147_nested_braces_differ"),
        pytest.param("12", "", 0, id="gym_1844_empty_box_is_wrong"),
        pytest.param("1234", "1,234", 1, id="thousands_separator"),
        pytest.param("1234", r"\$1,234.00", 1, id="coursia_12505_dollars_and_cents"),
        pytest.param("234", "1,234.00", 0, id="coursia_12505_naive_pattern"),
        pytest.param("12", "1,2", 0, id="verl_math_dapo_list_is_no_number"),
        pytest.param("12", "(1,2)", 0, id="verl_math_dapo_pair_is_no_number"),
        pytest.param("0.5", r"\frac12", 1, id="decimal_equals_short_fraction"),
        pytest.param(r"\dfrac{1}{2}", "1/2", 1, id="fraction_spellings"),
        pytest.param(r"\frac{63}{400}", "0.1575", 1, id="trl_fraction_equals_decimal"),
        pytest.param("1/3", "0.3333333", 1, id="rounded_decimal"),
        pytest.param("1/3", "0.33", 0, id="coarsely_rounded_decimal"),
        pytest.param("50", r"50\%", 1, id="open_instruct_percent_sign_aside"),
        pytest.param("0.5", r"50\%", 1, id="percent_as_hundredths"),
        pytest.param(r"50\%", "0.5", 1, id="percent_in_the_gold"),
        pytest.param("50", r"0.5\%", 0, id="percent_only_makes_smaller"),
        pytest.param(r"50\%", r"0.5\%", 0, id="percent_on_both_sides"),
        pytest.param(r"\text{data set}", "dat set", 0, id="verl_math_dapo_article_inside_word"),
        pytest.param(r"\text{data set}", "the data set", 1, id="leading_article"),
        pytest.param(r"\text{data}", "adat", 0, id="an_anagram_is_no_product"),
        pytest.param("5", "x=5", 1, id="assignment_equals_value"),
        pytest.param("(1,2]", "[1,2)", 0, id="intervals_differ"),
        pytest.param("(1,2]", "(1,2]", 1, id="interval"),
        pytest.param(r"\{1,2\}", r"\{2,1\}", 1, id="sets_have_no_order"),
        pytest.param("(1,2)", "(2,1)", 0, id="pairs_have_order"),
        pytest.param("x^2-1", "(x-1)(x+1)", 1, id="algebra"),
        pytest.param("E", r"\text{E}", 1, id="letter"),
        pytest.param("E", "F", 0, id="other_letter"),
        pytest.param("C", "Cat", 0, id="letter_in_a_word"),
        pytest.param(18, "18", 1, id="gold_is_a_number"),
        pytest.param("<<2*9=18>>18\n#### 18", "18", 1, id="gold_is_a_gsm8k_solution"),
        pytest.param(r"so \boxed{\frac{1}{2}}.", "0.5", 1, id="gold_is_a_math_solution"),
        pytest.param("9", "9^{9^{9^9}}", 0, id="tower"),
        pytest.param("10^{10^{10}}", "10^{10^{10}}", 1, id="tower_that_is_meant"),
        pytest.param("1", r"\int_0^1 dx", 0, id="left_undone"),
        pytest.param("1", r"\frac{1}{", 0, id="broken_latex"),
        pytest.param("see figure", "3", None, id="trl_unparsable_gold_is_not_scored"),
        pytest.param("see figure", "see figure", None, id="open_instruct_1605_both_unparsable"),
        pytest.param(None, "3", None, id="gold_is_missing"),
        pytest.param("", "3", None, id="gold_is_empty"),
        pytest.param(r"\frac{1}{", "3", None, id="gold_is_broken_latex"),
    ],
)
def test_equality(gold, answer, expected):
    assert score(gold, answer) == expected


def test_what_cannot_be_judged_is_counted():
    rows = [{"answer": gold} for gold in ("see figure", "3", r"\frac{1}{")]
    found = score_completions([maths], None, ["?"] * 3, ["3"] * 3, rows)
    assert found.valid_BC[:, 0].tolist() == [False, True, False]
    assert found.numbers["reward_unreadable_gold/maths"] == 2


def test_nemo_rl_3635_no_number_does_not_shift_the_list():
    rows = [{"answer": "3"}, {"answer": "4"}]
    assert maths(["?"] * 2, ["no number", "#### 4"], rows) == [0, 1]


def test_verl_929_a_hang_scores_0_and_leaves_the_others():
    completions = [r"\boxed{(x-1)(x+1)}", f"\\boxed{{{HANGS}}}", r"\boxed{x^2-1}", "none"]
    rows = [{"answer": "x^2-1"}] * 4
    found = score_completions([maths], None, ["?"] * 4, completions, rows)
    assert found.score_BC[:, 0].tolist() == [1, 0, 1, 0] and found.valid_BC.all()
    assert found.numbers["reward_timeouts/maths"] == 1


def test_verl_5635_trl_5281_threads_score_and_time_out_as_well():
    found = {}

    def scorer(number):
        found[number] = maths(
            ["?"] * 2, [rf"\boxed{{{number}x+x}}", f"\\boxed{{{HANGS}}}"], [{"answer": "3x"}] * 2
        )

    threads = [threading.Thread(target=scorer, args=(number,)) for number in (1, 2)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert found == {1: [0, 0], 2: [1, 0]}
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234", 1234),
        ("-7", -7),
        ("+7.50", 7.5),
        (".5", 0.5),
        ("3/4", 0.75),
        (r"-\frac{3}{4}", -0.75),
        (r"\tfrac34", 0.75),
        (r"50\%", 50),
        ("1,2", None),
        ("12,34", None),
        ("1/0", None),
        ("1e3", None),
        ("x", None),
        ("", None),
        ("-", None),
        ("9" * 301, None),
    ],
)
def test_numbers_are_read_exactly(text, value):
    assert number(text) == value


@pytest.mark.parametrize(
    "answer",
    [
        *("10^{9999999}", "99999!", "(10!)!", "((2^{30})!)", "(1+x)^{300}", "2^{2^{2^{2}}}"),
        *("9^{9^{9}}", "9**9**99", r"\binom{10^9}{5}", "(" * 30 + ")" * 30, "1" * 500, "1+" * 900),
    ],
)
def test_no_process_is_spent_on_numbers_out_of_bounds(answer):
    assert quick_verdict("17x", answer) is False


@pytest.mark.parametrize("answer", ["2^{2^{10}}", "e^{x^2}", "2^{2023}", "5!", "(x-1)^{10}"])
def test_what_is_within_bounds_is_looked_at(answer):
    assert quick_verdict("17x", answer) == "hard"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(1,2]", ("(]", ["1", "2"])),
        (r"\left\{ 1, 2 \right\}", (r"\{\}", ["1", "2"])),
        ("1, 2", ("", ["1", "2"])),
        ("1,234", None),
        ("(1,234)", None),
        ("(5)", None),
        ("[(1,2),(3,4)]", None),
        ("f(x,y)", None),
    ],
)
def test_lists_are_read(text, found):
    assert list_of(text) == found


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("(1,2)", "(1, 2.0)", True),
        ("(1,2)", "(2,1)", False),
        ("(1,2)", "(1,2,3)", False),
        ("(1,2)", "[1,2]", None),
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"\{1,2\}", r"\{1,1,2\}", True),
        (r"\{1,2\}", r"\{1,3\}", False),
        ("1, 2", "2,1", True),
        (r"(-\infty,3]", r"(-\infty, 3]", True),
        (r"(-\infty,3]", r"(\infty,3]", False),
        (r"(-\infty,3]", "(0,3]", False),
        (r"(1,\sqrt2)", "(1,2)", None),
        ("(a,b)", r"(\infty,1)", None),
    ],
)
def test_lists_of_numbers_are_compared_exactly(gold, answer, same):
    assert same_list(gold, answer) is same


def test_multiple_choice():
    rows = [{"answer": gold} for gold in ("C", "(c)", "C", "four", 3)]
    completions = ["Answer: C", r"\boxed{\text{C}}", "Answer: Cat", "Answer: C", "C"]
    assert multiple_choice(["?"] * 5, completions, rows) == [1, 1, 0, None, None]


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"math_verify is not installed: .*rlhf_jax\[rewards\]"):
        score("1", "1")
