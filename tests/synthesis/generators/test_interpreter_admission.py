"""What can be said of an interpreter world without its author: checks that need no work, and its structure."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentmill.synthesis.environments.interpreter.goal import goal_of
from agentmill.synthesis.generators.interpreter_admission import needs_no_work, source_structure
from tests.synthesis.environments.toolbox.boxes import LIBRARY_TASK
from tests.synthesis.generators.test_interpreter_llm import CALLS


@pytest.mark.parametrize(
    ("goal", "asks", "why"),
    [
        ({"answer": []}, "", "what one would guess"),
        ({"answer": 0}, "", ""),
        ({"answer": " "}, "", "what one would guess"),
        ({"answer": " rice "}, "Say rice.", "tells the answer"),
        ({"answer": 42}, "Submit 42.", "tells the answer"),
        ({"answer": 4.5}, "Is it 4.50 or more?", "tells the answer"),
        ({"answer": 4}, "Not 4.5, x4, 40 or 1.4.", ""),
        ({"answer": [4, "a b"]}, "Submit [4,'a b'].", "tells the answer"),
        ({"answer": {"a": 1}}, "Submit a dict from a to 1.", ""),
        ({"calls": [{"function": "f", "arguments": {"x": n, "k": 1}, "value": n} for n in (1, 2)]}, "", "argument x"),
        ({"calls": [{"function": "f", "arguments": {"x": n}, "value": f"a{' ' * n}"} for n in (1, 2)]}, "", "always"),
        ({"calls": [{"function": "f", "arguments": {}, "value": n} for n in (1, 2)]}, "", "the same arguments"),
        ({"answer": "a"}, "Tell a letter.", "tells the answer"),
        ({"answer": "at"}, "What is that?", ""),
        ({"calls": CALLS}, "", ""),
        ({"calls": [{"function": "f", "arguments": {"x": n}, "value": n} for n in (1, 2)]}, "", "returns its argument"),
        ({"calls": [*CALLS, {"function": "g", "arguments": {}, "value": 1}]}, "", "g that always returns 1"),
    ],
)
def test_checks_that_need_no_work_are_found(goal: dict[str, Any], asks: str, why: str) -> None:
    task = msgspec.structs.replace(LIBRARY_TASK, instruction=asks, goal=goal)
    found = needs_no_work(goal_of(task), task)
    assert (why in found, bool(found)) == (True, bool(why))


def test_structure_does_not_know_names_texts_or_numbers() -> None:
    one = "def f(a):\n    return [len(each) for each in a if each != 'x']  # why"
    assert source_structure(one) == source_structure(one.replace("each", "word").replace("'x'", '"yes"'))
    assert source_structure(one) != source_structure(one.replace("len", "sum"))
    assert source_structure(one) != source_structure(one.replace("!=", "=="))
