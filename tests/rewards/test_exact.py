from rlhf_jax.rewards.exact import exact_answer


def test_whole_answer_or_nothing():
    completions = ["72", " 72\n", "172", "72 7", "", "7 2"]
    rows = [{"answer": "72"}] * len(completions)
    assert exact_answer(["27+45="] * 6, completions, rows) == [1, 1, 0, 0, 0, 0]


def test_an_answer_in_the_prompt_does_not_count():
    assert exact_answer(["the answer is 72:"], [""], [{"answer": "72"}]) == [0]


def test_a_row_that_cannot_be_judged_is_none():
    rows = [{}, {"answer": None}, {"answer": "  "}, {"answer": 3}, {"answer": "3"}]
    assert exact_answer(["p"] * 5, ["3"] * 5, rows) == [None, None, None, None, 1]
