"""The README's Python runs, and its commands and files exist."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_python_block_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(blocks) >= 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})
    assert "-1.1051" in capsys.readouterr().out  # −exp(.1): the ratio is inside the clip


def test_every_module_named_in_a_command_exists():
    modules = set(re.findall(r"python -m (experiments\.\w+)", README)) - {"experiments.YOURS"}
    assert {"experiments.quickstart", "experiments.grpo_stories"} <= modules
    for module in modules:
        assert importlib.util.find_spec(module), module


def test_every_linked_file_exists():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


def test_no_placeholder_is_left():
    assert not re.findall(r"\b[A-Z]+_(?:TABLE|FIGURE)\b|TODO|TBD", README)
