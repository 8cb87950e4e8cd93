"""The calculator computes arithmetic and nothing else; the last text is the answer."""

import time

import pytest

from rlhf_jax.environments.calculator import Calculator, calculated, same


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12*7", "84"),
        (" 2 + 3 * (4 - 1) ", "11"),
        ("7/2", "3.5"),
        ("1/3", "0.3333333333"),
        ("0.1+0.2", "0.3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("2**-1", "0.5"),
        ("2**10", "1024"),
        ("--3", "3"),
        ("007+08", "15"),
        ("100.05", "100.05"),
        ("10.0", "10"),
        ("(" * 60 + "1" + ")" * 60, "1"),
    ],
)
def test_arithmetic(expression, value):
    assert calculated(expression) == value


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("1/0", "division by zero"),
        ("5%(2-2)", "division by zero"),
        ("0**-1", "division by zero"),
        ("", "only numbers"),
        ("__import__('os').system('true')", "only numbers"),
        ("1e5", "only numbers"),
        ("x", "only numbers"),
        ("٣+1", "only numbers"),
        ("1\x00", "only numbers"),
        ("()", "not an expression"),
        ("1 (2)", "not an expression"),
        ("1.2.3", "not an expression"),
        ("3+", "not an expression"),
        ("(1", "not an expression"),
        ("1" * 201, "too long"),
        ("9" * 70, "too large"),
        ("2**64**2", "powers are whole numbers within ±64"),
        ("2**0.5", "powers are whole numbers within ±64"),
        ("9**64**1*9**64", "too large"),
        ("(" * 100 + "1" + ")" * 99, "not an expression"),
    ],
)
def test_what_it_cannot_compute_is_an_error_text(expression, why):
    began = time.monotonic()
    assert calculated(expression).startswith(f"error: {why}")
    assert time.monotonic() - began < 1


def steps(*texts, answer="84", **options):
    world = Calculator(**options)
    world.reset({"answer": answer})
    return [world.step(text) for text in texts]


def test_a_call_gets_its_result_and_an_answer_ends_the_dialogue():
    assert steps("<calc>12*7</calc>", "84") == [
        ("<result>84</result>", 0.0, False),
        (None, 1.0, True),
    ]
    assert steps("so <calc>1/0</calc> and\n<calc>2*\n3</calc>") == [
        ("<result>error: division by zero</result><result>6</result>", 0.0, False)
    ]
    # never closed: no call, so an answer, and a wrong one
    assert steps("<calc>12*7") == [(None, 0.0, True)]


def test_answers_are_numbers_or_the_same_text():
    right = ["84", " 84\n", "084", "84.0", "+84", "I see: <answer> 84 </answer>"]
    right.append("<answer>83</answer> no, <answer>84</answer>")
    assert [steps(text)[0].reward for text in right] == [1.0] * len(right)
    wrong = ["", "83", "80+4", "7*12", "84 84", "the answer is 84", "8_4", "<answer></answer>"]
    assert [steps(text)[0].reward for text in wrong] == [0.0] * len(wrong)
    assert steps("blue", answer="blue")[0].reward == 1.0
    assert not same("9" * 5000, "84")


def test_calls_may_cost_and_a_row_without_an_answer_is_not_judged():
    assert steps("<calc>1</calc><calc>2</calc>", call_cost=0.25)[0].reward == -0.5
    assert steps("<calc>1</calc>", "84", answer=None) == [
        ("<result>1</result>", None, False),
        (None, None, True),
    ]
