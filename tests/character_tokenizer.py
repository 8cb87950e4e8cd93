"""One token a character: enough of a tokenizer for tests of data."""


class CharacterTokenizer:
    """Ids: pad 0, begin 1, end 2, then the code point + 10. Ends of text are the set {1, 2}."""

    pad_id, bos_id, end_ids = 0, 1, (1, 2)

    def __init__(self, **changes):
        self.__dict__.update(changes)

    def encode(self, text, add_bos):
        return [self.bos_id] * add_bos + [2 if c == "\x02" else ord(c) + 10 for c in text]

    def decode(self, ids):
        return "".join(chr(i - 10) for i in ids if i >= 10)
