"""From a config value to a run: command line, process settings, and how errors end.

    if __name__ == "__main__":
        launch(CONFIG, train)

Every field of the config is an option, also inside nested configs, objectives and bound terms
(`--objective.surrogate.low 0.1`); functions are shown, and are swapped in a file. Only here is
jax.config touched.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import jax
import tyro
from tyro.constructors import (
    ConstructorRegistry,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from rlhf_jax.bind import Bound
from rlhf_jax.errors import ConfigError, Interrupted

Config = TypeVar("Config")

_PLAIN = (bool, int, float, str, type(None))


def launch(default: Config, run: Callable[[Config], Any], argv: Sequence[str] | None = None) -> Any:
    """Read the command line into a config and run it.

    Args:
        default: the experiment's config; every option defaults to its value.
        run: what to do with the config.
        argv: options; None: those of the process.

    Returns:
        What `run` returns.

    Raises:
        SystemExit: 0 after --help; 2 with a message for an unknown option, a value out of range
            or a `ConfigError` of the run; 130 after an interruption, saying how to go on.
    """
    try:
        config = parse(default, argv)
        _keep_compiled_programs()
        return run(config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        raise SystemExit(130) from None
    except KeyboardInterrupt:
        print(
            "interrupted; the same command goes on from the newest checkpoint, if there is one",
            file=sys.stderr,
        )
        raise SystemExit(130) from None


def parse(default: Config, argv: Sequence[str] | None = None) -> Config:
    """The config with the options of `argv` applied; errors and --help leave by SystemExit."""
    registry = ConstructorRegistry()
    registry.struct_rule(_rule)
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return tyro.cli(
        type(default),
        default=default,
        args=None if argv is None else list(argv),
        prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
        description=getattr(main, "__doc__", None),
        registry=registry,
    )


def _keep_compiled_programs() -> None:
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        try:
            folder = Path.home() / ".cache" / "rlhf_jax"
        except RuntimeError:  # a user without a home, as in many containers: nothing is kept
            return
        jax.config.update("jax_compilation_cache_dir", str(folder))
        print(f"compiled programs are kept in {folder} (JAX_COMPILATION_CACHE_DIR moves them)")


class _Fixed(str):
    """What an option shows that a command line cannot set, and the value that it stands for."""

    value: Any


def _rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    """How tyro takes apart and rebuilds the values that a config is made of."""
    value = info.default
    if isinstance(value, Bound):
        return _bound_spec(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls, hints = type(value), _hints(type(value))
        names = [f.name for f in dataclasses.fields(value)]
        fields = [_field(n, getattr(value, n), hints.get(n), field_help(cls, n)) for n in names]
        return _spec(cls, fields)
    if isinstance(value, tuple) and any(_is_term(item) for item in value):
        fields = [_field(str(i), item, None, "") for i, item in enumerate(value)]
        return _spec(lambda **items: tuple(items.values()), fields)
    return None


def _spec(build: Callable[..., Any], fields: Sequence[StructFieldSpec]) -> StructConstructorSpec:
    def instantiate(**kw):
        values = {k: v.value if isinstance(v, _Fixed) else v for k, v in kw.items()}
        return build(**values)

    return StructConstructorSpec(instantiate=instantiate, fields=tuple(fields))


def _bound_spec(bound: Bound) -> StructConstructorSpec:
    """Its function, fixed, then its arguments, keyword-only ones left at their default too."""
    defaults = {
        p.name: p.default
        for p in inspect.signature(bound.fn).parameters.values()
        if p.kind is p.KEYWORD_ONLY and isinstance(p.default, _PLAIN)
    }
    hints = _hints(bound.fn)
    fields = [_field("fn", bound.fn, None, "The function: swapped in a file, not here.")]
    for name, value in {**defaults, **bound.kw}.items():
        fields.append(_field(name, value, hints.get(name), argument_help(bound.fn, name)))

    def rebuild(fn, **kw):
        # an argument left at the function's own default stays unbound, so that a term that
        # nobody touched equals what it was
        return bound.replace(**{k: v for k, v in kw.items() if k in bound.kw or v != defaults[k]})

    return _spec(rebuild, fields)


def _is_term(value: Any) -> bool:
    is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_record or isinstance(value, Bound)


def _field(name: str, value: Any, hint: Any, help_text: str) -> StructFieldSpec:
    """One option, or a group of them; what no text can say (a function, no part) is fixed."""
    if _is_term(value) or (isinstance(value, tuple) and any(_is_term(item) for item in value)):
        kind: Any = type(value)
    elif _is_plain(hint):
        kind = hint
    elif isinstance(value, _PLAIN) and value is not None:
        kind = type(value)
    else:
        shown = _Fixed("none" if value is None else getattr(value, "__name__", repr(value)))
        shown.value, value, kind = value, shown, tyro.conf.Fixed[str]
    return StructFieldSpec(name=name, type=kind, default=value, helptext=help_text)


def _is_plain(hint: Any) -> bool:
    """Is this a type that a text on a command line can be turned into?"""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return all(map(_is_plain, arguments))
    if origin is tuple:
        return all(part is Ellipsis or _is_plain(part) for part in arguments)
    return origin is typing.Literal or hint in (*_PLAIN, Path)


def _hints(of: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(of)
    except (NameError, TypeError):  # a name that exists only for type checkers
        return {}


def field_help(cls: type, name: str) -> str:
    """What the class says about a field: the text under it, or "name: text" in its docstring."""
    for owner in cls.__mro__:
        if name not in inspect.get_annotations(owner):
            continue
        body = _class_body(owner)
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and node.target.id == name:
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    return _one_line(text.value)
        return argument_help(owner, name)
    return ""


@lru_cache(maxsize=256)  # asked for every field
def _class_body(cls: type) -> list[ast.stmt]:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0].body
    except (OSError, TypeError):  # a class typed into a notebook has no source file
        return []


def argument_help(of: Any, name: str) -> str:
    """The text after "name:" (or "name, other:") in a docstring, up to the next such line."""
    found, indent = [], 0
    for line in (inspect.getdoc(of) or "").splitlines():
        entry = re.match(r"( *)([A-Za-z_][\w, ]*): +(\S.*)", line)
        if found:
            deeper = len(line) - len(line.lstrip()) > indent
            if not line.strip() or not deeper:
                break
            found.append(line)
        elif entry and name in re.split(r", *", entry[2]):
            found, indent = [entry[3]], len(entry[1])
    return _one_line(" ".join(found)) or f"Of {getattr(of, '__name__', of)}."


def _one_line(text: str) -> str:
    return " ".join(text.split())
