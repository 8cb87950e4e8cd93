import threading

import pytest

from rlhf_jax.rewards.sentiment import vader, vader_sentences


def test_known_scores():
    """The example sentences and scores of the lexicon's own documentation."""
    prompts = ["VADER is smart, handsome, ", "The book was ", "", "Today SUX!"]
    completions = ["and funny.", "good.", "At least it isn't a horrible book.", ""]
    scores = vader(prompts, completions, [{}] * 4)
    assert scores == pytest.approx([0.8316, 0.4404, 0.431, -0.5461], abs=1e-4)


def test_prompt_and_completion_are_one_text():
    (together,) = vader(["The day was not"], [" good."], [{}])
    assert together < 0 < vader([""], [" good."], [{}])[0]


def test_empty_text_and_threads():
    found = []
    thread = threading.Thread(target=lambda: found.extend(vader(["", "a"], ["", ""], [{}, {}])))
    thread.start()
    thread.join()
    assert found == [0, 0]


def test_sentences_are_steps():
    (steps,) = vader_sentences([""], [' She was happy! He cried: "I am sad." And'], [{}])
    assert [end for end, _ in steps] == [15, 37, 41]
    assert steps[0][1] > 0 > steps[1][1] and steps[2][1] == 0
    assert vader_sentences(["", ""], ["", "..."], [{}, {}]) == [[], [(3, 0.0)]]
