"""Rotary positions (Su et al. 2104.09864) and the ways to stretch them beyond the training length.

A stretching changes the frequencies, and sometimes the length of the turned vectors, by numbers
that stand in a checkpoint's config.json; the records below bear the names that they have there.
Frequencies are worked out in float64 while a program is traced and are constants in it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from rlhf_jax.errors import ConfigError, check_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """Positions divided by `factor`."""

    factor: float

    def frequencies(self, plain: np.ndarray, theta: float) -> np.ndarray:
        return plain / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """A base that grows with sequences longer than the model's positions.

    Such are refused here, and up to there it is the plain rotation.
    """

    factor: float

    def frequencies(self, plain: np.ndarray, theta: float) -> np.ndarray:
        return plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3:
    """Waves longer than the training length are stretched, short ones kept, a ramp between.

    With L the original positions and λ a wavelength in tokens: λ > L/low is divided by `factor`,
    λ < L/high is kept, between them the share kept is (L/λ − low) / (high − low).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def frequencies(self, plain: np.ndarray, theta: float) -> np.ndarray:
        turns = self.original_max_position_embeddings * plain / (2 * math.pi)  # L/λ
        low, high = self.low_freq_factor, self.high_freq_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return plain * (kept + (1.0 - kept) / self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN (Peng et al. 2309.00071): the ramp is over the pair's index, and vectors grow longer.

    A pair that turns `beta_fast` times or more in the original positions is kept, one that turns
    `beta_slow` times or less is divided by `factor` (section 3.2; `truncate` rounds the ramp's
    ends outward to whole pairs). Queries and keys are each multiplied by `gain` (section 3.4).
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def frequencies(self, plain: np.ndarray, theta: float) -> np.ndarray:
        count = len(plain)

        def pair(turns: float) -> float:
            wavelength = self.original_max_position_embeddings / (2 * math.pi * turns)
            return count * math.log(wavelength) / math.log(theta)

        low, high = pair(self.beta_fast), pair(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * count - 1)
        # a ramp without width is a step
        stretched = np.clip((np.arange(count) - low) / ((high - low) or 0.001), 0.0, 1.0)
        return plain * (stretched / self.factor + 1.0 - stretched)

    @property
    def gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        log = 0.1 * math.log(max(self.factor, 1.0))
        if self.mscale and self.mscale_all_dim:
            return (self.mscale * log + 1.0) / (self.mscale_all_dim * log + 1.0)
        return log + 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRope:
    """LongRoPE (Ding et al. 2402.13753): every pair has a divisor of its own.

    A sequence longer than the original positions would use `long_factor` from its first token on,
    so that its cached keys and its earlier log-probs would change when it crosses that length.
    Models end at the original positions here, where `short_factor` is exact; the rest is kept to
    be written back.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    max_position_embeddings: int
    attention_factor: float | None = None
    factor: float | None = None

    def frequencies(self, plain: np.ndarray, theta: float) -> np.ndarray:
        if len(self.short_factor) != len(plain):
            raise ConfigError(
                f"short_factor has {len(self.short_factor)} numbers for {len(plain)} rotated pairs"
            )
        return plain / np.asarray(self.short_factor)

    @property
    def gain(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        original = self.original_max_position_embeddings
        factor = self.factor or self.max_position_embeddings / original
        return 1.0 if factor <= 1.0 else math.sqrt(1 + math.log(factor) / math.log(original))


Scaling = Linear | Dynamic | Llama3 | Yarn | LongRope
SCALINGS: dict[str, type[Scaling]] = {
    "linear": Linear,
    "dynamic": Dynamic,
    "llama3": Llama3,
    "yarn": Yarn,
    "longrope": LongRope,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """Rotation of the first `partial` of each head (None: all of it) with base `theta`.

    Raises:
        ConfigError: a number that is not positive; from `width`, a part that is not whole pairs.
    """

    theta: float = 10_000.0
    partial: float | None = None
    scaling: Scaling | None = None

    def __post_init__(self):
        check_number("rope_theta", self.theta, low=0.0, open_low=True)
        if self.partial is not None:
            check_number("partial_rotary_factor", self.partial, low=0.0, high=1.0, open_low=True)
        for name in self.scaling.__slots__ if self.scaling else ():
            value = getattr(self.scaling, name)
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and not isinstance(number, bool):
                    check_number(name, number, low=0.0, open_low=True)

    def width(self, head_dim: int) -> int:
        """Numbers of a head that are turned."""
        width = head_dim if self.partial is None else int(head_dim * self.partial)
        if width < 2 or width % 2:
            what = f"head_dim={head_dim}" if self.partial is None else f"{width} of {head_dim}"
            raise ConfigError(f"{what} must be even: rotary positions turn pairs")
        return width

    def frequencies(self, head_dim: int) -> np.ndarray:
        """Angle per position of each rotated pair, theta^(−2i/width) before scaling, float64."""
        width = self.width(head_dim)
        plain = float(self.theta) ** (-np.arange(0, width, 2) / width)
        return plain if self.scaling is None else self.scaling.frequencies(plain, self.theta)

    @property
    def gain(self) -> float:
        return getattr(self.scaling, "gain", 1.0)


PLAIN = Rope()
Turns = tuple[Array, Array]


def turns(position: Array, rope: Rope | None, head_dim: int) -> Turns | None:
    """cos and sin [..., 1, pairs] of the angles at `position[...]`, float32; None: no rotation."""
    if rope is None:
        return None
    frequency = jnp.asarray(rope.frequencies(head_dim), jnp.float32)
    frequency = frequency.reshape((1,) * position.ndim + (-1,))
    angle = position.astype(jnp.float32)[..., None] * frequency
    cos, sin = jnp.cos(angle)[..., None, :], jnp.sin(angle)[..., None, :]
    return (cos, sin) if rope.gain == 1.0 else (cos * rope.gain, sin * rope.gain)


def rotate(x: Array, turns: Turns | None) -> Array:
    """Vectors [..., heads, K] turned (eq. 34), in float32.

    Half-split convention of the Hugging Face checkpoints: of a rotated width W ≤ K pair i is
    (x_i, x_{i+W/2}); numbers beyond W pass.
    """
    if turns is None:
        return x
    cos, sin = turns
    pairs = cos.shape[-1]
    ends = [*range(pairs, x.shape[-1], pairs)]
    first, second, *rest = jnp.split(x.astype(jnp.float32), ends, axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return jnp.concatenate([*turned, *rest], axis=-1).astype(x.dtype)
