import gzip

import pytest

from rlhf_jax.data.stories import find_stories, story_continuations, story_openings
from rlhf_jax.errors import ConfigError

TEXT = """and the end of a story cut in half.

Once upon a time, there was a red kite in a tree.

The kite said, once upon a time I could fly so high.

Once there was an old clock. It was late.

Once upon a time, there was a red kite on a roof.

Once upon a time.

Once he was home, he told of a kite in the tree.

Once,
two snails ran a race in the wet grass.
"""


def test_openings_are_the_beginnings_of_stories_each_once():
    assert list(find_stories(TEXT, words=8)) == [
        "Once upon a time, there was a red",
        "Once there was an old clock. It was",
        "Once, two snails ran a race in the",
    ]
    # the two kites differ now, and the other two stories are no longer than the opening
    assert [text[-2:] for text in find_stories(TEXT, words=10)] == ["in", "on"]


def test_a_story_goes_on_to_the_next_one():
    assert list(find_stories(TEXT, words=8).values()) == [
        " kite in a tree.\n\nThe kite said, once upon a time I could fly so high.",
        " late.",
        " wet grass.",
    ]


def test_continuations_are_of_the_same_openings(tmp_path):
    stories = [f"Once upon a time, animal {i} went out.\n\nIt came back {i}." for i in range(12)]
    file = tmp_path / "a.txt"
    file.write_text("\n\n".join(stories))
    options = dict(path=str(file), words=6, held_out=4)
    train, held_out = story_openings(**options)
    for part, openings in (("train", train), ("held_out", held_out)):
        rows = story_continuations(part=part, **options)
        assert [row["prompt"] for row in rows] == [row["prompt"] for row in openings]
        for row in rows:
            assert row["prompt"] + row["completion"] in stories
    with pytest.raises(ConfigError, match="part='test'"):
        story_continuations(part="test", **options)


def test_held_out_by_content(tmp_path):
    paragraphs = [f"Once upon a time, animal number {i} went out to play." for i in range(30)]
    a, b = tmp_path / "a.txt", tmp_path / "b.txt"
    a.write_text("\n\n".join(paragraphs))
    b.write_text("\n\n".join(reversed(paragraphs)))
    train, held_out = story_openings(path=str(a), words=8, held_out=10)
    assert (len(train), len(held_out)) == (20, 10)
    prompts = {row["prompt"] for row in train + held_out}
    assert len(prompts) == 30
    assert story_openings(path=str(b), words=8, held_out=10) == (train, held_out)
    with pytest.raises(ConfigError, match="30 distinct openings of 8 words, too few"):
        story_openings(path=str(a), words=8, held_out=30)


def test_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="is not a file"):
        story_openings(path=str(tmp_path / "none.txt"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(gzip.compress(TEXT.encode()), "gzip-compressed"), (b"Once\n\n\xe9", r":3 .* at byte 6")],
)
def test_what_is_no_text(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"a\.txt.*{message}"):
        story_openings(path=str(tmp_path / "a.txt"))


def test_a_byte_order_mark(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("Once upon a time, x\n\nOnce there was a y\n", encoding="utf-8-sig")
    train, held_out = story_openings(path=str(file), words=4, held_out=1)
    openings = sorted(row["prompt"] for row in train + held_out)
    assert openings == ["Once there was a", "Once upon a time,"]


def test_the_real_text(stories_text):
    train, held_out = story_openings(path=str(stories_text))
    assert len(held_out) == 100
    assert len(train) >= 550
    assert not {r["prompt"] for r in train} & {r["prompt"] for r in held_out}
    assert all(row["prompt"].startswith("Once") for row in train + held_out)
    assert all(len(row["prompt"].split()) == 16 for row in train)
