"""Imports go downwards only, and each third-party library lives in one place."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"types", "bind", "errors"},
    {"parts"},
    {"ops", "parallel"},
    {"losses", "advantages"},
    {"algorithms", "models"},
    {"train", "rollout", "rewards", "environments", "data", "report"},
    {"loops"},
    {"plan"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
EXPERIMENTS = len(LAYERS)

# library -> where it may be imported (a package, or one file)
HOMES = {
    "flax": {"models"},
    "transformers": {"models"},
    "tokenizers": {"models"},
    "safetensors": {"models"},
    "tensorflow_datasets": {"data"},
    "grain": {"data"},
    "orbax": {"train/checkpoint.py"},
    "optax": {"train"},
    "tensorboardX": {"report"},
    "matplotlib": {"report"},
    "scipy": {"report"},
    "rich": {"report", "data/__main__.py"},
    "pyarrow": {"data"},
    "jinja2": {"models", "report"},
    "math_verify": {"rewards/maths_work.py"},
    "jsonschema": {"rewards/tools.py"},
    "referencing": {"rewards/tools.py"},
    "regex": {"rewards/format.py"},
    "pyseccomp": {"rewards/sandbox.py"},
    "reasoning_gym": {"data/reasoning_gym.py", "rewards/reasoning_gym_work.py"},
    "tyro": set(),  # experiments/launch.py alone
}
NEVER = {"torch", "tensorflow"}
MATHS = {"ops", "losses", "advantages", "algorithms"}
MATHS_MAY_IMPORT = {"jax", "numpy", "chex", "rlhf_jax"} | set(sys.stdlib_module_names)

FILES = sorted((ROOT / "rlhf_jax").rglob("*.py"))


def imported(file: Path) -> list[str]:
    """Every module name a file imports, also inside functions."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import; write the full name"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def home(file: Path) -> str:
    """`losses` for rlhf_jax/losses/kl.py, `bind` for rlhf_jax/bind.py, "" for __init__."""
    first = file.relative_to(ROOT / "rlhf_jax").parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_go_downwards(file):
    here = home(file)
    for name in imported(file):
        top, *rest = name.split(".")
        assert top != "experiments", f"{file.name} imports {name}: nobody imports experiments"
        assert top not in NEVER, f"{file.name} imports {top}"
        if top == "rlhf_jax" and rest and rest[0] != here and here:
            assert rest[0] in LEVEL, f"{name} has no layer; add it to LAYERS"
            assert LEVEL[rest[0]] < LEVEL[here], (
                f"{here} (layer {LEVEL[here]}) imports {name} (layer {LEVEL[rest[0]]})"
            )


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_third_party_libraries_stay_at_home(file):
    relative = str(file.relative_to(ROOT / "rlhf_jax"))
    for name in imported(file):
        top = name.split(".")[0]
        if top in HOMES:
            assert home(file) in HOMES[top] or relative in HOMES[top], f"{relative}: {name}"
        if home(file) in MATHS:
            assert top in MATHS_MAY_IMPORT, f"{relative}: {name}; a formula needs jax alone"


def test_only_the_launcher_and_the_tests_touch_jax_config():
    for file in [*FILES, *(ROOT / "experiments").rglob("*.py")]:
        if file.name != "launch.py":
            assert "jax.config." not in file.read_text(), file


def test_no_deprecated_sharding_names():
    for file in FILES:
        text = file.read_text()
        for name in ("experimental.pjit", "experimental.shard_map", "device_put_replicated"):
            assert name not in text, f"{file}: {name}"


def test_the_walk_sees_a_bad_import(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from rlhf_jax.loops import online\n    import optax\n")
    assert imported(bad) == ["rlhf_jax.loops.online", "optax"]


def test_test_files_have_names_of_their_own():
    """pytest tells modules by their basename: two of one name stop the whole run."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
