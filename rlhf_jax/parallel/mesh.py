"""The one call that makes a mesh. Axes, outermost first: data, fsdp, tensor.

`data` copies the parameters and splits the rows; `fsdp` splits both; `tensor` splits heads, the
feed-forward width and the vocabulary. Across hosts, give `data` the slow network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh

from rlhf_jax.errors import ConfigError

AXES = ("data", "fsdp", "tensor")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshConfig:
    """Devices along each mesh axis; -1 (one axis at most) takes all that remain."""

    data: int = -1
    """Copies of the parameters, each with its share of the rows."""
    fsdp: int = 1
    """Parts that parameters, optimizer state and rows are split into."""
    tensor: int = 1
    """Parts that heads, feed-forward width and vocabulary are split into."""

    def __post_init__(self):
        for name, size in zip(AXES, self.shape, strict=True):
            whole = isinstance(size, int) and not isinstance(size, bool)
            if not whole or (size < 1 and size != -1):
                raise ConfigError(
                    f"mesh.{name}={size!r}; take a positive number of devices, or -1 for the rest"
                )
        if self.shape.count(-1) > 1:
            free = [f"mesh.{name}" for name, size in zip(AXES, self.shape, strict=True) if size < 0]
            raise ConfigError(f"only one axis may be -1, not {' and '.join(free)}; set one to 1")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.data, self.fsdp, self.tensor


def resolve_shape(cfg: MeshConfig, num_devices: int) -> tuple[int, int, int]:
    """The mesh shape with -1 filled in.

    Raises:
        ConfigError: the product is not `num_devices`; names the nearest shapes that fit.
    """
    fixed = math.prod(size for size in cfg.shape if size > 0)
    if -1 in cfg.shape and num_devices % fixed == 0:
        return tuple(num_devices // fixed if size < 0 else size for size in cfg.shape)
    if fixed == num_devices and -1 not in cfg.shape:
        return cfg.shape
    near = sorted(_shapes(num_devices), key=lambda shape: _distance(shape, cfg.shape))[:3]
    asked = " x ".join(f"{name}={size}" for name, size in zip(AXES, cfg.shape, strict=True))
    raise ConfigError(
        f"mesh {asked} does not use the {num_devices} devices here; nearest (data, fsdp, tensor): "
        + ", ".join(map(str, near))
    )


def make_mesh(cfg: MeshConfig, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over `devices` (all of them by default), every axis of type Auto.

    Raises:
        ConfigError: the axes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else list(devices)
    shape = resolve_shape(cfg, len(devices))
    # Said out loud: make_mesh's own default is Explicit since jax 0.9, and there a gather from
    # an embedding that is split over the vocabulary raises.
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)


def _shapes(n: int) -> list[tuple[int, int, int]]:
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    return [(n // (f * t), f, t) for f in divisors for t in divisors if n % (f * t) == 0]


def _distance(shape: tuple[int, ...], asked: tuple[int, ...]) -> float:
    """How far in factors, over the axes that were given a number; ties keep less tensor."""
    apart = sum(abs(math.log2(s / a)) for s, a in zip(shape, asked, strict=True) if a > 0)
    return apart + 1e-6 * shape[2] + 1e-9 * shape[1]
