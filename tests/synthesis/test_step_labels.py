"""Labels of steps worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from agentmill.schemas.records.trajectory import AnyItem, CodeAction, WebObservation
from agentmill.synthesis.step_labels import (
    Agreement,
    Point,
    agreements,
    effects,
    points_of,
    to_recover,
    tool_steps,
    turn_key,
)
from agentmill.synthesis.step_values import Step, steps_of
from tests.builders import agent_message, called, instruction, seen, tool_trajectory, trajectory


def steps(*turns: int) -> list[Step]:
    return [Step(turn=turn, item=10 * turn, state=None, reward=0.0, own=True) for turn in turns]


def turn(*items: AnyItem) -> list[AnyItem]:
    return [instruction(), *items]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ([called("look", where="box", at=1)], [called("look", at=1.0, where="box")], True),
        ([called("look", where="box")], [called("look", where="floor")], False),
        ([called("look")], [called("see")], False),
        ([agent_message("go  ", description="I think.")], [agent_message("go")], True),
        (
            [CodeAction(turn=1, language="python", content="f()\n")],
            [CodeAction(turn=1, language="python", content="f()")],
            True,
        ),
        (
            [CodeAction(turn=1, language="python", content="f()")],
            [CodeAction(turn=1, language="bash", content="f()")],
            False,
        ),
        ([called("look"), called("see")], [called("look")], False),
        ([agent_message("go")], [agent_message("go"), agent_message("No!", role="critic")], True),
    ],
)
def test_turns_are_equal_by_what_they_do(one: list[AnyItem], other: list[AnyItem], equal: bool) -> None:
    assert (turn_key("action", turn(*one), 1) == turn_key("action", turn(*other), 1)) is equal


def test_turns_are_equal_by_the_state_after_them() -> None:
    right = turn(agent_message("right"), seen("3", 1, state_digest="three"))
    plus_one = turn(agent_message("+1"), seen("is 3", 1, state_digest="three"), agent_message("x", 2))
    two_steps = turn(called("a"), called("b"), seen("2", 1, state_digest="two"), seen("3", 1, state_digest="three"))
    assert {turn_key("state", each, 1) for each in (right, plus_one, two_steps)} == {"three"}


@pytest.mark.parametrize("on", ["action", "state"])
def test_a_turn_without_an_action_has_no_key(on: str) -> None:
    content = turn(seen("Wait.", 1, state_digest="s"), agent_message("right", 2))
    assert turn_key(on, content, 1) is None  # type: ignore[arg-type]
    assert turn_key("state", content, 2) is None
    assert turn_key("action", content, 2) is not None


def test_agreement_is_counted_where_there_are_branches() -> None:
    content = turn(*(agent_message(text, number) for number, text in enumerate(["a", "b", "c"], 1)))
    key = {text: turn_key("action", turn(agent_message(text)), 1) or "" for text in "abx"}
    branches = {1: {key["a"]: 2, key["x"]: 1}, 2: {key["x"]: 4}, 9: {key["a"]: 1}}
    found = agreements(content, steps(1, 2, 3), branches, "action")
    assert found == [Agreement(10, 3, 2), Agreement(20, 4, 0)]
    assert [each.share for each in found] == [pytest.approx(2 / 3), 0.0]
    assert agreements(content, steps(1, 2, 3), branches, "state") == []


# Of five steps: the scores of the continuations that begin with a turn, and which steps help (+), harm (-) or neither.
KNOWN: list[tuple[str, Mapping[int, Sequence[float]], float | None, str]] = [
    ("success, then failure at the end", {2: [1], 4: [1]}, 0.0, "+++--"),
    ("failure between the points", {2: [1], 4: [0]}, 0.0, "+--  "),
    ("recovered by the steps between", {2: [0], 4: [1]}, 0.0, "+++--"),
    ("harmful, then recovered", {2: [1], 3: [0], 5: [1]}, 0.0, "+-++-"),
    ("all fail", {2: [0], 4: [0]}, 0.0, "     "),
    ("nothing known of the end", {2: [1], 4: [1]}, None, "+++  "),
    ("the trajectory succeeds", {4: [0]}, 1.0, "+++++"),
    ("from the start", {1: [1], 3: [0]}, 0.0, "--   "),
    ("half of them is enough", {3: [1, 0]}, 0.0, "++---"),
    ("less than half is not", {3: [1, 0, 0]}, 0.0, "     "),
    ("the end was continued", {3: [1], 6: [1, 1]}, 0.0, "+++++"),
    ("turns that are no steps", {7: [1], 0: [1]}, 0.0, "     "),
]


@pytest.mark.parametrize(("results", "result", "marks"), [pytest.param(*rest, id=name) for name, *rest in KNOWN])
def test_effects(results: Mapping[int, Sequence[float]], result: float | None, marks: str) -> None:
    five = steps(1, 2, 3, 4, 5)
    found = effects(five, points_of(five, results, result, 0.5))
    names = {"beneficial": "+", "harmful": "-", None: " "}
    assert "".join(names[found.get(step.item)] for step in five) == marks


def test_points_say_what_was_found_where() -> None:
    points = points_of(steps(1, 2, 3), {2: [1.0, 0.5], 3: [0.25]}, 0.0, 0.75)
    assert points == [Point(2, 20, 2, 0.75, True), Point(3, 30, 1, 0.25, False), Point(4, None, 1, 0.0, False)]
    assert points[0].evidence() == {"turn": 2, "item": 20, "n": 2, "score": 0.75, "success": True}
    assert to_recover(points) == [points[1]]
    assert points_of([], {1: [1.0]}, None, 0.5) == []
    # 0.1 ten times is no 1.0 in floating point.
    assert points_of(steps(1), {1: [0.1 + 0.2]}, None, 0.3)[0].success


def test_the_mean_of_scores_does_not_depend_on_their_order() -> None:
    scores = [1e16, 1.0, -1e16]
    assert points_of(steps(1), {1: scores}, None, 0.5) == points_of(steps(1), {1: scores[::-1]}, None, 0.5)


def test_steps_with_tools_are_calls_code_and_commands() -> None:
    calls = tool_trajectory()
    assert tool_steps(calls.content, steps_of(calls)) == [1], "the message that answers is none"
    commands = trajectory()
    assert tool_steps(commands.content, steps_of(commands)) == [2, 4]
    talk = trajectory(content=[instruction(), agent_message("Which one?"), instruction("The red one.")])
    assert tool_steps(talk.content, steps_of(talk)) == []
    pages = trajectory(content=[instruction(), agent_message("open"), WebObservation(turn=1, url="a.b")])
    assert tool_steps(pages.content, steps_of(pages)) == [1]
    folded = [instruction(), agent_message("Well."), seen("A summary.", 1, context_operation="fold")]
    assert tool_steps(folded, steps_of(trajectory(content=folded))) == []
