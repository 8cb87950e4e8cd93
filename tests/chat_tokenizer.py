"""A small byte-level tokenizer with special tokens and a chat template, as instruct models have."""

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from rlhf_jax.models.tokenizer import Tokenizer, _byte_characters

# <s>0 </s>1 <|start|>2 <|end|>3, then bytes, then two merges that cross borders
SPECIALS = ("<s>", "</s>", "<|start|>", "<|end|>")
LINE = "Ċ"  # the byte-level scheme's line break

# closes every turn with <|end|> and a line break, as ChatML does
CHATML = (
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
WITH_BOS = "<s>" + CHATML
# leaves the thought out of every turn but the last
FORGETS = (
    "{% for m in messages %}<|start|>{{ m.role }}\n"
    "{{ m.content if loop.last or m.role != 'assistant' else m.content.split('*')[-1] }}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
# begins an answer with a thought that the answer itself may lack
THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>{% endif %}")
# an answer ends without any token
OPEN_END = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def chat_tokenizer(template: str | None = CHATML, *, adds_bos: bool = False, **options):
    """The tokenizer; with `adds_bos` it puts <s> before every text by itself."""
    return Tokenizer(chat_hf(template, adds_bos=adds_bos), **options)


def chat_hf(template: str | None = CHATML, *, adds_bos: bool = False):
    vocab = {token: i for i, token in enumerate([*SPECIALS, *_byte_characters()])}
    vocab[LINE + LINE] = len(vocab)
    vocab["ab"] = len(vocab)
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[(LINE, LINE), ("a", "b")]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    if adds_bos:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 0)]
        )
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    hf = PreTrainedTokenizerFast(tokenizer_object=raw, clean_up_tokenization_spaces=False, **names)
    hf.chat_template = template
    return hf


def spelled(tokenizer, ids) -> str:
    """Ids as text, specials written out."""
    return tokenizer.show([], ids)


def learnt(tokenizer, ids, learn) -> str:
    """The same with what is learnt in brackets, run by run."""
    text, before = "", False
    for i, now in zip(ids, learn, strict=True):
        text += ("[" if now and not before else "]" if before and not now else "") + spelled(
            tokenizer, [i]
        )
        before = now
    return text + ("]" if before else "")
