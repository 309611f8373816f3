"""The ``unpaired`` view: continuations with a label each."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import UnpairedRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.unpaired import Unpaired
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, outcome, seen, tool_trajectory, trajectory, verdict


def rows(run: Trajectory, evidence: Annotations = NOTHING, **parameters: Any) -> list[UnpairedRow]:
    return validate(Unpaired, parameters, "test").make_rows(run, evidence)


def judged(*scores: tuple[int, float]) -> Annotations:
    return Annotations(
        verdicts={(item, "judge"): verdict(item=item, name="judge", score=score) for item, score in scores}
    )


def test_a_run_is_one_row_labelled_by_its_outcome() -> None:
    for status, label, weight in (("success", True, 1.5), ("failure", False, 0.5)):
        (row,) = rows(trajectory(outcome=outcome(status)), desirable_weight=1.5, undesirable_weight=0.5)
        assert (row.label, row.weight, row.item) == (label, weight, None)
        assert [message.role for message in row.prompt] == ["system", "user"]
        assert [(message.content, message.train) for message in row.completion] == [
            ("fly to box", True),
            ("You cannot fly.", False),
            ("put ball into box", True),
        ]
        assert (row.view_parameters["desirable_weight"], row.view_parameters["undesirable_weight"]) == (1.5, 0.5)


def test_steps_with_a_score_are_one_row_each() -> None:
    found = rows(trajectory(), judged((2, 0.2), (4, 0.7)), rows="step", score="verdict:judge", threshold=0.7)
    assert [(row.item, row.label, len(row.prompt)) for row in found] == [(2, False, 2), (4, True, 4)]
    assert [[message.content for message in row.completion] for row in found] == [["fly to box"], ["put ball into box"]]
    (only,) = rows(trajectory(), judged((4, 0.2)), rows="step", score="verdict:judge")
    assert (only.item, only.label) == (4, False)


def test_a_label_does_not_depend_on_rounding() -> None:
    found = rows(trajectory(), judged((2, 0.1 + 0.7), (4, 0.79)), rows="step", score="verdict:judge", threshold=0.8)
    assert [row.label for row in found] == [True, False]


def test_every_step_may_have_the_outcome_of_its_run() -> None:
    assert [row.label for row in rows(trajectory(), rows="step")] == [True, True]


def test_copied_steps_belong_to_the_prompt() -> None:
    content = [
        instruction(),
        agent_message("old", 1, context_operation="copied"),
        seen("x", 1),
        agent_message("new", 2),
    ]
    for per in ("trajectory", "step"):
        (row,) = rows(trajectory(content=content), rows=per)
        assert [message.content for message in row.prompt][2:] == ["old", "x"]
        assert [message.content for message in row.completion] == ["new"]
        assert not any(message.train for message in row.prompt)


def test_tools_are_kept() -> None:
    (row,) = rows(tool_trajectory())
    assert row.tools is not None
    assert [message.role for message in row.completion] == ["assistant", "tool", "tool", "assistant"]


@pytest.mark.parametrize(
    ("run", "parameters", "reason"),
    [
        (trajectory(outcome=outcome("unknown")), {}, "unscored"),
        (trajectory(), {"score": "verdict:judge", "rows": "step"}, "unscored"),
        (trajectory(content=[instruction()]), {}, "no_step"),
    ],
)
def test_unused(run: Trajectory, parameters: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unused) as caught:
        rows(run, **parameters)
    assert caught.value.reason == reason
