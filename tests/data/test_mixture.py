"""Mixtures hold their shares in every batch; no order depends on hosts or where it began."""

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.bind import bind
from rlhf_jax.data.mixture import MixedRows, mixture
from rlhf_jax.data.order import ahead, rows_of_host
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError


def letters(*, of: str):
    return [{"prompt": letter} for letter in of]


LOW, HIGH = "abcdefghijkl", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def prompts(weights=(3.0, 1.0), **options):
    rows = mixture(parts=(bind(letters, of=LOW), bind(letters, of=HIGH)), weights=weights)
    return PromptSet.from_rows(rows, CharacterTokenizer(), **{"max_prompt_tokens": 4, **options})


def test_every_batch_holds_the_shares_and_no_prompt_twice():
    batches = prompts().batches(8, seed=1)
    seen = [batches[step].texts for step in range(52)]
    for texts in seen:
        assert sum(text in LOW for text in texts) == 6
        assert len(set(texts)) == 8
    first, second = (sorted("".join(seen[i] + seen[i + 1])) for i in (0, 2))
    assert [x for x in first if x in LOW] == [x for x in second if x in LOW] == list(LOW)
    high = [[x for texts in seen[i : i + 13] for x in texts if x in HIGH] for i in (0, 13)]
    assert sorted(high[0]) == sorted(high[1]) == list(HIGH), "an epoch of 26 rows, two a batch"
    assert high[0] != high[1]


def test_open_instruct_560_the_order_is_shuffled_and_a_function_of_the_seed():
    data = PromptSet.from_rows(letters(of=LOW), CharacterTokenizer(), max_prompt_tokens=4)
    for rows in (data, prompts()):
        order = [rows.batches(4, seed=seed)[0].texts for seed in (0, 0, 1)]
        assert order[0] == order[1] != order[2]
        assert order[0] != sorted(order[0])


@pytest.mark.parametrize(
    ("weights", "batch", "counts"),
    [((0.7, 0.3), 8, [6, 2]), ((1, 1), 7, [4, 3]), ((2, 1), 9, [6, 3]), ((0.55, 0.45), 2, [1, 1])],
)
def test_rounded_to_whole_rows(weights, batch, counts):
    assert prompts(weights).shares.rows_of(batch) == counts


def test_rows_left_out_move_no_row_to_another_dataset():
    rows = MixedRows([letters(of=["aaaaaa", "b", "c"]), letters(of="DE")], (1, 1))
    data = PromptSet.from_rows(rows, CharacterTokenizer(), max_prompt_tokens=3, over_long="drop")
    assert [[data.texts[i] for i in member] for member in data.shares.members] == [
        ["b", "c"],
        ["D", "E"],
    ]


@pytest.mark.parametrize(
    ("weights", "batch", "message"),
    [
        ((1000, 1), 8, "dataset 1 of the mixture has 26 rows and a share of 0"),
        ((3, 1), 20, "dataset 0 of the mixture has 12 rows and a share of 15"),
    ],
)
def test_shares_that_cannot_be_had(weights, batch, message):
    with pytest.raises(ConfigError, match=message):
        prompts(weights).batches(batch, seed=0)


def test_mixtures_that_are_none():
    with pytest.raises(ConfigError, match="2 datasets has 1 weights"):
        prompts((1.0,))
    with pytest.raises(ConfigError, match=r"weights\[1\]"):
        prompts((1.0, 0.0))
    with pytest.raises(ConfigError, match="dataset 1 of the mixture: no row of it is left"):
        rows = MixedRows([letters(of="a"), letters(of=["bbbbbb"])], (1, 1))
        PromptSet.from_rows(rows, CharacterTokenizer(), max_prompt_tokens=3, over_long="drop")


@pytest.mark.parametrize("first", [0, 5])
def test_begun_anywhere_the_same_batches_come(first):
    batches = prompts().batches(8, seed=3)
    with ahead(batches, first) as feed:
        came = [next(feed).texts for _ in range(4)]
    assert came == [batches[step].texts for step in range(first, first + 4)]


def test_batches_come_ahead_and_end():
    made = []

    class Batches:
        def __len__(self):
            return 3

        def __getitem__(self, step):
            made.append(step)
            return step

    with ahead(Batches(), 0) as feed:
        assert next(feed) == 0
    assert made == [0, 1], "the next one is made while this one is worked on"
    with ahead(Batches(), 0) as feed:
        assert list(feed) == [0, 1, 2]


@pytest.mark.parametrize("hosts", [1, 2, 4, 8])
def test_hosts_share_one_order(hosts):
    batches = prompts().batches(8, seed=0)
    tokens = [rows_of_host(batches[2].tokens_PL, host, hosts) for host in range(hosts)]
    np.testing.assert_array_equal(np.concatenate(tokens), batches[2].tokens_PL)
    assert {len(part) for part in tokens} == {8 // hosts}
    with pytest.raises(ConfigError, match="hosts"):
        rows_of_host(batches[2].tokens_PL, 0, 3)
