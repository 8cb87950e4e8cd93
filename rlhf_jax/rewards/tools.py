"""Tool calls that name a tool of the row and fit its JSON schema."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rlhf_jax.errors import require
from rlhf_jax.rewards.format import parsed_json
from rlhf_jax.rewards.notes import note

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def tool_calls(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    tools: str = "tools",
    calls: str = "calls",
) -> list[float | None]:
    """1.0 where every <tool_call>{"name": ..., "arguments": {...}}</tool_call> is valid.

    There must be at least one; each names a tool of the row, and its arguments fit that tool's
    schema (JSON Schema draft 2020-12; nothing is fetched for a $ref). Where the row says which
    calls are right, they must be these, in any order.

    Args:
        prompts, completions, rows: the contract of `rewards.compose`.
        tools: the row's field with the tools: {"name", "parameters": schema}, or these under
            "function", as chat templates take them.
        calls: the row's field with the right calls, {"name", "arguments"}; may be missing.

    Returns:
        None where the row has no tools or a schema that is none (counted as unreadable_gold).

    Raises:
        ConfigError: jsonschema is not installed.
    """
    require("jsonschema", extra="rewards")
    return [
        _score(completion, row.get(tools), row.get(calls))
        for completion, row in zip(completions, rows, strict=True)
    ]


def json_schema(
    prompts: list[str],
    completions: list[str],
    rows: list[dict[str, Any]],
    *,
    schema: str = "schema",
) -> list[float | None]:
    """1.0 where the completion is JSON (`format.json_format`) that fits the row's schema.

    None where the row has no schema, or one that is none (counted as unreadable_gold).

    Raises:
        ConfigError: jsonschema is not installed.
    """
    require("jsonschema", extra="rewards")
    scores: list[float | None] = []
    for completion, row in zip(completions, rows, strict=True):
        validator = _validator(row.get(schema))
        if validator is None:
            note("unreadable_gold")
            scores.append(None)
            continue
        found = parsed_json(completion)
        scores.append(float(found is not None and _fits(validator, found[0])))
    return scores


def read_calls(completion: str) -> list[dict[str, Any]] | None:
    """The calls of a completion; None where one of them is not a JSON object with a name."""
    found = []
    for body in _CALL.findall(completion):
        value = parsed_json(body.strip())
        call = value[0] if value else None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return None
        if not isinstance(call.get("arguments", {}), dict):
            return None
        found.append({"name": call["name"], "arguments": call.get("arguments", {})})
    # a call that is opened and never closed is broken, not absent
    return found if completion.count("<tool_call>") == len(found) else None


def _score(completion: str, tools: Any, expected: Any) -> float | None:
    validators = _validators(tools)
    if validators is None:
        note("unreadable_gold")
        return None
    found = read_calls(completion)
    if not found:
        return 0.0
    for call in found:
        validator = validators.get(call["name"])
        if validator is None or not _fits(validator, call["arguments"]):
            return 0.0
    return 1.0 if expected is None else float(_listed(found) == _listed(expected))


def _validators(tools: Any) -> dict[str, Any] | None:
    if not isinstance(tools, Sequence) or isinstance(tools, str) or not tools:
        return None
    validators = {}
    for tool in tools:
        tool = tool.get("function", tool) if isinstance(tool, dict) else {}
        validator = _validator(tool.get("parameters", {"type": "object"}))
        if not isinstance(tool.get("name"), str) or validator is None:
            return None
        validators[tool["name"]] = validator
    return validators


def _validator(schema: Any) -> Any:
    import jsonschema
    from referencing import Registry

    if not isinstance(schema, (dict, bool)):
        return None
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError:
        return None
    # a registry of its own: without one, an unknown $ref would be fetched from the network
    return jsonschema.Draft202012Validator(schema, registry=Registry())


def _fits(validator: Any, value: Any) -> bool:
    from referencing.exceptions import Unresolvable

    try:
        return validator.is_valid(value)
    except (RecursionError, Unresolvable):
        return False


def _listed(calls: Any) -> list[str]:
    """Comparable, whatever the order of calls and keys."""
    pairs = [{"name": call["name"], "arguments": call.get("arguments", {})} for call in calls]
    return sorted(json.dumps(pair, sort_keys=True) for pair in pairs)
