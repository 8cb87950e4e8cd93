"""One token a character: enough of a tokenizer for tests of data."""


class CharacterTokenizer:
    """Ids: pad 0, begin 1, end 2, then the code point + 10. Ends of text are the set {1, 2}."""

    pad_id, bos_id, end_ids = 0, 1, (1, 2)
    vocab_size = 0x110000 + 10

    def __init__(self, **changes):
        self.__dict__.update(changes)

    def encode(self, text, add_bos=None):
        begin = [] if self.bos_id is None or add_bos is False else [self.bos_id]
        return begin + [2 if c == "\x02" else ord(c) + 10 for c in text]

    def decode(self, ids):
        return "".join(chr(i - 10) for i in ids if i >= 10)

    def append_end(self, ids):
        return ids if ids and ids[-1] in self.end_ids else [*ids, 2]
