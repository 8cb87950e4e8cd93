"""Text to ids and back; pad and end ids by one stated rule each.

* **End is a set**: `eos_token_id` of generation_config.json (a number or a list; of config.json
  where that file is absent, as transformers does) together with the tokenizer's own. A tokenizer
  with no end at all is refused: nothing could ever finish.
  Where the chat template closes an answer with a special token, that one too.
* **Pad**: the tokenizer's pad id; else the generation config's; else the tokenizer's end id. A pad
  id may equal an end id, since masks come from lengths everywhere and never from ids.
* **BOS**: exactly one when asked for, also if the text (a rendered template) brings its own.
* Sampling defaults of a checkpoint (temperature, top-k, …) are not read: what a run samples with
  stands in its own config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from rlhf_jax.errors import ConfigError
from rlhf_jax.models.chat import end_of_turn, render
from rlhf_jax.models.weights import read_json, write_json

_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_unset = _ADVICE not in os.environ
if _unset:  # it would tell that torch is missing, which nothing here needs
    os.environ[_ADVICE] = "1"
from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

if _unset:
    del os.environ[_ADVICE]


class Tokenizer:
    """A Hugging Face tokenizer with the ids that training needs.

    Attributes:
        vocab_size: number of ids, added tokens included.
        bos_id: id of the beginning token, or None.
        eos_id: the end id that is written (`append_end`), one of `end_ids`.
        end_ids: every id that ends a completion, ascending.
        pad_id: fills the columns that are not attended to.
    """

    def __init__(self, hf, *, end_ids: Iterable[int] = (), pad_id: int | None = None):
        """Wrap `hf`; `end_ids` and `pad_id` are what the checkpoint's files add to it.

        Raises:
            ConfigError: there is no end id, or an id is outside the vocabulary.
        """
        self._hf = hf
        self.vocab_size: int = len(hf)
        self.bos_id: int | None = hf.bos_token_id
        turn_end = end_of_turn(hf)
        ends = [*([] if hf.eos_token_id is None else [hf.eos_token_id]), *end_ids]
        ends += [] if turn_end is None else [turn_end]
        if not ends:
            raise ConfigError(
                "the tokenizer has no end: set eos_token in tokenizer_config.json or "
                "eos_token_id in generation_config.json"
            )
        self.eos_id: int = ends[0]
        self.end_ids: tuple[int, ...] = tuple(sorted(set(ends)))
        own = hf.pad_token_id if hf.pad_token_id is not None else pad_id
        self.pad_id: int = self.eos_id if own is None else own
        for i in (*self.end_ids, self.pad_id):
            if not 0 <= i < self.vocab_size:
                raise ConfigError(f"end or pad id {i} is outside the {self.vocab_size} ids")
        template = hf("").input_ids
        self._template_adds_bos = self.bos_id is not None and template[:1] == [self.bos_id]

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> Tokenizer:
        """Read a tokenizer from a model folder, without a network.

        Raises:
            ConfigError: no such folder, no readable tokenizer in it, or no end id.
        """
        folder = Path(folder)
        if not folder.is_dir():
            hint = ""
            if re.fullmatch(r"[\w.-]+/[\w.-]+", str(folder)):
                hint = f"; a model of the Hub comes first: hf download {folder} --local-dir FOLDER"
            raise ConfigError(f"{folder} is not a folder with a tokenizer{hint}")
        try:
            hf = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # a corrupt tokenizer.json raises a bare Exception
            raise ConfigError(f"no tokenizer could be read from {folder}: {error}") from error
        try:
            return cls(hf, **_ids_of_checkpoint(folder))
        except ConfigError as error:
            raise ConfigError(f"{folder}: {error}") from error

    def encode(self, text: str, add_bos: bool | None = None) -> list[int]:
        """Ids of a text.

        Args:
            text: may hold special tokens, as a rendered chat template does.
            add_bos: True: the result begins with exactly one BOS, also if the text begins with
                one or more. False: nothing is added. None: as the checkpoint's own template does.

        Raises:
            ConfigError: a BOS is asked of a tokenizer that has none.
        """
        # not verbose: it would warn of texts longer than the model, which `over_long` settles
        ids = self._hf.encode(text, add_special_tokens=False, verbose=False)
        if not (self._template_adds_bos if add_bos is None else add_bos):
            return ids
        if self.bos_id is None:
            raise ConfigError("this tokenizer has no BOS token; use add_bos=False")
        first = next((n for n, i in enumerate(ids) if i != self.bos_id), len(ids))
        return [self.bos_id, *ids[first:]]

    def render(self, messages: Sequence[dict], *, answer: bool, tools: Any = None) -> str:
        """Text of a conversation by the checkpoint's chat template; see `models.chat.render`."""
        return render(self._hf, messages, answer=answer, tools=tools)

    def append_end(self, ids: Sequence[int]) -> list[int]:
        """A completion's ids with one end: left alone if they end already."""
        ids = list(ids)
        return ids if ids and ids[-1] in self.end_ids else [*ids, self.eos_id]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; special tokens are left out, broken UTF-8 shows as U+FFFD."""
        return self._hf.decode(
            [int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def show(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Text that `ids` add to those before, special tokens written out: for people to read."""
        options = dict(skip_special_tokens=False, clean_up_tokenization_spaces=False)
        known, whole = (self._hf.decode(list(i), **options) for i in (before, [*before, *ids]))
        return _added(known, whole)

    def decode_completion(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """Text that `ids` add to a prompt: decode(prompt + ids) without decode(prompt).

        Tokenizers of the sentencepiece kind drop the space that opens a text, so decoding a
        completion alone would glue its first word to the prompt's last.
        """
        return _added(self.decode(prompt_ids), self.decode([*prompt_ids, *ids]))

    def save(self, folder: str | os.PathLike) -> None:
        """Write the tokenizer's files, and a generation_config.json that holds the end set."""
        folder = Path(folder)
        self._hf.save_pretrained(str(folder))
        file = folder / "tokenizer_config.json"
        options = read_json(file)
        # transformers 5 writes a class name that 4 does not know, and how it was loaded.
        if options.get("tokenizer_class") == "TokenizersBackend":
            options["tokenizer_class"] = "PreTrainedTokenizerFast"
        for name in ("is_local", "local_files_only", "backend"):
            options.pop(name, None)
        write_json(file, options)
        ids = {"bos_token_id": self.bos_id, "eos_token_id": list(self.end_ids)}
        ids = {k: v for k, v in ids.items() if v is not None}
        write_json(folder / "generation_config.json", {**ids, "pad_token_id": self.pad_id})


def _added(known: str, whole: str) -> str:
    """What the whole has after what is known of it.

    Not always a beginning: what was cut inside a character ends in U+FFFD.
    """
    differs = (n for n, (a, b) in enumerate(zip(known, whole, strict=False)) if a != b)
    return whole[next(differs, len(known)) :]


def encode_after(tokenizer, prompt: str, prompt_ids: list[int], text: str) -> list[int]:
    """Ids of a text as it follows a prompt whose ids stand already.

    The rule for borders: the prompt's ids never change, for they are what a sampler is given. Where
    they begin the ids of the whole, the rest of those is taken. Where a token would cross the
    border, the text is encoded behind a line break (or full stop, or space) and that one's ids are
    left off: tokenizers of the sentencepiece kind put a space before every text, and encoded alone
    " named" would begin with two.

    Args:
        tokenizer: has encode(text, add_bos=).
        prompt: its text.
        prompt_ids: its ids.
        text: what follows.
    """
    whole = list(tokenizer.encode(prompt + text))
    if whole[: len(prompt_ids)] == prompt_ids:
        return whole[len(prompt_ids) :]
    return encode_inside(tokenizer, text)


def encode_inside(tokenizer, text: str) -> list[int]:
    """Ids of a text that stands inside a row: no BOS, and no space of the tokenizer's own."""
    for before in ("\n", ".", " "):
        first = list(tokenizer.encode(before, add_bos=False))
        whole = list(tokenizer.encode(before + text, add_bos=False))
        if whole[: len(first)] == first:
            return whole[len(first) :]
    return list(tokenizer.encode(text, add_bos=False))


def _ids_of_checkpoint(folder: Path) -> dict:
    """End and pad ids that stand beside the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if not file.exists():
            continue
        raw = read_json(file)
        ends, pad = raw.get("eos_token_id"), raw.get("pad_token_id")
        ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
        for i in (*ends, *([] if pad is None else [pad])):
            if not isinstance(i, int):
                raise ConfigError(f"{name}: token id {i!r} is not a whole number")
        return {"end_ids": ends, "pad_id": pad}
    return {}


def byte_tokenizer() -> Tokenizer:
    """256 bytes after pad 0, bos 1, eos 2: byte b is id 3 + b. Every text round-trips.

    An ordinary tokenizer of the `tokenizers` library, so that an export of it is an ordinary
    folder. Special tokens are only ever added by id: a text that spells one out is its bytes.
    """
    specials = ["<pad>", "<bos>", "<eos>"]
    vocab = {token: i for i, token in enumerate([*specials, *_byte_characters()])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 1)]
    )
    hf = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
    return Tokenizer(hf)


def _byte_characters() -> list[str]:
    """The printable character that the byte-level scheme gives to each byte, in byte order.

    Bytes that print in Latin-1 stand for themselves, the others for 256, 257, … in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]
