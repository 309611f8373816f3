"""Arguments and results are held against schemas that a model or a data set wrote."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentmill.synthesis.environments.environment import misfit_value

NAMES = {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        ("ab", {"type": "string", "pattern": "^[a-z]+$"}, None),
        ("aB", {"type": "string", "pattern": "^[a-z]+$"}, "'aB' does not match '^[a-z]+$'"),
        (["a", "1"], {"items": {"pattern": "[a-z]"}}, "'1' does not match '[a-z]'"),
        (7, {"pattern": "[a-z]"}, None),
        ("ab", {"pattern": "(?=a)b"}, None),
        ({"x1": "a"}, NAMES, "'a' is not of type 'integer'"),
        ({"x1": 1, "other": 1}, NAMES, None),
        ({"other": 1}, {"additionalProperties": False}, "Additional properties"),
        (
            {"a": 1, "b": 2},
            {"properties": {"a": {"$ref": "#/$defs/n"}}, "additionalProperties": False, "$defs": {"n": {}}},
            "Additional properties",
        ),
        ({"other": 1}, {"unevaluatedProperties": False}, "Unevaluated properties"),
        ({"a": 1}, {"propertyNames": {"pattern": "^b"}}, "'a' does not match '^b'"),
    ],
)
def test_what_does_not_fit_is_named(value: Any, schema: dict[str, Any], message: str | None) -> None:
    found = misfit_value(value, schema)
    assert (found is None) == (message is None)
    assert (message or "") in (found or "")


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^([a-z]+)+$"},
        {"propertyNames": {"pattern": "^([a-z]+)+$"}},
        {"patternProperties": {"^([a-z]+)+$": {}}, "additionalProperties": False},
        {"patternProperties": {"^([a-z]+)+$": {}}, "unevaluatedProperties": False},
        {"allOf": [{"patternProperties": {"^([a-z]+)+$": {}}}], "unevaluatedProperties": False},
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "unevaluatedProperties": False,
            "$defs": {"a": {"patternProperties": {"^([a-z]+)+$": {}}}},
        },
    ],
)
def test_no_pattern_takes_for_ever(schema: dict[str, Any]) -> None:
    text = "a" * 40 + "!"
    began = time.process_time()
    misfit_value(text if "pattern" in schema else {text: 1}, schema)
    assert time.process_time() - began < 5.0
