"""Two resolved configs, and what tells them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# where a run is written to and how it is begun is no part of what it computes
PLACES = ("out", "restart")


def differences(old: Any, new: Any, path: str = "") -> dict[str, tuple[Any, Any]]:
    """Dotted option -> (old, new), wherever two resolved values differ.

    A term whose function or arguments are others differs as a whole; so do lists of different
    lengths. An option that one side lacks is None there.

    Args:
        old, new: as `resolved` gives them.
        path: of the two; "" for a whole config.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("fn") == new.get("fn"):
        pairs = {name: (old.get(name), new.get(name)) for name in {**old, **new}}
    elif _is_list(old) and _is_list(new) and len(old) == len(new):
        pairs = {str(i): pair for i, pair in enumerate(zip(old, new, strict=True))}
    else:
        same = old == new and isinstance(old, bool) == isinstance(new, bool)
        return {} if same else {path: (old, new)}
    found = {}
    for name, (left, right) in pairs.items():
        found |= differences(left, right, f"{path}.{name}" if path else name)
    return found


def shown(value: Any) -> str:
    """A resolved value in one line: `clipped(high=0.28, low=0.2)`, not nested objects."""
    if isinstance(value, Mapping):
        arguments = {name: item for name, item in value.items() if name != "fn"}
        inside = ", ".join(f"{name}={shown(item)}" for name, item in arguments.items())
        return f"{_name(value['fn']) if 'fn' in value else ''}({inside})"
    if _is_list(value):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, str):
        return _name(value)
    return json.dumps(value)


def without_seed(config: Mapping[str, Any]) -> Any:
    """What runs that differ by their seed alone have in common.

    Left out are the places, every option named "seed", and the run's own folder wherever it stands
    in a path (the quickstart starts from the policy in its warm-up's folder inside).
    """
    out = config.get("out")

    def common(value):
        if isinstance(value, Mapping):
            kept = {name: item for name, item in value.items() if name != "seed"}
            return {name: common(item) for name, item in kept.items()}
        if _is_list(value):
            return [common(item) for item in value]
        if isinstance(value, str):
            value = value.replace(out, "OUT") if out else value
            # the folder of a seed: …/seed_3/policy
            return re.sub(r"(seed[_-]?)\d+", r"\1N", value)
        return value

    return common({name: item for name, item in config.items() if name not in PLACES})


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _name(text: str) -> str:
    """`clipped` for "rlhf_jax.losses.surrogate:clipped"; another text as it is."""
    return text.split(":")[1] if re.fullmatch(r"[\w.]+:[\w.]+", text) else text
