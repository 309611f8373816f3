"""Values that were shown: whole ones, numbers in any notation, and in time for long trajectories."""

from __future__ import annotations

import re
import time

import pytest

from agentmill.synthesis.verifiers.shown_values import ShownValues, leaves

SHOWN = "The total is $1,250 for 12.50 kg, -3 degrees. Order Ada-7 of Ada Young."


@pytest.mark.parametrize(
    ("value", "there"),
    [
        (1250, True),
        (1250.0, True),
        (12.5, True),
        (-3, True),
        (3, True),
        (125, False),
        (0.5, False),
        (10**400, False),
        ("ada young", True),
        ("Ada You", False),
        ("da Young", False),
        ("12", False),
        ("ada", True),
        ("", True),
        ("1,250", True),
        ("(", False),
    ],
)
def test_a_value_is_found_as_a_whole(value: str | float, there: bool) -> None:
    shown = ShownValues("")
    shown.add(SHOWN)
    assert shown.has(value) is there


@pytest.mark.parametrize("value", ["ada", "ada young.", "7", "of", ".", "", " ", "1,250", "kg,", "50", "g"])
def test_texts_are_found_as_by_an_expression(value: str) -> None:
    expected = re.search(rf"(?<![\w.]){re.escape(value)}(?!\w)(?!\.\d)", SHOWN.casefold()) is not None
    assert ShownValues(SHOWN).has(value) is expected


def test_leaves_are_texts_and_numbers() -> None:
    assert list(leaves({"a": ["x", 1, {"b": 2.5}], "c": True, "d": None})) == ["x", 1, 2.5]


def test_a_long_trajectory_takes_little_time() -> None:
    began = time.process_time()
    shown = ShownValues("")
    for turn in range(200):
        shown.add(f"row {turn}: " + "lorem ipsum dolor 17, " * 230)
        assert not shown.has(f"value {turn}")
        assert shown.has(f"row {turn}")
    assert time.process_time() - began < 1.5
