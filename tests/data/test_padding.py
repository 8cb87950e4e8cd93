import numpy as np
import pytest

from rlhf_jax.data.padding import pad_left, pad_right


def test_left_and_right():
    rows = [[3, 4], [5, 6, 7], []]
    tokens, attend = pad_left(rows, 3, 9)
    assert tokens.tolist() == [[9, 3, 4], [5, 6, 7], [9, 9, 9]]
    assert attend.tolist() == [[False, True, True], [True] * 3, [False] * 3]
    tokens, attend = pad_right(rows, 3, 9)
    assert tokens.tolist() == [[3, 4, 9], [5, 6, 7], [9, 9, 9]]
    assert attend.tolist() == [[True, True, False], [True] * 3, [False] * 3]
    assert tokens.dtype == np.int32 and attend.dtype == bool


def test_a_pad_token_in_the_text_is_attended():
    _, attend = pad_left([[0, 3, 0]], 4, 0)
    assert attend.tolist() == [[False, True, True, True]]


@pytest.mark.parametrize("pad", [pad_left, pad_right])
def test_nothing_is_cut_silently(pad):
    with pytest.raises(ValueError, match="row 1 has 3 tokens, more than the 2"):
        pad([[1], [1, 2, 3]], 2, 0)
