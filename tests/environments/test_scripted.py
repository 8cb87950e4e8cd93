"""A teacher's turns as demonstrations: the ids that a sampled dialogue would have."""

from rlhf_jax.bind import bind
from rlhf_jax.data.encode import encode_row
from rlhf_jax.environments.guessing import Guessing
from rlhf_jax.environments.scripted import scripted_turns
from rlhf_jax.models.tokenizer import byte_tokenizer

TOKENIZER = byte_tokenizer()
BOS, EOS = 1, 2


def halving(row, told, rng):
    return ["50", "25", "42", "43"][len(told)]


def ids(text):
    return [3 + byte for byte in text.encode()]


def turns(number, *, max_turns=4, teacher=halving, **options):
    rows = [{"prompt": "?", "number": number}]
    options = dict(max_turns=max_turns, seed=0) | options
    return scripted_turns(bind(Guessing), rows, teacher, TOKENIZER, **options)


def test_every_turn_is_a_row_with_all_before_it():
    rows = turns(42)
    assert [row["completion"] for row in rows] == ["50", "25", "42"]
    first = [BOS, *ids("?")]
    second = [*first, *ids("50"), EOS, *ids("<")]
    third = [*second, *ids("25"), EOS, *ids(">")]
    assert [row["prompt_ids"] for row in rows] == [first, second, third]
    # imitated as they stand, with one end
    for row in rows:
        prompt, (completion,) = encode_row(row, TOKENIZER, "here")
        assert prompt == row["prompt_ids"] and completion == [*ids(row["completion"]), EOS]


def test_it_ends_with_the_environment_or_the_limit():
    assert len(turns(50)) == 1 and len(turns(7)) == 4 and len(turns(7, max_turns=2)) == 2
    assert turns(42, draws=2) == turns(42) * 2


def any_number(row, told, rng):
    return str(rng.integers(100))


def test_the_same_seed_says_the_same():
    one, same, other = (turns(7, teacher=any_number, seed=seed) for seed in (0, 0, 1))
    assert one == same != other
