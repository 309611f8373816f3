"""Whether a thought fits its action: each check, by thoughts of which the answer is known.

Values that were shown: whole ones, numbers in any notation, and in time for long trajectories.
"""

from __future__ import annotations

import re
import time

import pytest

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.verifiers.grounding import ShownValues, fault_of, language_of, leaves, numbers_in
from tests.builders import agent_message, called, instruction, seen, trajectory

ASKED = "Please bring the red ball from the kitchen into the garden, and come back when you are done."

SHOWN = "The total is $1,250 for 12.50 kg, -3 degrees. Order Ada-7 of Ada Young."


def commands() -> Trajectory:
    content = [
        instruction(ASKED),
        seen("You are in the hall. You may open the door."),
        agent_message("go north", 1),
        seen("This is the kitchen. There is a ball.", 1),
        agent_message("take ball 7", 2),
        seen("Taken.", 2),
        agent_message("go south", 3),
    ]
    return trajectory(content=content)


def calls() -> Trajectory:
    content = [
        instruction("Cancel the order of Mia."),
        called("find_user", 1, name="Mia"),
        seen('{"id": "u17", "order": "W-2231"}', 1, tool_call_id="call00100"),
        called("cancel_order", 2, "call00200", order="W-2231", lines=[{"line": 5501}]),
        seen("Done.", 2, tool_call_id="call00200"),
    ]
    return trajectory(content=content)


@pytest.mark.parametrize(
    ("given", "turn", "thought", "fault"),
    [
        (commands(), 1, "The kitchen is north of the hall, so I walk there first.", None),
        (commands(), 1, "The ball may be in the kitchen, so I go north.", None),
        (commands(), 1, " ... ", "empty"),
        (commands(), 1, "So " * 40, "over_length"),
        (
            commands(),
            1,
            "Ich suche zuerst in der Küche nach dem roten Ball, weil er dort liegen soll.",
            "other_language",
        ),
        (commands(), 1, "I go south, since the garden is there.", "other_action"),
        (commands(), 1, "I go north and not: go south.", "not_known_yet"),
        (commands(), 1, "With ball 7 in mind I go north.", None),
        (commands(), 1, "I go north to take ball 7 there.", "not_known_yet"),
        (commands(), 3, "After I went for it, I take ball 7 outside: go south.", None),
        (calls(), 1, "I have to know who Mia is.", None),
        (calls(), 1, "I look for Mia, whose order is W-2231.", "not_known_yet"),
        (calls(), 1, "Line 5501 is hers.", "not_known_yet"),
        (calls(), 1, "I call cancel_order.", "other_action"),
        (calls(), 2, "The order is W-2231, so I call cancel_order on it.", None),
        (calls(), 2, "First find_user, as before.", "other_action"),
    ],
)
def test_what_is_wrong_with_a_thought(given: Trajectory, turn: int, thought: str, fault: str | None) -> None:
    assert fault_of(thought, given, turn, 100) == fault


def test_a_thought_may_name_what_the_prompt_has() -> None:
    given = commands()
    told = trajectory(content=[instruction(f"{ASKED} Then take ball 7."), *given.content[1:]])
    assert fault_of("I go north to take ball 7 there.", told, 1, 100) is None


def test_the_language_is_that_of_what_was_written_before() -> None:
    assert language_of(commands().content, 1) == "en"
    assert language_of(calls().content, 1) is None, "too short to be known"


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


def test_the_sign_of_an_amount_is_that_of_the_number() -> None:
    text = "Balance: -$25, fee +€ 3, change \N{MINUS SIGN}1,000.5, between $5-$10, F-16.\n- $7"
    assert numbers_in(text) == [-25, 3, -1000.5, 5, 10, 16, 7]


def test_a_number_may_begin_with_its_point_and_an_address_is_none() -> None:
    assert numbers_in("rate .75, -.5, 10.0.1.12, 1.2.3. Then 2.5.") == [0.75, -0.5, 2.5]


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
