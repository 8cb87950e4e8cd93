import enum
import json
import math
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlhf_jax.bind import Bound, bind
from rlhf_jax.report.resolved import changed_options, commit, resolved, surroundings


def clipped(x, *, low=0.2, high=0.2, inner=None):
    return x


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    rate: float = 1e-5
    sizes: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    inner: Inner
    surrogate: Bound
    rewards: tuple
    value: Inner | None = None


def test_a_nested_config():
    config = Config(
        inner=Inner(),
        surrogate=bind(clipped, low=0.1, inner=bind(clipped, high=None)),
        rewards=(bind(clipped), clipped),
    )
    here = __name__
    assert resolved(config) == {
        "inner": {"rate": 1e-5, "sizes": [1, 2]},
        "surrogate": {
            "fn": f"{here}:clipped",
            "inner": {"fn": f"{here}:clipped", "high": None},
            "low": 0.1,
        },
        "rewards": [{"fn": f"{here}:clipped"}, f"{here}:clipped"],
        "value": None,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (jnp.asarray([1.0, math.nan]), [1.0, None]),
        (jnp.bfloat16, "bfloat16"),
        (np.float32, "float32"),
        (np.dtype("int32"), "int32"),
        (Colour.RED, "RED"),
        (Path("a/b"), "a/b"),
        ({"b", "a"}, ["a", "b"]),
        ({1: (2, None)}, {"1": [2, None]}),
    ],
)
def test_values(value, expected):
    found = resolved(value)
    assert found == expected and type(found) is type(expected)
    assert json.loads(json.dumps(found, allow_nan=False)) == expected


def test_what_cannot_be_written_is_refused():
    with pytest.raises(TypeError, match="object"):
        resolved({"a": [object()]})


@dataclass(frozen=True)
class Part:
    seed: int = 0
    rate: float = 0.1
    out: str = ""


@dataclass(frozen=True)
class Whole:
    part: Part = Part()
    other: int = 3


def test_changed_options_are_told_by_the_file_that_was_run(monkeypatch):
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    mine = Part(seed=2, out="runs/x")
    assert changed_options(mine) is None
    main.CONFIG = Part(rate=0.2)
    assert changed_options(mine) == {
        "seed": (0, 2),
        "rate": (0.2, 0.1),
    }  # where it lies is no change
    main.CONFIG = Whole()  # of which it is a part
    assert changed_options(mine) == {"seed": (0, 2)}
    assert changed_options(Whole()) == {}
    main.CONFIG = (1, 2)
    assert changed_options(mine) is None


def test_surroundings_name_what_was_used():
    found = surroundings()
    assert found["versions"]["jax"] == jax.__version__
    assert all(
        found["versions"][name] for name in ("python", "rlhf_jax", "jaxlib", "orbax-checkpoint")
    )
    assert found["devices"] == {"kind": "cpu", "platform": "cpu", "count": 8, "processes": 1}
    json.dumps(found)


def git(folder, *arguments):
    name = ["-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run(["git", "-C", folder, *name, *arguments], check=True, capture_output=True)


def test_commit(tmp_path):
    tracked, other = tmp_path / "a.py", tmp_path / "b.py"
    tracked.write_text("1")
    other.write_text("1")
    assert commit(tracked) is None
    git(tmp_path, "init")
    git(tmp_path, "add", "a.py")
    git(tmp_path, "commit", "-m", "first")
    head = commit(tracked)
    assert len(head) == 40
    assert commit(other) is None
    tracked.write_text("2")
    assert commit(tracked) == head + "+dirty"
