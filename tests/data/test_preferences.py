import json

import numpy as np
import pytest
from character_tokenizer import CharacterTokenizer

from rlhf_jax.data.preferences import PreferenceSet, jsonl_pairs, split_rendered
from rlhf_jax.data.unpaired import UnpairedSet
from rlhf_jax.errors import ConfigError

A = ord("a") + 10  # the id of "a"; CharacterTokenizer begins a prompt with 1 and ends with 2


def pairs(rows, length=8, tokenizer=None, **options):
    rows = [
        row
        if isinstance(row, dict)
        else dict(zip(("prompt", "chosen", "rejected"), row, strict=False))
        for row in rows
    ]
    tokenizer = tokenizer or CharacterTokenizer()
    return PreferenceSet.from_rows(rows, tokenizer, max_tokens=length, **options)


def labels(rows, length=8, **options):
    rows = [dict(zip(("prompt", "completion", "label"), row, strict=False)) for row in rows]
    return UnpairedSet.from_rows(rows, CharacterTokenizer(), max_tokens=length, **options)


def test_both_sides_of_a_pair_stand_in_one_row():
    batch = pairs([("ab", "c", "de"), ("d", "efg", "")]).take(np.array([0, 1]))
    assert batch.tokens_BST.shape == (2, 2, 8)
    assert batch.tokens_BST[0].tolist() == [
        [1, A, A + 1, A + 2, 2, 0, 0, 0],
        [1, A, A + 1, A + 3, A + 4, 2, 0, 0],
    ]
    assert batch.attend_BST[0].sum(axis=1).tolist() == [5, 6]
    assert batch.mask_BST[0].astype(int).tolist() == [
        [0, 0, 0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 1, 1, 0, 0],
    ]
    assert batch.mask_BST.sum(axis=2).tolist() == [[2, 3], [4, 1]]  # each with its end
    assert batch.weight_B is None and batch.logp_ref_BS is None


def test_trl_6320_a_pair_without_a_completion_token_is_dropped_and_counted(caplog):
    # begin + 5 + completion of 3 in 5 columns, the end cut: nothing of it would be left
    kept = pairs([("abcde", "fg", "h"), ("a", "b", "c")], length=5, over_long="right")
    assert (len(kept), kept.num_dropped, kept.num_cut) == (1, 1, 0)
    assert "1 of 2 rows dropped" in caplog.text
    assert kept.take(np.array([0])).mask_BST.any(axis=2).all()


def test_trl_2209_exactly_the_surplus_is_cut_off_one_prompt_for_both_sides():
    # begin + 7 and a longer side of 3: one token too many for 10 columns, so 10 are kept
    (cut,) = (pairs([("abcdefg", "hi", "j")], length=10, over_long="left"),)
    assert cut.num_cut == 1
    assert cut.prompts == [[A + i for i in range(7)]]
    tokens_ST = cut.take(np.array([0])).tokens_BST[0]
    assert (tokens_ST[0, :7] == tokens_ST[1, :7]).all()
    assert (tokens_ST[0] != 0).sum() == 10 and (tokens_ST[1] != 0).sum() == 9


def test_right_cuts_each_side_that_is_too_long():
    cut = pairs([("ab", "cdef", "g")], length=6, over_long="right")
    assert cut.prompts == [[1, A, A + 1]]
    assert cut.completions == [[[A + 2, A + 3, A + 4], [A + 6, 2]]]


@pytest.mark.parametrize("prompt", ["U:hi A:<think>", None])
def test_trl_6433_a_rendered_prompt_that_is_no_prefix(prompt, tmp_path):
    chosen, rejected = "U:hi A:ok", "U:hi A:<think>no"
    shared, sides = split_rendered(chosen, rejected, prompt=prompt)
    assert (shared, sides) == ("U:hi A:", ("ok", "<think>no"))
    file = tmp_path / "pairs.jsonl"
    row = {"chosen": chosen, "rejected": rejected} | ({"prompt": prompt} if prompt else {})
    file.write_text(json.dumps(row) + "\n")
    (row,) = jsonl_pairs(path=str(file), rendered=True)
    assert row == {"prompt": shared, "chosen": sides[0], "rejected": sides[1]}


def test_jsonl_pairs_of_texts_are_left_as_they_are(tmp_path):
    file = tmp_path / "pairs.jsonl"
    row = {"prompt": "a", "chosen": "bc", "rejected": "bd"}
    file.write_text(json.dumps(row) + "\n")
    assert jsonl_pairs(path=str(file)) == [row]


def test_sides_that_are_the_same_stay_and_are_told(caplog):
    same = pairs([("a", "b", "b"), ("a", "b", "c")])
    assert (len(same), same.num_identical) == (2, 1)
    assert "1 of 2 pairs have a chosen and a rejected side that are the same" in caplog.text


def test_pad_equal_to_end_counts_the_end():
    tokenizer = CharacterTokenizer(pad_id=2, bos_id=None, end_ids=(2,))
    batch = pairs([("a", "b", "cd")], length=5, tokenizer=tokenizer).take(np.array([0]))
    assert batch.mask_BST[0].astype(int).tolist() == [[0, 1, 1, 0, 0], [0, 1, 1, 1, 0]]


class Toy(CharacterTokenizer):
    """ "ab" is one token where the text is encoded, and reads the same as two."""

    def decode_completion(self, prompt, ids):
        return "".join("ab" if i == 99 else chr(i - 10) for i in ids if i >= 10)

    def encode(self, text, add_bos=None):
        return [99, *super().encode(text[2:], False)] if text[:2] == "ab" else super().encode(text)


def test_trl_5242_ids_as_sampled_are_not_encoded_again():
    row = {"prompt": "x", "chosen": "ab", "rejected": "ab", "chosen_ids": [A, A + 1]}
    read = pairs([row], tokenizer=Toy())
    # no end either: a completion cut off by the length limit had none
    assert read.completions[0][0] == [A, A + 1]
    assert read.completions[0][1][-1] == 2
    with pytest.raises(ConfigError, match="chosen_ids are not this tokenizer's ids of 'ac'"):
        pairs([{**row, "chosen": "ac"}], tokenizer=Toy())
    with pytest.raises(ConfigError, match="'chosen_ids' is 'ab', not a list of ids"):
        pairs([{**row, "chosen_ids": "ab"}], tokenizer=Toy())


def test_weights_and_reference_go_with_their_pairs():
    rows = [
        {"prompt": "a", "chosen": c, "rejected": "z", "weight": w}
        for c, w in (("b", 1), ("c", 0.5), ("d", 0))
    ]
    read = pairs(rows)
    given = read.with_reference(np.arange(6, dtype=np.float32).reshape(3, 2))
    batch = given.take(np.array([2, 0]))
    assert batch.weight_B.tolist() == [0, 1]
    assert batch.logp_ref_BS.tolist() == [[4, 5], [0, 1]]
    with pytest.raises(ValueError, match="3 rows"):
        read.with_reference(np.zeros((2, 2), np.float32))
    with pytest.raises(ConfigError, match="row 1: 'weight'=None"):
        pairs([rows[0], ("a", "b", "c")])
    with pytest.raises(ConfigError, match="'weight'=-1 is outside"):
        pairs([{**rows[0], "weight": -1}])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there are no rows"),
        ([("a", "b", "c"), ("a", "b")], "row 1: 'rejected' is None"),
        ([("a", "b", 3)], "row 0: 'rejected' is 3, not a string"),
        ([("a", "b", "cdefghi")], "row 0 has 10 tokens, more than max_tokens=8"),
    ],
)
def test_bad_pairs(rows, message):
    with pytest.raises(ConfigError, match=message):
        pairs(rows)


def test_fingerprint_sees_every_part_of_a_pair():
    rows = [("ab", "cd", "e"), ("f", "g", "h")]
    others = [
        [("ab", "e", "cd"), rows[1]],
        [("a", "bcd", "be"), rows[1]],
        rows[::-1],
        rows[:1],
        [
            {**dict(zip(("prompt", "chosen", "rejected"), row, strict=False)), "weight": 1}
            for row in rows
        ],
    ]
    seen = {pairs(r).fingerprint for r in [rows, *others]}
    assert len(seen) == 6
    assert pairs(rows).fingerprint in seen


# --- single completions ---------------------------------------------------------------------------


def test_kto_labels_and_mismatched_pairs():
    """TRL 2153: completions [A, B, C] meet the prompts of [B, C, A]."""
    batch = labels([("x", "a", True), ("y", "b", False), ("z", "c", True)]).take(np.arange(3))
    assert batch.desirable_B.tolist() == [True, False, True]
    assert batch.tokens_BT[:, 2].tolist() == [A, A + 1, A + 2]
    assert batch.tokens_other_BT[:, 2].tolist() == [A + 2, A, A + 1]
    assert (batch.tokens_other_BT[:, 1] == batch.tokens_BT[:, 1]).all()  # the prompt is the row's
    assert batch.mask_other_BT.sum(axis=1).tolist() == [2, 2, 2]


def test_kto_no_row_is_its_own_mismatch_in_any_batch():
    """TRL 1499: with 4 rows and batches of 3, rotating within the last batch gives D itself."""
    rows = labels([(p, c, True) for p, c in zip("wxyz", "abcd", strict=True)])
    (_, (last, weight_B)) = rows.in_order(3)
    assert weight_B.tolist() == [1, 0, 0]
    assert last.tokens_BT[0, 2] == A + 3 and last.tokens_other_BT[0, 2] == A + 2
    for batch in (rows.batches(3, seed=0)[i] for i in range(4)):
        assert (batch.tokens_BT[:, 2] != batch.tokens_other_BT[:, 2]).all()


def test_kto_a_mismatch_is_of_another_prompt():
    # both answers to one prompt are answers to it: neither is a mismatch of the other
    rows = labels([("x", "a", True), ("x", "b", False), ("y", "c", True), ("x", "d", True)])
    assert rows.other == [2, 2, 1, 2]
    with pytest.raises(ConfigError, match="every row has the same"):
        labels([("x", "a", True), ("x", "b", False)])
    with pytest.raises(ConfigError, match="every row has the same"):
        labels([("x", "a", True)])


def test_kto_a_borrowed_completion_fits_the_row():
    rows = labels([("abcd", "e", True), ("f", "ghij", True)], length=7)
    batch = rows.take(np.array([0]))
    assert batch.tokens_other_BT[0].tolist() == [1, A, A + 1, A + 2, A + 3, A + 6, A + 7]
    assert batch.mask_other_BT[0].sum() == 2


def test_kto_reference_goes_with_the_rows():
    rows = labels([("x", "a", True), ("y", "b", False)])
    given = rows.with_reference(np.float32([1, 2]), np.float32([3, 4])).take(np.array([1]))
    assert (given.logp_ref_B.tolist(), given.logp_ref_other_B.tolist()) == ([2], [4])
    assert rows.take(np.array([1])).logp_ref_B is None
    flipped = labels([("x", "a", True), ("y", "b", True)])
    assert flipped.fingerprint != rows.fingerprint


@pytest.mark.parametrize("label", [1, "yes", None])
def test_kto_bad_labels(label):
    with pytest.raises(ConfigError, match=r"row 1: 'label' is .*, not true or false"):
        labels([("x", "a", True), ("y", "b", label)])
