"""The end of a turn, and what a template is asked."""

import pytest
from chat_tokenizer import CHATML, OPEN_END, chat_hf, chat_tokenizer

from rlhf_jax.models.chat import end_of_turn, render
from rlhf_jax.models.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (CHATML, 3),
        (CHATML.replace("<|end|>", "</s>"), 1),
        (OPEN_END, None),
        (None, None),
        ("{{ raise_exception('never') }}", None),
    ],
)
def test_the_token_that_closes_an_answer(template, end):
    assert end_of_turn(chat_hf(template)) == end


def test_verl_213_the_templates_end_is_in_the_end_set(tmp_path):
    assert chat_tokenizer().end_ids == (1, 3)
    assert chat_tokenizer().eos_id == 1, "plain texts are closed by the tokenizer's own"
    chat_tokenizer(end_ids=[2]).save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.end_ids == (1, 2, 3)
    assert again.render([{"role": "user", "content": "a"}], answer=True).count("<|start|>") == 2


def test_tools_reach_the_template():
    hf = chat_hf("{{ tools[0].function.name }}")
    tools = [{"type": "function", "function": {"name": "add"}}]
    assert render(hf, [{"role": "user", "content": "a"}], answer=True, tools=tools) == "add"


def test_ids_are_shown_with_their_special_tokens():
    tokenizer = chat_tokenizer()
    ids = tokenizer.encode("<s>é<|end|>")
    assert tokenizer.show([], ids) == "<s>é<|end|>"
    assert tokenizer.show(ids[:2], ids[2:]) == "é<|end|>"
