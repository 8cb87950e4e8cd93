"""Conversations and borders: one BOS, one end, the assistant's tokens alone, ids never redone."""

import pytest
from chat_tokenizer import (
    CHATML,
    FORGETS,
    OPEN_END,
    THINKS,
    WITH_BOS,
    chat_tokenizer,
    learnt,
    spelled,
)

from rlhf_jax.data.demonstrations import DemonstrationSet
from rlhf_jax.data.encode import encode_dialogue, encode_prompt, encode_row
from rlhf_jax.data.preferences import PreferenceSet
from rlhf_jax.data.prompts import PromptSet
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import encode_after


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("template", [WITH_BOS, CHATML])
def test_trl_1591_exactly_one_begin_token(template, adds_bos):
    tokenizer = chat_tokenizer(template, adds_bos=adds_bos)
    _, ids = encode_prompt({"prompt": [user("hi")]}, tokenizer, "row 0")
    assert ids.count(tokenizer.bos_id) == (adds_bos or template is WITH_BOS)
    assert spelled(tokenizer, ids).endswith("<|start|>user\nhi<|end|>\n<|start|>assistant\n")
    dialogue, _ = encode_dialogue({"messages": [user("hi"), assistant("yo")]}, tokenizer, "row 0")
    assert dialogue[: len(ids)] == ids, "what is learnt follows what a sampler is given"


def test_trl_4908_the_templates_end_is_not_doubled():
    tokenizer = chat_tokenizer()
    row = {"prompt": [user("hi")], "completion": [assistant("yo")]}
    _, (completion,) = encode_row(row, tokenizer, "row 0")
    assert spelled(tokenizer, completion) == "yo<|end|>"
    _, (plain,) = encode_row({"prompt": "hi", "completion": "yo"}, tokenizer, "row 0")
    assert spelled(tokenizer, plain) == "yo</s>"
    _, (closed,) = encode_row({"prompt": "hi", "completion": "yo<|end|>"}, tokenizer, "row 0")
    assert spelled(tokenizer, closed) == "yo<|end|>"


def test_trl_5330_the_line_break_after_an_end_is_read_and_not_learnt():
    tokenizer = chat_tokenizer()
    messages = [user("hi"), assistant("yo"), user("and"), assistant("no")]
    ids, learn = encode_dialogue({"messages": messages}, tokenizer, "row 0")
    assert learnt(tokenizer, ids, learn) == (
        "<|start|>user\nhi<|end|>\n<|start|>assistant\n[yo<|end|>]\n"
        "<|start|>user\nand<|end|>\n<|start|>assistant\n[no<|end|>]"
    )


def test_every_turn_is_learnt_after_what_a_sampler_sees_then():
    """The ids before a turn are those of the rendered prompt, also where a token could merge."""
    tokenizer = chat_tokenizer()
    messages = [user("ab"), assistant("\n\nyo"), user("\n\nb"), assistant("ab")]
    ids, learn = encode_dialogue({"messages": messages}, tokenizer, "row 0")
    for turn in (1, 3):
        _, prompt = encode_prompt({"prompt": messages[:turn]}, tokenizer, "row 0")
        if turn == 1:
            assert ids[: len(prompt)] == prompt
        assert not learn[len(prompt) - 1]
        assert learn[len(prompt)]
    assert spelled(tokenizer, ids) == tokenizer.render(messages, answer=False).rstrip("\n")


def test_an_answer_without_an_end_of_its_own_gets_the_tokenizers():
    tokenizer = chat_tokenizer(OPEN_END)
    assert tokenizer.end_ids == (1,)
    messages = [user("hi"), assistant("yo")]
    ids, learn = encode_dialogue({"messages": messages}, tokenizer, "row 0")
    assert learnt(tokenizer, ids, learn) == "u:hi a:[yo </s>]"


def test_turns_that_a_template_writes_anew_are_refused():
    tokenizer = chat_tokenizer(FORGETS)
    messages = [user("hi"), assistant("hm*yo"), user("and"), assistant("hm*no")]
    with pytest.raises(ConfigError, match="row 3: the chat template writes earlier turns anew"):
        encode_dialogue({"messages": messages}, tokenizer, "row 3")
    one = {"prompt": messages[:3], "completion": messages[3:]}
    prompt, (completion,) = encode_row(one, tokenizer, "row 3")
    assert "hm*yo" not in spelled(tokenizer, prompt)
    assert spelled(tokenizer, completion) == "hm*no<|end|>"


def test_trl_6433_sides_share_one_prompt_though_the_template_begins_a_thought():
    tokenizer = chat_tokenizer(THINKS)
    row = {
        "prompt": [user("hi")],
        "chosen": [assistant("ok")],
        "rejected": [assistant("<think>no")],
    }
    prompt, (chosen, rejected) = encode_row(row, tokenizer, "row 0", ("chosen", "rejected"))
    assert spelled(tokenizer, prompt) == "<|start|>user\nhi<|end|>\n<|start|>assistant\n"
    assert spelled(tokenizer, chosen) == "ok<|end|>"
    assert spelled(tokenizer, rejected) == "<think>no<|end|>"


def test_trl_5242_sampled_ids_are_trained_on_as_they_are():
    tokenizer = chat_tokenizer()
    a, b, ab = tokenizer.encode("a") + tokenizer.encode("b") + tokenizer.encode("ab")
    row = {"prompt": "x", "completion": "ab", "completion_ids": [a, b]}
    assert encode_row(row, tokenizer, "row 0")[1] == [[a, b]]
    del row["completion_ids"]
    assert encode_row(row, tokenizer, "row 0")[1] == [[ab, tokenizer.eos_id]]
    chat = {"prompt": [user("x")], "completion": "ab", "completion_ids": [a, b]}
    assert encode_row(chat, tokenizer, "row 0")[1] == [[a, b]]


def test_trl_3651_a_cut_prompt_keeps_its_special_tokens():
    tokenizer = chat_tokenizer()
    rows = [{"prompt": [user("hello")]}]
    whole = PromptSet.from_rows(rows, tokenizer, max_prompt_tokens=99).ids[0]
    prompts = PromptSet.from_rows(rows, tokenizer, max_prompt_tokens=13, over_long="left")
    assert prompts.ids[0] == whole[-13:]
    assert spelled(tokenizer, prompts.ids[0])[:7] == "<|end|>"
    text = tokenizer.render(rows[0]["prompt"], answer=True)
    assert prompts.take([0]).texts == [text]


# Borders


def test_a_token_that_would_cross_the_border_is_not_made():
    tokenizer = chat_tokenizer()
    prompt = tokenizer.encode("xa")
    assert encode_after(tokenizer, "xa", prompt, "b\n\n") == tokenizer.encode("b\n\n")
    assert tokenizer.encode("xab")[:2] != prompt


@pytest.mark.parametrize("field", ["prompt", "completion"])
@pytest.mark.parametrize("wrong", [0, 2**40])
def test_given_ids_beyond_the_vocabulary_are_another_tokenizers(field, wrong):
    tokenizer = chat_tokenizer()
    row = {"prompt": "x", "completion": "ab", f"{field}_ids": [tokenizer.vocab_size + wrong]}
    with pytest.raises(ConfigError, match=f"row 0: '{field}_ids' holds .* tokenizer has"):
        encode_row(row, tokenizer, "row 0")


class Spaced:
    """Puts a space before every text and merges "_ab" and ".a", as sentencepiece might."""

    def encode(self, text, add_bos=None):
        return (
            [f"_{text}"[i : i + 1] for i in range(len(text) + 1)] if "ab" not in text else ["_ab"]
        )


def test_what_cannot_follow_by_its_ids_follows_without_a_space_of_its_own():
    """Encoded alone, "b" would be "_b": one space too many."""
    assert encode_after(Spaced(), "a", ["_", "a"], "b") == ["b"]
    assert Spaced().encode("b") == ["_", "b"]


# Refusals


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": [user("hi")]}, "no message of the assistant"),
        ({"messages": []}, "not a list of messages"),
        ({"messages": [user("hi"), assistant(3)]}, "message 1: 'content' is 3"),
        ({"messages": [user("hi"), {"role": "bot", "content": "a"}]}, "message 1 has role 'bot'"),
        ({"prompt": [user("a"), assistant("b")], "completion": [assistant("c")]}, "left to answer"),
        ({"prompt": [user("a")], "completion": [user("c")]}, "ends with a message of the user"),
    ],
)
def test_conversations_that_are_none(row, message):
    with pytest.raises(ConfigError, match=f"demonstrations: row 0.*{message}"):
        DemonstrationSet.from_rows([row], chat_tokenizer(), max_tokens=64)


def test_a_conversation_needs_a_template():
    rows = [{"prompt": [user("a")]}]
    with pytest.raises(ConfigError, match=r"prompts: row 0: .*no chat template"):
        PromptSet.from_rows(rows, chat_tokenizer(None), max_prompt_tokens=64)
    picky = chat_tokenizer("{{ raise_exception('no system here') }}")
    with pytest.raises(ConfigError, match="refuses messages of user: no system here"):
        PromptSet.from_rows(rows, picky, max_prompt_tokens=64)


def test_sets_of_conversations():
    tokenizer = chat_tokenizer()
    pair = {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("cd")]}
    batch = PreferenceSet.from_rows([pair], tokenizer, max_tokens=40).take([0])
    assert batch.mask_BST.sum(axis=-1).tolist() == [[2, 3]]
    rows = [{"messages": [user("a"), assistant("b"), user("c"), assistant("d")]}]
    data = DemonstrationSet.from_rows(rows, tokenizer, max_tokens=99)
    assert data.take([0]).mask_BT.sum() == 4
    assert not data.learn[0][0]
