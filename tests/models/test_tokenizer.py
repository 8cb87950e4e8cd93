"""Ids and text: BOS exactly once, the end set, pad, and completions that keep their space."""

import json
import random

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.tokenizer import Tokenizer, byte_tokenizer

WORDS = ["<unk>", "<s>", "</s>", "<turn>", "▁a", "▁b", "▁c", "▁", "a", "b", "c"]


def word_tokenizer(*, template: bool = True, **options) -> PreTrainedTokenizerFast:
    """A tokenizer of the sentencepiece kind: a text opens with a space that decoding drops."""
    vocab = {word: i for i, word in enumerate(WORDS)}
    merges = [("▁", "a"), ("▁", "b"), ("▁", "c")]
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    if template:
        raw.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    extra = {"additional_special_tokens": ["<turn>"]}
    return PreTrainedTokenizerFast(tokenizer_object=raw, **{**names, **extra, **options})


def folder_of(tmp_path, hf, **files):
    hf.save_pretrained(tmp_path)
    for name, value in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


# BOS


@pytest.mark.parametrize("text", ["a b", "<s>a b", "<s><s>a b"])
@pytest.mark.parametrize("template", [True, False])
def test_exactly_one_bos_when_asked(text, template):
    tokenizer = Tokenizer(word_tokenizer(template=template))
    assert tokenizer.encode(text, add_bos=True) == [1, 4, 5]


def test_no_bos_when_not_asked():
    tokenizer = Tokenizer(word_tokenizer())
    assert tokenizer.encode("a b", add_bos=False) == [4, 5]
    assert tokenizer.encode("<s>a b", add_bos=False) == [1, 4, 5], "the text's own stays"


@pytest.mark.parametrize(("template", "ids"), [(True, [1, 4]), (False, [4])])
def test_bos_by_default_is_the_checkpoints_choice(template, ids):
    assert Tokenizer(word_tokenizer(template=template)).encode("a") == ids


def test_bos_of_a_tokenizer_without_one():
    tokenizer = Tokenizer(word_tokenizer(template=False, bos_token=None))
    assert tokenizer.bos_id is None
    assert tokenizer.encode("a") == [4]
    with pytest.raises(ConfigError, match="no BOS"):
        tokenizer.encode("a", add_bos=True)


# End and pad


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config": {"eos_token_id": [1, 3]}}, (1, 2, 3)),
        ({"generation_config": {"eos_token_id": 3}, "config": {"eos_token_id": 4}}, (2, 3)),
        ({"generation_config": {}, "config": {"eos_token_id": 4}}, (2,)),
        ({"config": {"eos_token_id": 4}}, (2, 4)),
        ({}, (2,)),
    ],
)
def test_end_is_a_set(tmp_path, files, ends):
    if "config" in files:
        files["config"]["model_type"] = "llama"
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, word_tokenizer(), **files))
    assert tokenizer.end_ids == ends
    assert tokenizer.eos_id == 2


def test_end_from_the_generation_config_alone(tmp_path):
    hf = word_tokenizer(eos_token=None)
    with pytest.raises(ConfigError, match="no end"):
        Tokenizer.from_folder(folder_of(tmp_path, hf))
    files = {"generation_config": {"eos_token_id": [3, 1]}}
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, hf, **files))
    assert (tokenizer.eos_id, tokenizer.end_ids) == (3, (1, 3))


@pytest.mark.parametrize("bad", [99, -1, "</s>", [2, 99]])
def test_end_outside_the_vocabulary_is_refused(tmp_path, bad):
    files = {"generation_config": {"eos_token_id": bad}}
    with pytest.raises(ConfigError, match=r"99|-1|</s>"):
        Tokenizer.from_folder(folder_of(tmp_path, word_tokenizer(), **files))


@pytest.mark.parametrize(
    ("options", "generation", "pad"),
    [
        ({"pad_token": "<unk>"}, {"pad_token_id": 3}, 0),  # the tokenizer's own
        ({}, {"pad_token_id": 3}, 3),  # else the checkpoint's
        ({}, {}, 2),  # else the end: masks come from lengths
    ],
)
def test_pad_rule(tmp_path, options, generation, pad):
    hf = word_tokenizer(**options)
    tokenizer = Tokenizer.from_folder(folder_of(tmp_path, hf, generation_config=generation))
    assert tokenizer.pad_id == pad


def test_append_end_once():
    tokenizer = Tokenizer(word_tokenizer(), end_ids=[3])
    assert tokenizer.append_end([4, 5]) == [4, 5, 2]
    assert tokenizer.append_end([4, 5, 2]) == [4, 5, 2]
    assert tokenizer.append_end([4, 3]) == [4, 3]
    assert tokenizer.append_end([]) == [2]


# Text of completions


def test_completion_keeps_its_first_space():
    tokenizer = Tokenizer(word_tokenizer())
    prompt = tokenizer.encode("a b", add_bos=True)
    assert tokenizer.decode([6, 4]) == "c a", "alone, the space that joins it is lost"
    assert tokenizer.decode_completion(prompt, [6, 4]) == " c a"
    assert tokenizer.decode_completion(prompt, [10, 2]) == "c", "joined to the prompt's last word"
    assert tokenizer.decode_completion([1], [6, 4]) == "c a", "a text opens without one"
    assert tokenizer.decode_completion(prompt, []) == ""


def test_completion_after_a_prompt_cut_inside_a_character():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("xé!", add_bos=True)
    assert tokenizer.decode(ids[:3]) == "x�"
    assert tokenizer.decode_completion(ids[:3], ids[3:]) == "é!"


# Bytes

TEXTS = [
    "",
    " leading and  double spaces ",
    "tab\tnewline\n\r\n\x00\x7f",
    "don't we'll 12 + 3 = 15.",
    "naïve Ελλάδα 日本語 🙂🏽 \u200d \ufeff \U0010ffff",
    "<eos><bos><pad></s>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_round_trip(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text, add_bos=True)
    assert ids == [1, *(3 + b for b in text.encode("utf-8"))]
    assert tokenizer.decode(ids) == text


def test_any_byte_ids_decode():
    tokenizer = byte_tokenizer()
    rng = random.Random(0)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size) for _ in range(rng.randrange(20))]
        data = bytes(i - 3 for i in ids if i >= 3)
        assert tokenizer.decode(ids) == data.decode("utf-8", errors="replace")


def test_byte_ids():
    tokenizer = byte_tokenizer()
    assert tokenizer.vocab_size == 259
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, 2)
    assert tokenizer.end_ids == (2,)


# Folders


def test_save_and_read_back(tmp_path):
    first = Tokenizer(word_tokenizer(), end_ids=[3])
    first.save(tmp_path)
    again = Tokenizer.from_folder(tmp_path)
    assert again.end_ids == (2, 3)
    for name in ("vocab_size", "bos_id", "eos_id", "pad_id"):
        assert getattr(again, name) == getattr(first, name)
    assert again.encode("<s>a<turn>b") == first.encode("<s>a<turn>b")


def test_saved_bytes_are_an_ordinary_tokenizer(tmp_path):
    byte_tokenizer().save(tmp_path)
    hf = AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert hf("hé <eos>").input_ids == byte_tokenizer().encode("hé <eos>", add_bos=True)
    options = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert options["tokenizer_class"] == "PreTrainedTokenizerFast", "a name transformers 4 knows"
    generation = json.loads((tmp_path / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2], "pad_token_id": 0}


def test_missing_or_corrupt_folder(tmp_path):
    with pytest.raises(ConfigError, match="nowhere is not a folder"):
        Tokenizer.from_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no tokenizer could be read"):
        Tokenizer.from_folder(tmp_path)
    folder_of(tmp_path, word_tokenizer())
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text[: len(text) // 2])
    with pytest.raises(ConfigError, match="no tokenizer could be read"):
        Tokenizer.from_folder(tmp_path)


def test_stories(stories_folder):
    tokenizer = Tokenizer.from_folder(stories_folder / "hf")
    assert tokenizer.end_ids == (1, 2)
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (1, 2, 2)
    prompt = tokenizer.encode("Lily and Ben were", add_bos=True)
    assert prompt == [1, 317, 269, 368, 302, 382, 276]
    whole = tokenizer.encode("Lily and Ben were playing.", add_bos=True)
    ids = whole[len(prompt) :]
    assert tokenizer.decode(ids) == "playing."
    assert tokenizer.decode_completion(prompt, ids) == " playing."
