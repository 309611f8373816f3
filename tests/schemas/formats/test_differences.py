"""Losses of a written run: fields that are gone, items that became others, turns that begin elsewhere."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from agentmill.schemas.formats.differences import differences
from agentmill.schemas.records.trajectory import AnyItem, Outcome, WebObservation
from tests.builders import agent_message, called, instruction, seen, tool_trajectory, trajectory

CONTENT: list[AnyItem] = [
    instruction("x"),
    agent_message("go", train=True),
    seen("a", 1, reward=0.5),
    called("f", 2, "c", n=1),
    seen("b", 2, tool_call_id="c"),
    agent_message("end", 3),
]


def lost(*content: AnyItem, **fields: Any) -> Counter[str]:
    run = trajectory(content=CONTENT, extra={"note": 1, "other": {"id": 3}})
    back = msgspec.structs.replace(run, content=list(content), trajectory_id="copy", **fields)
    return differences(run, back, "other")


def change(index: int, **fields: Any) -> list[AnyItem]:
    return [msgspec.structs.replace(item, **(fields if at == index else {})) for at, item in enumerate(CONTENT)]


@pytest.mark.parametrize(
    ("content", "losses"),
    [
        (CONTENT, {}),
        (change(0, tool_call_id="new"), {}),
        (change(1, train=None), {"content.train": 1}),
        (change(2, reward=None, source="user"), {"content.reward": 1, "content.source": 1}),
        (change(3, kwargs={}, tool_call_id="d"), {"content.kwargs": 1, "content.tool_call_id": 1}),
        (change(5, content="END"), {"content.class_": 1}),
        ([*CONTENT[:2], agent_message("a", 1), *CONTENT[3:]], {"content.class_": 1}),
        (CONTENT[:4], {"content.class_": 2}),
        ([], {"content.class_": 6}),
        (
            [instruction("x"), *(msgspec.structs.replace(item, turn=item.turn + 1) for item in CONTENT[1:])],
            {"content.turn": 1},
        ),
    ],
)
def test_items_are_compared_with_what_became_of_them(content: list[AnyItem], losses: dict[str, int]) -> None:
    assert lost(*content) == Counter(losses)


def test_fields_of_the_run_are_compared() -> None:
    assert lost(*CONTENT, outcome=Outcome(), task_id=None) == Counter({"outcome": 1, "task_id": 1})
    assert lost(*CONTENT, extra={}) == Counter({"extra.note": 1})
    assert lost(*CONTENT, attempt=3, parent_id="p") == Counter()
    assert differences(tool_trajectory(), tool_trajectory(tools=[]), "x") == Counter({"tools": 1})


def test_a_page_is_a_page_of_the_same_place() -> None:
    run = trajectory(content=[WebObservation(url="u", html="h"), WebObservation(url="v")])
    back = trajectory(content=[WebObservation(url="u"), WebObservation(url="v")])
    assert differences(run, back, "x") == Counter({"content.html": 1})
