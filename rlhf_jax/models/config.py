"""Shape of a decoder-only transformer: every number that the parameters depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rlhf_jax.errors import ConfigError, check_divides, check_number

_SIZES = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A Llama-style decoder (RMSNorm, rotary positions, grouped queries, SwiGLU, no biases).

    `num_kv_heads` key/value heads are each shared by num_heads / num_kv_heads query heads.
    `vocab_padded` >= `vocab_size` is the number of rows of the embedding and columns of the head:
    the extra ones are never scored or drawn (None: no padding). `max_positions` is the longest
    sequence the weights were made for; longer ones are refused where a length is chosen.

    Raises:
        ConfigError: a size below 1, an odd head width, heads that do not group, a padded
            vocabulary smaller than the real one, a non-positive RoPE base or norm epsilon.
    """

    vocab_size: int
    """Tokens of the tokenizer."""
    num_layers: int = 4
    """Blocks of attention and feed-forward."""
    d_model: int = 128
    """Width of the residual stream."""
    num_heads: int = 4
    """Query heads."""
    num_kv_heads: int = 4
    """Key/value heads; divides num_heads."""
    head_dim: int = 32
    """Width of a head, even."""
    d_ff: int = 384
    """Width of the feed-forward layer."""
    rope_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: float = 1e-5
    """Added to the mean square in RMSNorm."""
    tie_embeddings: bool = True
    """The head is the embedding, transposed."""
    max_positions: int = 2048
    """Longest sequence, in tokens."""
    vocab_padded: int | None = None
    """Rows of the embedding; None: vocab_size."""

    def __post_init__(self):
        if self.vocab_padded is None:
            object.__setattr__(self, "vocab_padded", self.vocab_size)
        for name in (*_SIZES, "max_positions", "vocab_padded"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            fits = [j for j in range(1, self.num_heads + 1) if self.num_heads % j == 0]
            raise ConfigError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; "
                f"choose from {fits}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} must be even: rotary positions turn pairs")
        if self.vocab_padded < self.vocab_size:
            raise ConfigError(
                f"vocab_padded={self.vocab_padded} is below vocab_size={self.vocab_size}"
            )
        check_number("rope_theta", self.rope_theta, low=0.0, open_low=True)
        check_number("norm_eps", self.norm_eps, low=0.0, open_low=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """What is chosen of a new decoder; its vocabulary is the tokenizer's.

    Raises:
        ConfigError: as `DecoderConfig`, or a width that the heads do not divide.
    """

    num_layers: int = 4
    """Blocks of attention and feed-forward."""
    d_model: int = 128
    """Width of the residual stream."""
    num_heads: int = 4
    """Query heads, each d_model / num_heads wide."""
    num_kv_heads: int = 4
    """Key/value heads; divides num_heads."""
    d_ff: int = 384
    """Width of the feed-forward layer."""
    max_positions: int = 2048
    """Longest sequence, in tokens."""

    def __post_init__(self):
        for name in ("d_model", "num_heads"):
            check_number(name, getattr(self, name), low=1)
        check_divides("d_model", self.d_model, "num_heads", self.num_heads)
        self.config(1)

    def config(self, vocab_size: int, vocab_padded: int | None = None) -> DecoderConfig:
        """The decoder of this shape over a vocabulary; embedding and head are one matrix."""
        return DecoderConfig(
            vocab_size=vocab_size,
            vocab_padded=vocab_padded,
            head_dim=self.d_model // self.num_heads,
            **{field.name: getattr(self, field.name) for field in fields(self)},
        )
