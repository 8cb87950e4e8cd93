"""One ordered table, parameter path -> PartitionSpec. Policy, critic, reference, optimizer state.

Paths are "/"-joined ("policy/layers/attn/q_NDHK"); the first rule whose pattern ends the path
wins. The optimizer state repeats the parameter paths and the critic's trunk is the same tree, so
one table serves all. Scalars (counters, coefficients) need no rule: they are replicated.

What does not fit is refused: no rule, a dimension that does not divide, one mesh axis twice. Two
declared exceptions: key/value heads that do not divide by the tensor axis are replicated, and a
vocabulary is padded beforehand to `padded_vocab`.
"""

from __future__ import annotations

import re
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rlhf_jax.errors import ConfigError, check_divides

ROW_AXES = ("data", "fsdp")

TABLE: tuple[tuple[str, P], ...] = (
    (r"embed/w_VD", P("tensor", "fsdp")),  # VD
    (r"attn/q_NDHK", P(None, "fsdp", "tensor", None)),  # NDHK
    (r"attn/[kv]_NDJK", P(None, "fsdp", "tensor", None)),  # NDJK
    (r"attn/o_NHKD", P(None, "tensor", None, "fsdp")),  # NHKD
    (
        r"attn/bias_q_NHK",
        P(None, "tensor", None),
    ),  # NHK: as what it is added to
    (r"attn/bias_[kv]_NJK", P(None, "tensor", None)),  # NJK
    (r"mlp/(gate|up)_NDF", P(None, "fsdp", "tensor")),  # NDF
    (r"mlp/down_NFD", P(None, "tensor", "fsdp")),  # NFD
    (r"mlp/bias_(gate|up)_NF", P(None, "tensor")),  # NF
    (r"(attn/bias_o|mlp/bias_down)_ND", P()),  # ND: small, and read whole by every device
    (r"norm_(attn|mlp)(_out)?/(scale|gain|bias)_ND", P()),  # ND
    (r"attn/norm_[qk]/(scale|gain)_NK", P()),  # NK
    (r"norm_out/(scale|gain|bias)_D", P()),  # D
    (r"positions/w_TD", P(None, "fsdp")),  # TD
    (r"head/w_DV", P("fsdp", "tensor")),  # DV
    # Low-rank adapters: an axis is split as it is in the weight, the rank U nowhere.
    (r"a_NDU", P(None, "fsdp")),  # NDU
    (r"a_NHKU", P(None, "tensor")),  # NHKU
    (r"a_NFU", P(None, "tensor")),  # NFU
    (r"b_NU(HK|JK|F)", P(None, None, "tensor")),  # NUHK, NUJK, NUF
    (r"b_NUD", P(None, None, "fsdp")),  # NUD
    (r"head/(w_D|b)", P()),  # D and a scalar: a scalar head (critic, reward)
)
# Rules whose J dimension may be replicated: with fewer key/value heads than tensor devices,
# every device keeps them all, as its query heads need some of them.
_KV_HEADS = re.compile(r"attn/(bias_)?[kv]_(NDJK/b_)?(?P<dims>N[DU]?JK)$")


def path_name(path: tuple[Any, ...]) -> str:
    """A pytree key path as "policy/layers/attn/q_NDHK"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def spec_for(path: str, shape: tuple[int, ...], mesh: Mesh, *, table=TABLE) -> P:
    """The PartitionSpec of one array.

    Args:
        path: "/"-joined tree path; only its end is matched.
        shape: of the array; each sharded dimension must divide by its mesh axes.
        mesh: axes missing from it raise.
        table: ordered (pattern, spec).

    Raises:
        ConfigError: no rule matches; the rule has more dimensions than the array, or uses a mesh
            axis twice or one that is not there; a dimension does not divide.
    """
    if not shape:
        return P()
    spec = next((spec for rule, spec in table if re.search(f"(^|/)({rule})$", path)), None)
    if spec is None:
        rules = ", ".join(rule for rule, _ in table)
        raise ConfigError(f"no sharding rule matches {path} of shape {shape}; rules: {rules}")
    axes = [_names(entry) for entry in spec]
    used = [name for names in axes for name in names]
    unknown = [name for name in used if name not in mesh.shape]
    if unknown or len(set(used)) < len(used) or len(spec) > len(shape):
        raise ConfigError(
            f"the rule for {path} {shape} is {spec}: use each of {tuple(mesh.shape)} at most once, "
            f"and at most {len(shape)} entries"
        )
    kv = _KV_HEADS.search(path)
    for dim, names in enumerate(axes):
        parts = _size(mesh, names)
        if shape[dim] % parts and kv and kv["dims"][dim] == "J":
            axes[dim] = ()
        else:
            check_divides(f"{path} dimension {dim}", shape[dim], f"mesh {'*'.join(names)}", parts)
    return _shortest(mesh, axes)


def sharding_tree(mesh: Mesh, tree: Any, *, table=TABLE) -> Any:
    """A NamedSharding for every array (or ShapeDtypeStruct) of `tree`; see `spec_for`."""

    def leaf(path, x):
        return NamedSharding(mesh, spec_for(path_name(path), x.shape, mesh, table=table))

    return jax.tree_util.tree_map_with_path(leaf, tree)


def constrain(mesh: Mesh | None, tree: Any) -> Any:
    """Inside jit: keep every parameter-like array of `tree` on its rule. No mesh: unchanged."""
    if mesh is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, sharding_tree(mesh, tree))


def shard(mesh: Mesh, tree: Any) -> Any:
    """Put a tree of parameters or optimizer state on the mesh by the table."""
    return jax.device_put(tree, sharding_tree(mesh, tree))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows over data and fsdp, everything else whole: for arrays [B, ...]."""
    return NamedSharding(mesh, _shortest(mesh, [ROW_AXES]))


def shard_rows(mesh: Mesh, batch: Any) -> Any:
    """Put arrays that all lead with B on the mesh, rows split.

    Raises:
        ConfigError: B does not divide by the row shards.
    """
    for path, x in jax.tree_util.tree_leaves_with_path(batch):
        check_divides(f"rows of {path_name(path)}", x.shape[0], "data*fsdp", row_shards(mesh))
    return jax.device_put(batch, batch_sharding(mesh))


def constrain_rows(mesh: Mesh | None, batch: Any, *, dim: int = 0) -> Any:
    """Inside jit: keep dimension `dim` of every array split over the row shards."""
    if mesh is None:
        return batch
    sharding = NamedSharding(mesh, _shortest(mesh, [()] * dim + [ROW_AXES]))
    return jax.lax.with_sharding_constraint(batch, sharding)


def hold(x: Any, *spec) -> Any:
    """Inside jit, under `jax.set_mesh`: keep an activation or a weight on this PartitionSpec.

    No mesh with our axes in context: unchanged.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(name not in mesh.axis_names for name in ROW_AXES):
        return x
    return jax.lax.with_sharding_constraint(x, P(*spec))


def row_shards(mesh: Mesh | None) -> int:
    """Into how many parts rows are split: data times fsdp."""
    return 1 if mesh is None else _size(mesh, ROW_AXES)


def padded_vocab(vocab: int, tensor: int) -> int:
    """The smallest multiple of `tensor` that holds `vocab`; the extra columns are masked."""
    return -(-vocab // tensor) * tensor


def _shortest(mesh: Mesh, axes: list[tuple[str, ...]]) -> P:
    """A spec without axes of size 1 and trailing Nones.

    Compiled programs report their outputs' shardings in this form. Inputs in another form would
    be told apart from them, and the second step of a run would miss jit's fast path.
    """
    used = [tuple(name for name in names if mesh.shape[name] > 1) for names in axes]
    entries = [names[0] if len(names) == 1 else names or None for names in used]
    while entries and entries[-1] is None:
        entries.pop()
    return P(*entries)


def _names(entry) -> tuple[str, ...]:
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def _size(mesh: Mesh, names: tuple[str, ...]) -> int:
    size = 1
    for name in names:
        size *= mesh.shape[name]
    return size
