import json

import pytest

pytest.importorskip("jsonschema")

from rlhf_jax.rewards.compose import score_completions
from rlhf_jax.rewards.tools import json_schema, read_calls, tool_calls

WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
ROW = {"tools": [WEATHER, CLOCK]}


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def score(completion, row=ROW):
    return tool_calls(["?"], [completion], [row])[0]


@pytest.mark.parametrize(
    ("completion", "valid"),
    [
        (call("weather", city="Rome"), 1),
        ("I look.\n" + call("weather", city="Rome", days=2) + call("clock"), 1),
        ('<tool_call>{"name": "clock"}</tool_call>', 1),
        (call("weather"), 0),
        (call("weather", city=3), 0),
        (call("weather", city="Rome", days=0), 0),
        (call("weather", city="Rome", unit="C"), 0),
        (call("news"), 0),
        (call("clock") + call("news"), 0),
        (call("clock") + "<tool_call>{", 0),
        ("<tool_call>clock()</tool_call>", 0),
        ('<tool_call>["clock"]</tool_call>', 0),
        ('<tool_call>{"name": "clock", "arguments": []}</tool_call>', 0),
        ("no call", 0),
        ("", 0),
    ],
)
def test_calls_fit_their_schema(completion, valid):
    assert score(completion) == valid


def test_the_right_calls_in_any_order():
    row = {**ROW, "calls": [{"name": "clock"}, {"name": "weather", "arguments": {"city": "Rome"}}]}
    right = call("weather", city="Rome") + call("clock")
    assert score(right, row) == 1
    assert score(right + call("clock"), row) == 0
    assert score(right.replace("Rome", "Oslo"), row) == 0
    assert score(call("clock"), row) == 0


@pytest.mark.parametrize(
    "tools", [None, [], "weather", [3], [{"name": "a", "parameters": {"type": "nonsense"}}], [{}]]
)
def test_a_row_without_usable_tools_is_not_scored(tools):
    found = score_completions([tool_calls], None, ["?"], [call("clock")], [{"tools": tools}])
    assert not found.valid_BC.any()
    assert found.numbers["reward_unreadable_gold/tool_calls"] == 1


def test_nothing_is_fetched_for_a_reference(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: pytest.fail("fetched"))
    row = {"tools": [{"name": "a", "parameters": {"$ref": "http://example.com/schema"}}]}
    assert score(call("a"), row) == 0


def test_json_against_the_rows_schema():
    schema = WEATHER["parameters"]
    completions = ['{"city": "Rome"}', '{"days": 1}', "Rome", "{}", "{}"]
    rows = [{"schema": s} for s in (schema, schema, schema, None, {"type": "nonsense"})]
    assert json_schema(["?"] * 5, completions, rows) == [1, 0, 0, None, None]


def test_calls_are_read():
    assert read_calls(call("clock")) == [{"name": "clock", "arguments": {}}]
    assert read_calls("none") == [] and read_calls("<tool_call>{}") is None
