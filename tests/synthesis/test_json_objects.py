"""JSON objects are found in what models write, whatever is around them."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agentmill.synthesis.generators.author import read_object
from agentmill.synthesis.json_objects import objects_in


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
    ],
)
def test_objects_are_found_in_their_order(text: str, objects: list[Any]) -> None:
    assert [value for _, value in objects_in(text)] == objects


def test_an_author_means_the_longest_object() -> None:
    assert read_object('Such as {"a": 1}: {"a": 1, "b": {"c": 2}}, not {}.') == '{"a": 1, "b": {"c": 2}}'


def test_braces_without_end_take_no_time() -> None:
    began = time.process_time()
    objects_in('{"a": ' * 200_000)
    assert time.process_time() - began < 5.0
