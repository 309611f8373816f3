"""Patterns: which items they fit, also where an action was answered with an error."""

from __future__ import annotations

from agentmill.schemas.records.trajectory import WebObservation
from agentmill.synthesis.verifiers.action_pattern import ActionPattern, failed
from tests.builders import agent_message, called, seen


def places(content: list, **pattern: object) -> list[int]:  # type: ignore[type-arg]
    return ActionPattern.model_validate(pattern).places(content)


def test_an_error_is_that_of_the_answer_to_this_call() -> None:
    content = [
        called("look", 1, "c1"),
        called("take", 1, "c2"),
        seen("ok", 1, tool_call_id="c1"),
        seen("no", 1, tool_call_id="c2", error=True),
        agent_message("go", 2),
        seen("no", 2, error=True),
    ]
    assert [failed(content, place) for place in range(6)] == [False, True, False, True, True, True]
    assert places(content, tool="*", error=True) == [1]
    assert places(content, tool="*", error=False) == [0]
    assert places(content, message=".", error=True) == [4]
    assert places(content, observation="no", error=True) == [3, 5]


def test_observations_may_be_pages() -> None:
    content = [WebObservation(html="<b>404</b>"), WebObservation(axtree="button 'Buy'", html="404"), seen("404")]
    assert places(content, observation="404") == [0, 2]
    assert places(content, observation="^button") == [1]


def test_a_pattern_says_what_it_is() -> None:
    pattern = ActionPattern.model_validate({"tool": "look", "error": True})
    assert str(pattern) == "tool look, error True"
