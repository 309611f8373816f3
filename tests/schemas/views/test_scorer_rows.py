"""The ``scorer_rows`` view: conversations and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import ScorerRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Value
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.scorer_rows import ScorerRows, critique_of
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, instruction, outcome, trajectory, verdict

SAID = Annotations(
    verdicts={(4, "judge"): verdict(item=4, name="judge", score=0.9, reason="It reaches the goal.")},
    labels={(2, "kind"): Label(trajectory_id="t1", name="kind", value="idle", labeller="rule", item=2)},
    values={(2, "mc"): Value(trajectory_id="t1", name="mc", value=0.4, estimator="mc", n=5, item=2)},
)


def rows(run: Trajectory, evidence: Annotations = NOTHING, **parameters: Any) -> list[ScorerRow]:
    return validate(ScorerRows, parameters, "test").make_rows(run, evidence)


def test_a_whole_run_has_the_score_of_its_outcome() -> None:
    for status, value in (("success", 1.0), ("failure", 0.0)):
        (row,) = rows(trajectory(outcome=outcome(status)))
        assert (row.value, row.n, row.item, row.label, row.critique) == (value, None, None, None, None)
        assert [message.content for message in row.messages][-1] == "Done."


def test_a_step_value_stands_after_the_step() -> None:
    (row,) = rows(trajectory(), SAID, rows="step", score="value:mc")
    assert (row.value, row.n, row.item) == (0.4, 5, 2)
    assert [message.content for message in row.messages][-1] == "fly to box"


def test_labels_and_critiques() -> None:
    first, second = rows(trajectory(), SAID, rows="step", score=None, label="kind", critique="judge")
    assert (first.value, first.label, first.critique, first.item) == (None, "idle", None, 2)
    assert (second.value, second.label, second.critique, second.item) == (None, None, "It reaches the goal.", 4)


@pytest.mark.parametrize(
    ("fields", "critique"),
    [
        ({"reason": "It is done."}, "It is done."),
        (
            {"evidence": {"judges": [{"reasons": "Short. "}, {"reasons": "Right."}, {"reasons": "Short."}]}},
            "Short.\n\nRight.",
        ),
        ({"evidence": {"reasons": ["Right.", " "]}}, "Right."),
        ({"evidence": {"judges": "none", "reasons": [3]}}, None),
        ({}, None),
        ({"status": "unscored", "score": None, "passed": None, "reason": "cut_off"}, None),
        ({"status": "unscored", "passed": None, "evidence": {"reasons": ["Right."]}}, None),
    ],
)
def test_a_critique_is_what_a_scored_verdict_gives_in_words(fields: dict[str, Any], critique: str | None) -> None:
    assert critique_of(verdict(name="judge", **fields)) == critique
    judged = Annotations(verdicts={(None, "judge"): verdict(name="judge", **fields)})
    if critique is None:
        with pytest.raises(Unused):
            rows(trajectory(), judged, score=None, critique="judge")
    else:
        (row,) = rows(trajectory(), judged, score=None, critique="judge")
        assert row.critique == critique


def test_copied_steps_are_left_to_the_parent() -> None:
    content = [instruction(), agent_message("old", 1, context_operation="copied"), agent_message("new", 2)]
    (row,) = rows(trajectory(content=content), rows="step")
    assert row.item == 2


@pytest.mark.parametrize("parameters", [{"score": "value:mc"}, {"score": None, "label": "kind"}, {"rows": "step"}])
def test_where_nothing_is_known_there_is_no_row(parameters: dict[str, Any]) -> None:
    with pytest.raises(Unused) as caught:
        rows(trajectory(outcome=outcome("unknown")), **parameters)
    assert caught.value.reason == "unscored"
