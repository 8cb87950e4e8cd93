import pytest

from rlhf_jax.bind import bind
from rlhf_jax.errors import ConfigError
from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.format import (
    json_format,
    length_penalty,
    matches,
    repetition_penalty,
    think_format,
)


def score(reward, *completions, prompt="?"):
    rows = [{} for _ in completions]
    return reward([prompt] * len(rows), list(completions), rows)


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("<think>a</think>b", 1),
        ("<think>\na\n</think>\nb", 1),
        ("<think></think>b", 1),
        ("<think>a", 0),
        ("<think>a<think>b</think>c", 0),
        ("<think>a</think><think>b</think>c", 0),
        ("text<think>a</think>b", 0),
        (" <think>a</think>b", 0),
        ("</think>a<think>b", 0),
        ("<think>a</think>b</think>", 0),
        ("<think>a</think>", 0),
        ("<think>a</think> \n", 0),
        ("", 0),
    ],
)
def test_trl_think_format(text, valid):
    assert score(think_format, text) == [valid]
    opened = bind(think_format, opened=True)
    assert score(opened, text.removeprefix("<think>")) == [valid] or not text.startswith("<think>")


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("<think>a</think>\n<answer>b\nc</answer>\n", 1),
        ("<think>a</think>so <answer>b</answer>", 0),
        ("<think>a</think><answer> </answer>", 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0),
        ("<answer>b</answer>", 0),
    ],
)
def test_answer_tags(text, valid):
    assert score(bind(think_format, answer_tag=True), text) == [valid]


def test_verl_459_an_example_in_the_prompt_earns_nothing():
    prompt = "Write <think>...</think><answer>...</answer>"
    assert score(bind(think_format, answer_tag=True), "four", prompt=prompt) == [0]


def test_a_pattern_is_matched_against_the_whole_and_a_slow_one_ends():
    reward = bind(matches, pattern=r"(a+)+b.*")
    found = score_completions(
        [reward], None, ["?"] * 3, ["aab\nc", "xaab", "a" * 5000], [{}, {}, {}]
    )
    assert found.score_BC[:, 0].tolist() == [1, 0, 0]
    with pytest.raises(ConfigError, match=r"pattern='\(' is no regular expression"):
        score(bind(matches, pattern="("), "a")


def test_a_match_that_takes_for_ever_is_counted():
    slow = bind(matches, pattern=r"(?:(a+)\1*)+c")
    found = score_completions([slow], None, ["?"], ["a" * 60 + "d"], [{}])
    assert found.score_BC[0, 0] == 0 and found.numbers["reward_timeouts/matches"] == 1


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ('{"a": [1, null]}', 1),
        (" 3 ", 1),
        ("```json\n{}\n```", 1),
        ("Here:\n```\n[1]\n```\n", 1),
        ("```json\n{}\n```\n```json\n{}\n```", 0),
        ('{"a": NaN}', 0),
        ('{"a": 1, "a": 2}', 0),
        ("{'a': 1}", 0),
        ("{} and more", 0),
        ("[" * 100_000, 0),
        ("", 0),
    ],
)
def test_json(text, valid):
    assert score(json_format, text) == [valid]


def test_length_penalty():
    reward = bind(length_penalty, free=2, limit=6)
    assert score(reward, "", "ab", "abc", "abcd", "abcdef", "a" * 99) == [0, 0, -0.25, -0.5, -1, -1]
    words = bind(length_penalty, free=0, limit=2, unit="words")
    assert score(words, "", "a", "a b c d") == [0, -0.5, -1]
    for bad in ({"free": 5, "limit": 5}, {"free": -1, "limit": 5}):
        with pytest.raises(ConfigError):
            score(bind(length_penalty, **bad), "a")
    with pytest.raises(ConfigError, match="unit='tokens' is unknown"):
        score(bind(length_penalty, free=0, limit=1, unit="tokens"), "a")


def test_repetition_penalty():
    # a b c a b c: the trigrams abc bca cab abc, three of four distinct
    assert score(repetition_penalty, "a b c A b c", "a b c d", "a b", "") == [-0.25, 0, 0, 0]
    assert score(bind(repetition_penalty, ngram=1), "x x x x") == [-0.75]
