"""Which part of a text is the final answer, with the publicly reported cases by name."""

import pytest

from rlhf_jax.rewards.answers import (
    after_thinking,
    balanced,
    choice_letter,
    final_answer,
    last_box,
    unwrapped,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{\sqrt{2^{10}}}", r"\sqrt{2^{10}}"),
        (r"\boxed{\left\{ x : x > \frac{1}{2} \right.}", r"\left\{ x : x > \frac{1}{2} \right."),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    ],
)
def test_ms_swift_10147_maxtext_4150_nested_braces(text, answer):
    assert last_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{3} then \boxed{7}", "7"),
        (r"\boxed{12", None),
        (r"first \boxed{3} then \boxed{7", None),
        (r"\boxed{}", ""),
        (r"\boxed{ }", ""),
        (r"\boxed", ""),
        (r"\boxed 5$", "5"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxedtext{3}", None),
        ("nothing", None),
    ],
)
def test_gym_1844_last_box_wins_and_an_unclosed_box_is_none(text, answer):
    assert last_box(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\fbox{42}", "42"),
        (r"\boxed{\text{E}}", "E"),
        (r"\boxed{\text{ (B) }}", "B"),
        (r"\boxed{\textbf{(C)}}", "C"),
        (r"\boxed{\mathrm{cm}}", "cm"),
    ],
)
def test_openrlhf_1285_slime_2150_fbox_and_text_wrappers(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("16 - 3 = 13\n#### 18.", "18"),
        ("#### $18", "18"),
        ("####18", "18"),
        ("#### 17\nno:\n#### 18", "18"),
        ("#### 18\nand more chatter", "18"),
        ("#### 1,234.50.", "1,234.50"),
        ("#### ", ""),
    ],
)
def test_verl_gsm8k_full_stop_dollar_and_marker(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize("answer", ["alpha beta", "data set", "banana split", "a"])
def test_verl_math_dapo_articles_go_only_in_front(answer):
    assert unwrapped(answer) == answer
    assert unwrapped(f"the {answer}.") == (answer if len(answer) > 1 else f"the {answer}")


@pytest.mark.parametrize("chatter", [10, 400, 5000])
def test_verl_tail_window_an_answer_before_long_chatter_is_found(chatter):
    assert final_answer(r"\boxed{5}" + " and so on." * chatter) == "5"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{1}</think>It is \boxed{2}.", "2"),
        (r"<think>\boxed{1}", None),
        (r"\boxed{1}</think>\boxed{2}", "2"),
        ("<think>a</think><think>b", None),
        ("<think>a</think><answer> 7 </answer>", "7"),
        (r"\boxed{1} <answer>so \boxed{7}</answer>", "7"),
        ("<answer>5</answer> no: <answer>6</answer>", "6"),
        ("The answer is 42.", "42"),
        ("The final answer is: $\\frac{1}{2}$.", r"\frac{1}{2}"),
        ("**Answer:** 3.5 and nothing else", "3.5 and nothing else"),
        ("42", "42"),
        ("$x=5$", "x=5"),
        ("", None),
        ("two\nlines", None),
    ],
)
def test_where_the_answer_is(text, answer):
    assert final_answer(text) == answer


def test_after_thinking_and_balanced():
    assert after_thinking("a</think>b") == "b" and after_thinking("plain") == "plain"
    assert balanced("{a{b}c}d", 0) == 6 and balanced("{a", 0) is None
    assert balanced(r"{\}}", 0) == 3


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: C", "C"),
        ("answer : c", "C"),
        ("Answer: (C)", "C"),
        ("**Answer: C**", "C"),
        ("Answer: C. four", "C"),
        ("the answer is (C) four", "C"),
        ("Answer: Cat", None),
        ("Answer: A\nno, Answer: B", "B"),
        (r"\boxed{C}", "C"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{Cat}", None),
        ("<answer>C) four</answer>", "C"),
        ("<think>Answer: A</think>Answer: B", "B"),
        ("<think>Answer: A", None),
        ("C", "C"),
        ("I do not know", None),
    ],
)
def test_nemo_rl_598_multiple_choice(text, letter):
    assert choice_letter(text) == letter
