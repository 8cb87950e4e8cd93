"""The reference's log-probs on disk: asked once, told apart by what they are of, never damaged."""

import numpy as np
import pytest

from rlhf_jax.train.reference import cached_logprobs

KEY = {"model": "m", "rows": "r", "compute_dtype": "float32"}


class Asked:
    """Counts how often it is asked; another answer each time."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        draw = np.random.default_rng(self.times)
        return [draw.normal(size=(5, 2)).astype(np.float32), np.float32([self.times, np.pi])]


def same(a, b):
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_it_is_asked_once_and_answers_to_the_bit(tmp_path):
    ask = Asked()
    first = cached_logprobs(tmp_path / "new" / "folder", KEY, ask)
    again = cached_logprobs(tmp_path / "new" / "folder", dict(reversed(KEY.items())), ask)
    assert ask.times == 1 and same(first, again)
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 1  # nothing half-written stays


@pytest.mark.parametrize("name", KEY)
def test_what_it_is_of_tells_it_apart(tmp_path, name):
    ask = Asked()
    first = cached_logprobs(tmp_path, KEY, ask)
    other = cached_logprobs(tmp_path, {**KEY, name: "another"}, ask)
    assert ask.times == 2 and not same(first, other)
    assert same(cached_logprobs(tmp_path, KEY, ask), first)


def flip_a_bit(data):
    at = len(data) // 3
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "damage",
    [flip_a_bit, lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"junk" * 99],
    ids=["a flipped bit", "cut short", "empty", "something else"],
)
def test_a_damaged_file_is_told_and_made_anew(tmp_path, damage, caplog):
    ask = Asked()
    cached_logprobs(tmp_path, KEY, ask)
    (file,) = tmp_path.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    second = cached_logprobs(tmp_path, KEY, ask)
    assert ask.times == 2 and f"{file} is damaged: asking the reference anew" in caplog.text
    assert same(cached_logprobs(tmp_path, KEY, ask), second) and ask.times == 2


def test_the_file_of_another_key_under_this_name_is_not_taken(tmp_path):
    ask = Asked()
    cached_logprobs(tmp_path, KEY, ask)
    (file,) = tmp_path.iterdir()
    cached_logprobs(tmp_path / "b", {**KEY, "model": "another"}, ask)
    (other,) = (tmp_path / "b").iterdir()
    file.write_bytes(other.read_bytes())
    cached_logprobs(tmp_path, KEY, ask)
    assert ask.times == 3
