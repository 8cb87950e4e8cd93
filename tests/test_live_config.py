"""Every option is read by something: a knob that nothing reads promises what is not there."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted([*(ROOT / "rlhf_jax").rglob("*.py"), *(ROOT / "experiments").rglob("*.py")])


def config_fields() -> dict[tuple[str, str], Path]:
    """(class, field) of every dataclass named *Config."""
    fields = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                for item in node.body:
                    if isinstance(item, ast.AnnAssign):
                        fields[node.name, item.target.id] = file
    return fields


def attributes_read() -> dict[str, int]:
    """How often each attribute name is read outside a `__post_init__` (checks are no use)."""
    counts: dict[str, int] = {}

    class Reads(ast.NodeVisitor):
        def visit_FunctionDef(self, node):
            if node.name != "__post_init__":
                self.generic_visit(node)

        def visit_Attribute(self, node):
            if isinstance(node.ctx, ast.Load):
                counts[node.attr] = counts.get(node.attr, 0) + 1
            self.generic_visit(node)

    for file in FILES:
        Reads().visit(ast.parse(file.read_text()))
    return counts


def test_every_config_field_is_read():
    reads = attributes_read()
    fields = config_fields()
    assert len(fields) > 30, "the walk found too few options: does it look in the right place?"
    dead = [f"{cls}.{name} ({file})" for (cls, name), file in fields.items() if name not in reads]
    assert not dead, f"options that nothing reads: {dead}"
