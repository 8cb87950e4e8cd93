"""Packed rows: whole documents, each its own segment, none too many."""

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.bind import bind
from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.mixture import mixture
from rlhf_jax.data.packing import PackedDemonstrations, best_fit
from rlhf_jax.errors import ConfigError


@pytest.mark.parametrize(
    ("lengths", "capacity", "bins"),
    [
        ([3, 3, 4, 1], 6, [[2, 3], [0, 1]]),
        ([5, 4, 3, 2, 2], 8, [[0, 2], [1, 3, 4]]),
        ([8, 8], 8, [[0], [1]]),
        ([], 8, []),
    ],
)
def test_best_fit(lengths, capacity, bins):
    assert best_fit(lengths, capacity) == bins


def test_best_fit_holds_each_document_once_and_is_nearly_full():
    lengths = np.random.default_rng(0).integers(1, 200, 3000).tolist()
    bins = best_fit(lengths, 256)
    assert sorted(i for row in bins for i in row) == list(range(3000))
    assert max(sum(lengths[i] for i in row) for row in bins) <= 256
    assert sum(lengths) / (256 * len(bins)) > 0.98
    with pytest.raises(ConfigError, match="document 1 has 9 tokens"):
        best_fit([1, 9], 8)


def sets(length=8):
    rows = [{"prompt": "a", "completion": "b"}, {"prompt": "c", "completion": ""}]
    return DemonstrationSet.from_rows(rows, CharacterTokenizer(), max_tokens=length)


def test_a_packed_row():
    packed = PackedDemonstrations.of(sets())
    batch = packed.take(np.array([0]))
    a = ord("a") + 10
    assert batch.tokens_BT.tolist() == [[1, a, a + 1, 2, 1, a + 2, 2, 0]]
    assert batch.segment_BT.tolist() == [[1, 1, 1, 1, 2, 2, 2, 0]]
    assert batch.attend_BT.astype(int).tolist() == [[1] * 7 + [0]]
    assert batch.mask_BT.astype(int).tolist() == [[0, 0, 1, 1, 0, 0, 1, 0]]
    assert packed.fingerprint != PackedDemonstrations.of(sets(7)).fingerprint or len(packed) == 1


def test_no_document_begins_with_a_token_to_learn():
    """It would be scored from the last token of the document before."""
    batch = PackedDemonstrations.of(sets()).take(np.array([0]))
    opens_BT = np.diff(batch.segment_BT, axis=1, prepend=0) > 0
    assert opens_BT.sum() == 2
    assert not (opens_BT & batch.mask_BT).any()


def some():
    return [{"prompt": "a", "completion": "b"}] * 4


def test_a_mixture_is_not_packed():
    part = bind(some)
    rows = mixture(parts=(part, part), weights=(1.0, 1.0))
    data = DemonstrationSet.from_rows(rows, CharacterTokenizer(), max_tokens=8)
    with pytest.raises(ConfigError, match="cannot be packed"):
        PackedDemonstrations.of(data)
