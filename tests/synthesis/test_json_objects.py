"""JSON objects are found in what models write, whatever is around them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentmill.synthesis.generators.author import read_object
from agentmill.synthesis.json_objects import answer_in, objects_in


@pytest.mark.parametrize(
    ("text", "objects"),
    [
        ("", []),
        ("none", []),
        ('I use {"a"} as a set.\n```json\n{"x": 1}\n```', [{"x": 1}]),
        ('{"think": "draft"}\n{"x": {"y": [1]}} {}', [{"think": "draft"}, {"x": {"y": [1]}}, {}]),
        ('{"x": {"y": 1}', []),
        ('{"x": {"y": 1}, "z": "cut', []),
        ('{"x": "\\ud800"} {"y": 1}', [{"y": 1}]),
        ('{"x": ' + "9" * 5_000 + "}", []),
        ('{"x": ' + "[" * 100_000, []),
        ("for (i) { x[i] = \\frac{a}{b}; }\n" * 200 + '{"x": 1}', [{"x": 1}]),
        ('{"x": y}, ' * 200 + '{\n "x": 1}', [{"x": 1}]),
    ],
)
def test_objects_are_found_in_their_order(text: str, objects: list[Any]) -> None:
    assert [value for _, value in objects_in(text) if value is not None] == objects


def test_an_author_means_the_longest_object() -> None:
    assert read_object('Such as {"a": 1}: {"a": 1, "b": {"c": 2}}, not {}.') == '{"a": 1, "b": {"c": 2}}'


def test_braces_without_end_take_no_time() -> None:
    began = time.process_time()
    objects_in('{"a": ' * 200_000)
    assert objects_in('{"a":[' * 900 + "x" + '{"a":1} ' * 20_000)[-1].value is None
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"verdict": 1} {"verdict": 2}', {"verdict": 2}),
        ('{"verdict": 1} as the agent wrote: {"action": "go"}', {"verdict": 1}),
        ('{"verdict": 1}, or {"odd', {"verdict": 1}),
        ('{"verdict": 1}, no: {"verdict": 2, "reas', None),
        ('{"verdict": 1}, no: {"verdict": 2, "reasons": "\\ud800"}', None),
        ('{"verdict": 1}, no: {"verdict": ' + "9" * 5_000 + "}", None),
    ],
)
def test_the_last_object_with_a_field_is_the_answer(text: str, value: Any) -> None:
    found = answer_in(text, ("reasons", "verdict"))
    assert found is not None
    assert found.value == value


def test_objects_of_other_fields_are_no_answer() -> None:
    assert answer_in('{"action": "go"} {"odd', ("reasons", "verdict")) is None
