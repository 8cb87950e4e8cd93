"""Rankings as token rows: what is read, padded and refused."""

import numpy as np
import pytest

from rlhf_jax.data.rankings import RankedSet, read_judged
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.types import replace

TOKENIZER = byte_tokenizer()
ROWS = [
    {"prompt": "p", "completions": ["a", "bb", "ccc"], "ranks": [2, 1, 1]},
    {"prompt": "qq", "chosen": "d", "rejected": "e"},
    {"prompt": "r", "completions": ["f", "g"], "scores": [0.5, 0.25]},
]


def ids(text):
    return [3 + byte for byte in text.encode()]


def read(rows=ROWS, max_tokens=8, **options):
    return RankedSet.from_rows(rows, TOKENIZER, max_tokens=max_tokens, **options)


def test_a_batch():
    batch = read().take(np.array([0, 1, 2]))
    assert batch.tokens_BST.shape == (3, 3, 8) and batch.margin_BSS is None
    assert batch.valid_BS.tolist() == [[1, 1, 1], [1, 1, 0], [1, 1, 0]]
    # places: how many are better; of scores, the higher is better
    assert batch.rank_BS[batch.valid_BS].tolist() == [2, 0, 0, 0, 1, 0, 1]
    rows = batch.tokens_BST[batch.valid_BS]
    attend = batch.attend_BST[batch.valid_BS]
    assert [row[on].tolist() for row, on in zip(rows, attend, strict=True)] == [
        [1, *ids(text), 2] for text in ("pa", "pbb", "pccc", "qqd", "qqe", "rf", "rg")
    ]
    # on the right, and nothing of a completion that does not exist
    assert attend[:, 0].all() and not batch.attend_BST[~batch.valid_BS].any()


def test_margins():
    matrix = [[0, 1, 2], [1, 0, 3], [2, 3, 0]]
    rows = [{**ROWS[0], "margin": matrix}, *({**row, "margin": 0.5} for row in ROWS[1:])]
    margin_BSS = read(rows).take(np.arange(3)).margin_BSS
    np.testing.assert_array_equal(margin_BSS[0], matrix)
    np.testing.assert_array_equal(margin_BSS[1, :2, :2], 0.5)
    assert not margin_BSS[1, 2].any() and not margin_BSS[1, :, 2].any()


@pytest.mark.parametrize(
    ("over_long", "kept", "num_cut"),
    [
        ("drop", [["px", "py"]], 0),
        ("left", [["ongpx", "ngpyy"], ["px", "py"]], 1),
        ("right", [["px", "py"], ["pqrx", "pqry"]], 1),
    ],
)
def test_over_long(over_long, kept, num_cut):
    """Room for six tokens, of which BOS and the end are two."""
    rows = [
        {"prompt": "longp", "completions": ["x", "yy"], "ranks": [0, 1]},
        {"prompt": "p", "completions": ["x", "y"], "ranks": [0, 1]},
        {"prompt": "pqr", "completions": ["xxxx", "yyyyy"], "ranks": [0, 1]},
    ]
    data = read(rows, max_tokens=6, over_long=over_long)
    assert (len(data), data.num_dropped, data.num_cut) == (len(kept), 3 - len(kept), num_cut)
    for row, texts in zip(data.ids, kept, strict=True):
        for found, text in zip(row, texts, strict=True):
            # whatever is cut, the end token is kept: the score is read there
            assert found == [*([1] if found[0] == 1 else []), *ids(text), 2]
            assert len(found) <= 6


def test_every_row_is_too_long():
    with pytest.raises(ConfigError, match="every row is longer than 3 tokens"):
        read(max_tokens=3, over_long="drop")


def test_a_completion_is_dropped_and_the_others_stay():
    row = {"prompt": "p", "completions": ["a", "bbbbbb", "c"], "ranks": [1, 0, 2], "margin": 1}
    row["margin"] = [[0, 1, 2], [3, 0, 4], [5, 6, 0]]
    data = read([row], max_tokens=5, over_long="drop")
    batch = data.take(np.array([0]))
    assert batch.rank_BS.tolist() == [[1, 2]]
    assert batch.margin_BSS.tolist() == [[[0, 2], [5, 0]]]


def test_the_fingerprint_changes_with_texts_ranks_margins_and_order():
    other = [
        ROWS,
        ROWS[::-1],
        [{**ROWS[0], "ranks": [1, 2, 2]}, *ROWS[1:]],
        [{**ROWS[0], "completions": ["a", "bb", "ccd"]}, *ROWS[1:]],
        [{**row, "margin": 0.5} for row in ROWS],
        [{**row, "margin": 0.25} for row in ROWS],
    ]
    assert len({read(rows).fingerprint for rows in other}) == len(other)


def test_batches_are_those_of_the_seed():
    data = read(ROWS * 4)
    same, again, other = (data.batches(6, seed)[1].tokens_BST for seed in (0, 0, 1))
    assert (same == again).all() and (same != other).any()
    batch, weight_B = list(data.in_order(8))[1]
    assert batch.rank_BS.shape == (8, 3) and weight_B.sum() == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": None}, "row 1: 'prompt' is None, not a string"),
        ({"completions": ["a"]}, "not a list of at least two texts"),
        ({"completions": ["a", 3, "c"]}, "'completion' is 3"),
        ({"completions": ["a", "\ud800", "c"]}, "surrogate"),
        ({"ranks": [1, 2]}, r"'ranks' is \[1, 2\], not a list of 3 numbers"),
        ({"ranks": [1, 2, "3"]}, "'ranks'='3' is not a finite number"),
        ({"ranks": [1, 2, float("nan")]}, "not a finite number"),
        ({"margin": -1.0}, "row 0: 'margin' is None"),
        ({"completions": ["a", "b" * 9, "c"]}, "row 1 has 12 tokens, more than max_tokens=8"),
    ],
)
def test_a_row_that_cannot_be_used(change, message):
    with pytest.raises(ConfigError, match=message):
        read([ROWS[1], {**ROWS[0], **change}])


@pytest.mark.parametrize("margin", [-1.0, float("nan"), [1, 2, 3], [[1, 2], [3, 4]], "much"])
def test_a_margin_that_is_none(margin):
    with pytest.raises(ConfigError, match=r"row 0: 'margin' is .*3 x 3"):
        read([{**ROWS[0], "margin": margin}])


def test_no_rows():
    with pytest.raises(ConfigError, match="rankings: there are no rows"):
        read([])
    with pytest.raises(ConfigError, match="'completions' is None"):
        read([{"prompt": "p", "completion": "a"}])


def test_single_texts_are_read_alike():
    rows = [{"prompt": "p", "completion": "aa"}, {"prompt": "q", "completion": "b" * 9}]
    options = dict(max_tokens=8, name="reference texts")
    assert read_judged(rows, TOKENIZER, over_long="drop", **options) == [[1, *ids("paa"), 2]]
    with pytest.raises(ConfigError, match="reference texts: row 1 has 12 tokens"):
        read_judged(rows, TOKENIZER, over_long="error", **options)
    with pytest.raises(ConfigError, match="row 0: 'completion' is None"):
        read_judged([{"prompt": "p"}], TOKENIZER, over_long="error", **options)


def test_where_pad_is_the_end_the_end_is_still_attended():
    tokenizer = byte_tokenizer()
    tokenizer.pad_id = tokenizer.eos_id
    data = RankedSet.from_rows(ROWS, tokenizer, max_tokens=8)
    with_pad, without = data.take(np.arange(3)), read().take(np.arange(3))
    np.testing.assert_array_equal(with_pad.attend_BST, without.attend_BST)
    assert (with_pad.tokens_BST[~with_pad.attend_BST] == 2).all()
    assert replace(with_pad, tokens_BST=without.tokens_BST).attend_BST.any()
