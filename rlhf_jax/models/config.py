"""Shape of a decoder-only transformer: every number that the parameters depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from rlhf_jax.errors import ConfigError, check_choice, check_divides, check_number
from rlhf_jax.models.rope import PLAIN, Rope

_SIZES = ("vocab_size", "num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")
NORMS = ("rms", "rms+1", "layer")
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder; as it stands, a Llama: RMSNorm, rotary positions, grouped queries, SwiGLU.

    `num_kv_heads` key/value heads are each shared by num_heads / num_kv_heads query heads.
    `vocab_padded` >= `vocab_size` is the number of rows of the embedding and columns of the head:
    the extra ones are never scored or drawn (None: no padding). `max_positions` is the longest
    sequence the weights were made for; longer ones are refused where a length is chosen.

    A layer is local (it sees a sliding window) or global. Which is which is data to the program:
    layers of both kinds run through one scan.

    Raises:
        ConfigError: a size below 1, heads that do not group or turn, a padded vocabulary smaller
            than the real one, a number that is not positive, an unknown norm or activation, local
            layers that do not match the number of layers or have no window.
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
    """Width of a head."""
    d_ff: int = 384
    """Width of the feed-forward layer."""
    max_positions: int = 2048
    """Longest sequence, in tokens."""
    vocab_padded: int | None = None
    """Rows of the embedding; None: vocab_size."""
    tie_embeddings: bool = True
    """The head is the embedding, transposed."""
    family: str = "llama"
    """Which family's names and options an export is written in; nothing else depends on it."""

    norm: str = "rms"
    """rms: x̂·scale; rms+1: x̂·(1 + gain); layer: (x̂ − mean)·scale + bias."""
    norm_eps: float = 1e-5
    """Added to the mean square in a norm."""
    norm_outputs: bool = False
    """Attention and feed-forward are normed again before they join the residual stream."""
    qk_norm: bool = False
    """Each head of queries and keys is normed, before rotation."""
    activation: str = "silu"
    """Of the feed-forward layer; gelu is exact, the other two are its tanh form."""
    gated: bool = True
    """Feed-forward is (act(x W_gate) ⊙ x W_up) W_down, else act(x W_up) W_down."""
    qkv_bias: bool = False
    """Queries, keys and values have biases."""
    out_bias: bool = False
    """The attention's output has a bias."""
    mlp_bias: bool = False
    """The feed-forward layer has biases."""
    scale_embeddings: bool = False
    """Embeddings are multiplied by √d_model."""
    rope: Rope | None = PLAIN
    """Rotary positions; None: positions are learned vectors, added to the embeddings."""
    query_scalar: float | None = None
    """Scores are divided by its root; None: head_dim."""
    attn_softcap: float | None = None
    """Scores s become cap·tanh(s/cap)."""
    logit_softcap: float | None = None
    """Logits z become cap·tanh(z/cap)."""
    window: int | None = None
    """How many tokens, itself included, a token of a local layer sees."""
    local_layers: tuple[bool, ...] | None = None
    """Which layers are local; None: all if there is a window."""
    rope_local: Rope | None = None
    """Rotation of the local layers; None: as everywhere."""

    def __post_init__(self):
        if self.vocab_padded is None:
            object.__setattr__(self, "vocab_padded", self.vocab_size)
        optional = () if self.window is None else ("window",)
        for name in (*_SIZES, "max_positions", "vocab_padded", *optional):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name}={value!r} must be a whole number of at least 1")
        if self.num_heads % self.num_kv_heads:
            fits = [j for j in range(1, self.num_heads + 1) if self.num_heads % j == 0]
            raise ConfigError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; "
                f"choose from {fits}"
            )
        if self.vocab_padded < self.vocab_size:
            raise ConfigError(
                f"vocab_padded={self.vocab_padded} is below vocab_size={self.vocab_size}"
            )
        check_choice("norm", self.norm, NORMS)
        check_choice("activation", self.activation, ACTIVATIONS)
        for name in ("norm_eps", "query_scalar", "attn_softcap", "logit_softcap"):
            if getattr(self, name) is not None or name == "norm_eps":
                check_number(name, getattr(self, name), low=0.0, open_low=True)
        for rope in (self.rope, self.rope_local):
            if rope is not None:
                rope.frequencies(self.head_dim)
        self._check_locals()

    def _check_locals(self):
        if self.local_layers is None:
            if self.rope_local is not None:
                raise ConfigError("rope_local without local_layers: which layers would have it?")
            return
        if len(self.local_layers) != self.num_layers or set(self.local_layers) != {True, False}:
            raise ConfigError(
                f"local_layers={self.local_layers} must say of each of num_layers={self.num_layers}"
                " whether it is local, and some must be and some not"
            )
        if self.window is None or (self.rope is None and self.rope_local is not None):
            raise ConfigError("local_layers need a window, and rope_local a rope")

    @property
    def kinds(self) -> tuple[tuple[int | None, Rope | None], ...]:
        """(window, rope) of each kind of layer: one, or the global and the local."""
        if self.local_layers is None:
            return ((self.window, self.rope),)
        return ((None, self.rope), (self.window, self.rope_local or self.rope))

    @property
    def score_scale(self) -> float:
        """What q·k is multiplied by."""
        return (self.head_dim if self.query_scalar is None else self.query_scalar) ** -0.5


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
