"""What holds of every view, whatever the trajectory: ids, parameters, and where loss may lie."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.config import validate
from agentmill.schemas.ids import row_id
from agentmill.schemas.records.rows import Message, SftRow, TextRow, UnpairedRow
from agentmill.schemas.records.trajectory import Action, AnyItem, ApiAction, Trajectory, WebObservation
from agentmill.schemas.views import VIEWS
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.view import Unused, View, parameters_of
from tests.schemas.records import records

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "prompts": [{"rows": "step"}, {"tool_format": "react"}],
    "reflection": [{"rows": "trajectory"}, {"role": "01", "tool_format": "json"}],
    "scorer_rows": [{"rows": "step"}, {"rows": "step", "tool_format": "xml", "role": "01"}],
    "sft": [
        {"rows": "step"},
        {"loss": "not_error"},
        {"loss": "source", "rows": "step"},
        {"role": "01"},
        {"tool_format": "react", "system_prompts": ["{system_prompt} Be brief.", "Act."]},
        {"tool_format": "xml", "role": "01", "rows": "step"},
        {"copied": "all", "rows": "step"},
        {"weight": "outcome", "prefix": {"success": "Good.", "failure": "Bad."}},
    ],
    "text": [{"tool_format": "react", "role": "01"}],
    "unpaired": [
        {"rows": "step"},
        {"rows": "step", "tool_format": "json", "score": "reward", "undesirable_weight": 2.0},
    ],
    "world_model": [{"rows": "step"}, {"tool_format": "react"}],
}
CASES = [(name, given) for name in VIEWS for given in [{}, *VARIANTS.get(name, [])]]


def made(name: str, parameters: dict[str, Any]) -> View:
    view: View = validate(VIEWS.load(name), parameters, "test")
    return view


def rows_of(view: View, run: Trajectory) -> list[Any]:
    try:
        return view.make_rows(run, NOTHING)
    except Unused:
        return []


def messages_of(row: Any) -> list[Message]:
    if isinstance(row, TextRow):
        return []
    if isinstance(row, UnpairedRow):
        return [*row.prompt, *row.completion]
    return list(row.prompt if hasattr(row, "prompt") else row.messages)


@pytest.mark.parametrize(("name", "parameters"), CASES)
@given(run=records(Trajectory))
def test_every_view_keeps_the_contract(name: str, parameters: dict[str, Any], run: Trajectory) -> None:
    view = made(name, parameters)
    rows = rows_of(view, run)
    assert rows == rows_of(view, run)
    assert from_arrow(to_arrow(rows, view.record), view.record) == rows
    assert len({row.row_id for row in rows}) == len(rows)
    for index, row in enumerate(rows):
        assert (row.view, row.view_parameters) == (name, parameters_of(view))
        assert row.row_id == row_id(run.trajectory_id, name, row.view_parameters, index)
        assert (row.trajectory_id, row.task_id) == (run.trajectory_id, run.task_id)
        assert (row.environment_id, row.split) == (run.environment_id, run.split)
        check_loss(row)


def check_loss(row: Any) -> None:
    trained = [message for message in messages_of(row) if message.train]
    assert bool(trained) == isinstance(row, SftRow | UnpairedRow)
    assert {message.role for message in trained} <= {"assistant"}
    assert all(message.weight > 0 for message in trained)
    assert not isinstance(row, UnpairedRow) or not any(message.train for message in row.prompt)


def numbered(run: Trajectory) -> Trajectory:
    """The run with the index of each item as its text."""
    content = [_numbered(item, f"⟦{index}⟧") for index, item in enumerate(run.content)]
    return msgspec.structs.replace(run, content=content)


def _numbered(item: AnyItem, mark: str) -> AnyItem:
    if isinstance(item, Action):
        item = msgspec.structs.replace(item, description=mark, reasoning_content=mark)
    if isinstance(item, WebObservation):
        return msgspec.structs.replace(item, axtree=mark)
    if isinstance(item, ApiAction):
        return msgspec.structs.replace(item, function=mark)
    return msgspec.structs.replace(item, content=mark)


def items_in(run: Trajectory, *texts: str | None) -> list[AnyItem]:
    return [run.content[int(number)] for text in texts for number in re.findall(r"⟦(\d+)⟧", text or "")]


def learnt_from(row: Any) -> list[str | None]:
    if isinstance(row, TextRow):
        return [row.text]
    trained = [message for message in messages_of(row) if message.train]
    calls = [call.name for message in trained for call in message.tool_calls]
    return [*calls, *(text for message in trained for text in (message.content, message.reasoning_content))]


@pytest.mark.parametrize(("name", "parameters"), CASES)
@given(run=records(Trajectory))
def test_only_what_the_agent_did_itself_is_learnt(name: str, parameters: dict[str, Any], run: Trajectory) -> None:
    run = numbered(run)
    role = parameters.get("role")
    for row in rows_of(made(name, parameters), run):
        for item in items_in(run, *learnt_from(row)):
            assert item.context_operation != "copied" or parameters.get("copied") == "all"
            if name == "world_model":
                assert isinstance(item, WebObservation) or getattr(item, "source", None) == "environment"
                assert not item.synthetic
            elif name != "text":
                assert isinstance(item, Action)
                assert role is None or role in (item.agent, item.role)
