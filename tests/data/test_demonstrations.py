import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.padding import cut_learnt
from rlhf_jax.errors import ConfigError


def demonstrations(pairs, length=8, tokenizer=None, **options):
    rows = [{"prompt": p, "completion": c} for p, c in pairs]
    tokenizer = tokenizer or CharacterTokenizer()
    return DemonstrationSet.from_rows(rows, tokenizer, max_tokens=length, **options)


def test_prompt_completion_end():
    batch = demonstrations([("ab", "c"), ("d", "efg")]).take(np.array([0, 1]))
    a = ord("a") + 10
    assert batch.tokens_BT.tolist() == [
        [1, a, a + 1, a + 2, 2, 0, 0, 0],
        [1, a + 3, a + 4, a + 5, a + 6, 2, 0, 0],
    ]
    assert batch.attend_BT.astype(int).tolist() == [[1] * 5 + [0] * 3, [1] * 6 + [0] * 2]
    assert batch.mask_BT.astype(int).tolist() == [
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0] + [1] * 4 + [0] * 2,
    ]


def test_pad_equal_to_end_still_learns_the_end():
    """Ids [5, 7, 2, pad, pad] with pad = end = 2: the mask comes from lengths."""
    tokenizer = CharacterTokenizer(pad_id=2, bos_id=None, end_ids=(2,))
    batch = demonstrations([("a", "b")], length=5, tokenizer=tokenizer).take(np.array([0]))
    assert batch.tokens_BT[0, 2:].tolist() == [2, 2, 2]
    assert batch.mask_BT.astype(int).tolist() == [[0, 1, 1, 0, 0]]


def test_end_is_not_doubled():
    assert demonstrations([("a", "b\x02")]).ids == demonstrations([("a", "b")]).ids
    assert demonstrations([("a", "")]).ids[0][-1:] == [2]


@pytest.mark.parametrize(
    ("prompt", "completion", "limit", "side", "right"),
    [
        # exactly the surplus goes, not a whole prompt budget
        (8, 3, 10, "left", (7, 3)),
        (8, 3, 10, "right", (8, 2)),
        (8, 3, 11, "left", (8, 3)),
        # nothing to learn, or nothing to predict from
        (6, 3, 5, "right", None),
        (6, 3, 6, "right", None),
        (6, 3, 3, "left", None),
        (6, 3, 4, "left", (1, 3)),
    ],
)
def test_cut(prompt, completion, limit, side, right):
    ids = list(range(prompt + completion))
    cut = cut_learnt(ids, [False] * prompt + [True] * completion, limit, side)
    assert (cut and (cut[1].count(False), cut[1].count(True))) == right
    if cut:
        assert cut[0] == (ids[-limit:] if side == "left" else ids[:limit])


def test_a_left_cut_inside_a_turn_reads_its_rest_and_learns_the_next():
    learn = [bool(int(x)) for x in "0011100110"]
    assert cut_learnt(list(range(10)), learn, 7, "left") == (
        [3, 4, 5, 6, 7, 8, 9],
        [bool(int(x)) for x in "0000110"],
    )


def test_rows_that_vanish_are_dropped_and_counted(caplog):
    pairs = [("a", "b"), ("abcdefgh", "i"), ("abc", "defgh")]
    kept = demonstrations(pairs, length=6, over_long="right")
    assert (len(kept), kept.num_dropped, kept.num_cut) == (2, 1, 1)
    assert "1 of 3 rows dropped, 1 cut" in caplog.text
    mask_BT = kept.take(np.array([0, 1])).mask_BT
    assert mask_BT.any(axis=1).all()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "there are no rows"),
        ([("a", "b"), ("a", 3)], "row 1: 'completion' is 3"),
        ([("a", "b"), ("a", "\ud800")], "row 1: 'completion' holds half of a surrogate"),
        ([("a", "bcdefgh")], "row 0 has 10 tokens, more than max_tokens=8"),
    ],
)
def test_bad_rows(pairs, message):
    with pytest.raises(ConfigError, match=message):
        demonstrations(pairs)


def test_no_row_fits():
    with pytest.raises(ConfigError, match="every row is longer than 3 tokens"):
        demonstrations([("abc", "d")], length=3, over_long="drop")


def test_batches_are_a_function_of_seed_and_step():
    pairs = [(chr(97 + i), chr(65 + i)) for i in range(7)]
    batches = demonstrations(pairs).batches(3, seed=1)
    again = demonstrations(pairs).batches(3, seed=1)
    np.testing.assert_array_equal(batches[4].tokens_BT, again[4].tokens_BT)
    assert batches[0].tokens_BT.shape == (3, 8)
    assert not np.array_equal(batches[0].tokens_BT, batches[1].tokens_BT)


def test_fingerprint_sees_where_the_completion_begins():
    pairs = [("ab", "cd"), ("e", "f")]
    seen = [
        demonstrations(rows).fingerprint
        for rows in (pairs, [("a", "bcd"), ("e", "f")], pairs[::-1], pairs[:1])
    ]
    assert len(set(seen)) == 4
    assert demonstrations(pairs).fingerprint == seen[0]


class SpaceFirst(CharacterTokenizer):
    """Puts a space before every text, as tokenizers of the sentencepiece kind do."""

    def encode(self, text, add_bos=None):
        return super().encode(f" {text}", add_bos)


def test_a_completion_follows_its_prompt_without_a_second_space():
    space = ord(" ") + 10
    (ids,) = demonstrations([("a", " b")], tokenizer=SpaceFirst()).ids
    assert ids == [1, space, ord("a") + 10, space, ord("b") + 10, 2]
