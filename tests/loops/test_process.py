"""Steps of a text -> columns of tokens, on ids that no tokenizer need ever produce."""

import numpy as np
import pytest

from rlhf_jax.loops.process import step_columns
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer
from rlhf_jax.rewards.sentiment import vader_sentences
from rlhf_jax.types import Prompts, Rollout

BYTES = byte_tokenizer()


def drawn(tokenizer, prompt, answers, width=24):
    """One prompt and its answers (lists of ids), right-padded."""
    ids = tokenizer.encode(prompt)
    prompts = Prompts(
        tokens_PL=np.asarray([ids], np.int32),
        attend_PL=np.ones((1, len(ids)), bool),
        id_P=np.zeros(1, np.int32),
        texts=[prompt],
        rows=[{}],
    )
    shape = (len(answers), len(ids) + width)
    tokens_BT, mask_BT = np.full(shape, tokenizer.pad_id, np.int32), np.zeros(shape, bool)
    for b, answer in enumerate(answers):
        tokens_BT[b, : len(ids)] = ids
        tokens_BT[b, len(ids) : len(ids) + len(answer)] = answer
        mask_BT[b, len(ids) : len(ids) + len(answer)] = True
    zero_BT = np.zeros(shape, np.float32)
    rollout = Rollout(
        tokens_BT=tokens_BT,
        attend_BT=mask_BT,
        mask_BT=mask_BT,
        logp_sampler_BT=zero_BT,
        logp_full_BT=zero_BT,
        entropy_BT=zero_BT,
        group_B=np.zeros(len(answers), np.int32),
        truncated_B=np.zeros(len(answers), bool),
    )
    completions = [tokenizer.decode_completion(ids, answer) for answer in answers]
    return prompts, rollout, completions, len(ids)


def columns(tokenizer, prompt, answers, steps):
    prompts, rollout, completions, first = drawn(tokenizer, prompt, answers)
    end_BT, score_BT = step_columns(tokenizer, prompts, rollout, completions, steps)
    assert not score_BT[~end_BT].any() and not end_BT[~rollout.mask_BT].any()
    return [
        [(int(t) - first, float(score_BT[b, t])) for t in np.flatnonzero(end_BT[b])]
        for b in range(len(answers))
    ]


def test_a_byte_is_a_token_and_the_end_token_ends_no_step():
    one = [*BYTES.encode("ab. c.", add_bos=False), BYTES.eos_id]
    two = BYTES.encode("xyz", add_bos=False)
    got = columns(BYTES, "q", [one, two, one], [[(3, 0.5), (6, -1.0)], [(3, 2.0)], []])
    assert got == [[(2, 0.5), (5, -1.0)], [(2, 2.0)], []]


def test_a_character_of_several_tokens_is_ended_by_its_last():
    # "é" is two bytes, "😀" four: characters 1, 2 and 3 end at bytes 2, 3 and 7
    ids = BYTES.encode("éa😀", add_bos=False)
    got = columns(BYTES, "q", [ids], [[(1, 1.0), (2, 2.0), (3, 3.0)]])
    assert got == [[(1, 1.0), (2, 2.0), (6, 3.0)]]


def test_broken_text_keeps_its_place():
    # a lone continuation byte decodes to U+FFFD, which is a character like another
    ids = [*BYTES.encode("a", add_bos=False), 3 + 0x80, *BYTES.encode("b.", add_bos=False)]
    assert columns(BYTES, "q", [ids], [[(2, 1.0), (4, 2.0)]]) == [[(1, 1.0), (3, 2.0)]]


class Pairs:
    """Two characters a token: a border of steps may lie inside one."""

    pad_id, eos_id = 0, 1

    def encode(self, text):
        return [2 + 256 * ord(a) + ord(b) for a, b in zip(text[::2], text[1::2], strict=True)]

    def decode_completion(self, prompt_ids, ids):
        return "".join(chr((i - 2) // 256) + chr((i - 2) % 256) for i in ids if i > 1)


def test_a_token_across_a_border_ends_the_earlier_step():
    tokenizer = Pairs()
    ids = tokenizer.encode("abcdef")
    # steps "abc" and "def": the token "cd" ends the first
    assert columns(tokenizer, "qq", [ids], [[(3, 1.0), (6, 5.0)]]) == [[(1, 1.0), (2, 5.0)]]
    # two steps that end in one token are one, with the mean of their scores
    assert columns(tokenizer, "qq", [ids], [[(3, 1.0), (4, 2.0), (6, 5.0)]]) == [
        [(1, 1.5), (2, 5.0)]
    ]


def test_sentences_of_the_real_tokenizer(stories_folder):
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    text = ' She was happy. Tom cried, "No!" They'
    prompt = "Once upon a time"
    ids = tokenizer.encode(prompt + text)[len(tokenizer.encode(prompt)) :]
    prompts, rollout, completions, first = drawn(tokenizer, prompt, [ids], width=40)
    steps = vader_sentences([prompt], completions, [{}])
    assert [completions[0][:end] for end, _ in steps[0]] == [
        " She was happy.",
        ' She was happy. Tom cried, "No!"',
        completions[0],
    ]
    end_BT, score_BT = step_columns(tokenizer, prompts, rollout, completions, steps)
    ends = np.flatnonzero(end_BT[0]) - first
    for t, (end, score) in zip(ends, steps[0], strict=True):
        upto = tokenizer.decode_completion(prompts.tokens_PL[0].tolist(), ids[: t + 1])
        before = tokenizer.decode_completion(prompts.tokens_PL[0].tolist(), ids[:t])
        assert upto.startswith(completions[0][:end]) and len(before) < end
        assert score_BT[0, first + t] == pytest.approx(score)
    assert steps[0][0][1] > 0 > steps[0][1][1]
