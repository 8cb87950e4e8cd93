"""What stands between two answers: one rule for templates, one for plain texts."""

import pytest
from character_tokenizer import CharacterTokenizer
from chat_tokenizer import CHATML, FORGETS, OPEN_END, THINKS, chat_tokenizer, spelled

from rlhf_jax.data.encode import encode_dialogue, encode_prompt
from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import byte_tokenizer
from rlhf_jax.models.turns import observation_ids

ASKED = [{"role": "user", "content": "hi"}]


def between(template, observation="84", *, role="user", adds_bos=False):
    tokenizer = chat_tokenizer(template, adds_bos=adds_bos)
    return spelled(tokenizer, observation_ids(tokenizer, ASKED, observation, role=role))


def test_trl_5330_nemo_rl_948_the_line_break_after_the_end_comes_back():
    """The sampled turn ends in <|end|>; what ChatML writes after it is read, and not learnt."""
    told = "\n<|start|>{}\n84<|end|>\n<|start|>assistant\n"
    assert between(CHATML) == told.format("user")
    assert between(CHATML, role="tool") == told.format("tool")
    assert between(CHATML, adds_bos=True) == told.format("user")  # no begin token inside


def test_a_space_before_the_templates_end_token_is_left_out_with_it():
    spaced = CHATML.replace("{{ m.content }}<|end|>", "{{ m.content }} <|end|>")
    assert between(spaced) == "\n<|start|>user\n84 <|end|>\n<|start|>assistant\n"


def test_an_answer_that_the_template_does_not_close():
    assert between(OPEN_END) == " u:84 a:"


def test_what_the_template_opens_an_answer_with_is_given():
    assert between(THINKS).endswith("<|start|>assistant\n<think>")


def test_a_dialogue_reads_as_the_template_writes_it():
    """Prompt, sampled turns and observations one after the other are the rendered conversation."""
    tokenizer = chat_tokenizer()
    row = {"prompt": ASKED}
    ids = encode_prompt(row, tokenizer, "row 0")[1]
    for turn, observation in (("<calc>6*14</calc>", "84"), ("ab", "\n\nno")):
        ids += [*tokenizer.encode(turn, add_bos=False), tokenizer.encode("<|end|>")[0]]
        ids += observation_ids(tokenizer, ASKED, observation, role="user")
    messages = [
        *ASKED,
        {"role": "assistant", "content": "<calc>6*14</calc>"},
        {"role": "user", "content": "84"},
        {"role": "assistant", "content": "ab"},
        {"role": "user", "content": "\n\nno"},
    ]
    assert ids == tokenizer.encode(tokenizer.render(messages, answer=True))
    # and as the same conversation is imitated
    dialogue = {"messages": [*messages, {"role": "assistant", "content": "so"}]}
    assert encode_dialogue(dialogue, tokenizer, "row 0")[0][: len(ids)] == ids


def test_a_template_that_rewrites_earlier_answers_still_speaks_for_the_next():
    assert between(FORGETS) == "\n<|start|>user\n84<|end|>\n<|start|>assistant\n"


def test_a_template_that_drops_them_is_refused():
    drops = "{% for m in messages[-1:] %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="leaves out all answers but the last"):
        between(drops)
    two_roles = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
        "{{ raise_exception('no such role') }}{% endif %}{{ m.content }}</s>{% endfor %}"
    )
    with pytest.raises(ConfigError, match="refuses messages of user, assistant, tool"):
        between(two_roles, role="tool")
    assert between(two_roles) == "84</s>"


@pytest.mark.parametrize("tokenizer", [byte_tokenizer(), CharacterTokenizer()], ids=["b", "c"])
def test_a_plain_observation_is_its_text_and_no_more(tokenizer):
    for text in ("84", "", "\nresult: 84\n", "ab"):
        ids = observation_ids(tokenizer, "6*14=", text, role="user")
        assert tokenizer.decode(ids) == text
        assert tokenizer.bos_id not in ids
