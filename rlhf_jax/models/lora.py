"""Low-rank adapters: a small pytree beside a frozen decoder.

    y = x·W + s·(x·A)·B        s = α/r, or α/√r        (LoRA, arXiv:2106.09685, eq. 3)

The adapters of a decoder repeat the paths of the matrices that they adapt, each with two arrays in
place of one: `layers/attn/q_NDHK` has `q_NDHK/a_NDU` and `q_NDHK/b_NUHK`. `attach` lays them beside
the frozen arrays and computes nothing; a decoder takes the tree that it returns wherever it takes
parameters, and `merged` makes plain parameters of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlhf_jax.errors import ConfigError, check_choice, check_number
from rlhf_jax.parts import check_kinds
from rlhf_jax.types import pytree

# A target's name -> its path, the axes that it reads and those that it writes.
MATRICES = {
    "q": ("layers/attn/q_NDHK", "D", "HK"),
    "k": ("layers/attn/k_NDJK", "D", "JK"),
    "v": ("layers/attn/v_NDJK", "D", "JK"),
    "o": ("layers/attn/o_NHKD", "HK", "D"),
    "gate": ("layers/mlp/gate_NDF", "D", "F"),
    "up": ("layers/mlp/up_NDF", "D", "F"),
    "down": ("layers/mlp/down_NFD", "F", "D"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Train adapters of low rank and leave the model's own parameters as they are."""

    rank: int = 16
    """r: columns of A and rows of B."""
    alpha: float = 32.0
    """α: the update is scaled by alpha/rank."""
    targets: tuple[str, ...] | None = None
    """Which matrices of every layer: of q, k, v, o, gate, up and down. None: all that there are."""
    rslora: bool = False
    """Scale by alpha/√rank instead (arXiv:2312.03732), so that the step does not shrink with it."""
    adapter: str | None = None
    """Folder of an adapter in PEFT's format to go on from; rank, alpha, targets and rslora must be
    its own. None: begin at the model itself."""

    def __post_init__(self):
        check_kinds(self, "lora.")
        check_number("lora.rank", self.rank, low=1)
        check_number("lora.alpha", self.alpha, low=0, open_low=True)
        if self.targets is None:
            return
        if not self.targets or len(set(self.targets)) < len(self.targets):
            raise ConfigError(f"lora.targets={self.targets}: name each matrix once, one at least")
        for name in self.targets:
            check_choice("lora.targets", name, MATRICES)

    @property
    def scale(self) -> float:
        """s of the module's docstring."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


@pytree
class LowRank:
    """A frozen weight and its adapter, in the place of a weight: w + scale · a·b.

    w: [N, in…, out…], a: [N, in…, U], b: [N, U, out…]; N is cut off in the scan over layers.
    """

    w: Array
    a: Array
    b: Array
    scale: float = field(metadata={"static": True})


def adapter_shapes(cfg: LoraConfig, params: Any) -> dict[str, Any]:
    """The tree of adapters for a decoder, as `ShapeDtypeStruct`s in float32.

    Args:
        cfg: which, and of what rank.
        params: the decoder's parameters, or their shapes.

    Raises:
        ConfigError: a target that this decoder lacks, or a rank that is no reduction.
    """
    tree: dict[str, Any] = {}
    for name in cfg.targets or MATRICES:
        path, into, out = MATRICES[name]
        layers, group, leaf = path.split("/")
        weight = params[layers][group].get(leaf)
        if weight is None and cfg.targets is None:
            continue
        if weight is None:
            raise ConfigError(f"lora.targets: this decoder has no matrix {name}")
        read, written = weight.shape[1 : 1 + len(into)], weight.shape[1 + len(into) :]
        most = min(math.prod(read), math.prod(written))
        if cfg.rank > most:
            raise ConfigError(f"lora.rank={cfg.rank} is above {most}, the full rank of {name}")
        shapes = {
            f"a_N{into}U": (weight.shape[0], *read, cfg.rank),
            f"b_NU{out}": (weight.shape[0], cfg.rank, *written),
        }
        group = tree.setdefault(layers, {}).setdefault(group, {})
        group[leaf] = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in shapes.items()}
    return tree


def init_adapters(key: Array, shapes: dict[str, Any]) -> dict[str, Any]:
    """A uniform in ±1/√(inputs), B zeros: the decoder as it is, to the bit.

    The paper draws A from a normal; the bounds are those of its code and of PEFT (Kaiming uniform
    with a = √5). One random array is cut into all of them, as in `models.init.fill`.

    Args:
        key: of the run's seed.
        shapes: of `adapter_shapes`.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(shapes)
    sizes = [math.prod(x.shape) if path[-1].key.startswith("a_") else 0 for path, x in leaves]
    unit = jax.random.uniform(key, (sum(sizes),), jnp.float32, -1.0, 1.0)
    arrays, start = [], 0
    for size, (_, x) in zip(sizes, leaves, strict=True):
        if not size:
            arrays.append(jnp.zeros(x.shape, x.dtype))
            continue
        inputs = math.prod(x.shape[1:-1])
        arrays.append(unit[start : start + size].reshape(x.shape) / math.sqrt(inputs))
        start += size
    return jax.tree.unflatten(tree, arrays)


def attach(base: Any, trained: Any, scale: float) -> Any:
    """One tree of parameters from frozen and trained ones: nothing is computed or copied.

    Where `trained` has an adapter, the frozen weight and it become a `LowRank`; where it has an
    array, that array stands (a head that is trained whole); all else is frozen.
    """
    if not isinstance(trained, dict):
        return trained
    pair = sorted(trained)
    if [name[:2] for name in pair] == ["a_", "b_"]:
        return LowRank(w=base, a=trained[pair[0]], b=trained[pair[1]], scale=scale)
    tree = dict(base)
    for name, part in trained.items():
        tree[name] = attach(base.get(name, {}), part, scale)
    return tree


def merged(params: Any) -> Any:
    """Plain parameters: w + scale · a·b in float32, in the dtype of w; others as they are."""
    return jax.tree.map(
        lambda x: _merge(x) if isinstance(x, LowRank) else x,
        params,
        is_leaf=lambda x: isinstance(x, LowRank),
    )


def _merge(x: LowRank) -> Array:
    # full float32 on every device: an update is small beside the weight that it changes
    change = lax.dot_general(
        x.a,
        x.scale * x.b,
        (((x.a.ndim - 1,), (1,)), ((0,), (0,))),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return (x.w.astype(jnp.float32) + change).astype(x.w.dtype)
