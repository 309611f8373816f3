"""Views: which rows a trajectory makes and which messages carry loss. Every view keeps the contract."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given

from schemas.arrow import from_arrow, to_arrow
from schemas.config import validate
from schemas.errors import UserError
from schemas.ids import row_id
from schemas.rows import SftRow
from schemas.trajectory import Trajectory
from schemas.views import VIEWS
from schemas.views.evidence import NOTHING
from schemas.views.sft import Sft
from schemas.views.view import Unused
from tests.builders import called, instruction, said, seen, tool_trajectory, trajectory
from tests.schemas.records import records


def trained(row: SftRow) -> list[str | None]:
    return [message.content for message in row.messages if message.train]


def test_a_trajectory_makes_one_row_with_all_its_turns() -> None:
    (row,) = Sft().make_rows(trajectory(), NOTHING)
    assert [message.role for message in row.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert trained(row) == ["fly to box", "put ball into box"]
    assert row.row_id == row_id("t1", "sft", {"rows": "trajectory", "loss": "all"}, 0)
    assert (row.trajectory_id, row.task_id, row.environment_id, row.split) == ("t1", "task1", "env1", "train")
    assert (row.view, row.view_parameters, row.tools) == ("sft", {"rows": "trajectory", "loss": "all"}, None)


def test_steps_make_one_row_each_that_ends_with_it() -> None:
    rows = Sft(rows="step").make_rows(trajectory(), NOTHING)
    assert [trained(row) for row in rows] == [["fly to box"], ["put ball into box"]]
    assert [len(row.messages) for row in rows] == [3, 5]
    assert all(row.messages[-1].train for row in rows)
    assert [row.row_id for row in rows] == [row_id("t1", "sft", {"rows": "step", "loss": "all"}, n) for n in range(2)]


def test_turns_that_were_answered_by_an_error_lose_their_loss() -> None:
    (row,) = Sft(loss="not_error").make_rows(trajectory(), NOTHING)
    assert trained(row) == ["put ball into box"]
    assert "fly to box" in [message.content for message in row.messages]


def test_one_failed_call_of_parallel_ones_takes_the_turn() -> None:
    run = tool_trajectory()
    content = [*run.content]
    content[4] = msgspec.structs.replace(content[4], error=True)
    (row,) = Sft(loss="not_error").make_rows(tool_trajectory(content=content), NOTHING)
    assert trained(row) == ["On the floor."]


def test_an_error_of_one_turn_does_not_touch_the_next() -> None:
    content = [
        instruction(),
        said("a", 1),
        said("b", 2),
        seen("no", 2, error=True),
        said("c", 3, error=True),
        said("d", 4),
    ]
    (row,) = Sft(loss="not_error").make_rows(trajectory(content=content), NOTHING)
    assert trained(row) == ["a", "d"]


def test_copied_items_never_carry_loss() -> None:
    content = [instruction(), said("old", 1, context_operation="copied"), seen("x", 1), said("new", 2)]
    for loss in ("all", "not_error", "source"):
        rows = rows_of(validate(Sft, {"loss": loss}, "test"), trajectory(content=content))
        assert all("old" not in trained(row) for row in rows)
    assert trained(Sft().make_rows(trajectory(content=content), NOTHING)[0]) == ["new"]


def test_the_source_may_decide() -> None:
    content = [instruction(), said("a", 1, train=False), said("b", 2, train=True), said("c", 3)]
    (row,) = Sft(loss="source").make_rows(trajectory(content=content), NOTHING)
    assert trained(row) == ["b"]
    assert [message.content for message in row.messages][-1] == "b"


def test_what_carries_no_loss_makes_no_row() -> None:
    for view, run in ((Sft(), trajectory(content=[instruction(), seen("x")])), (Sft(loss="source"), trajectory())):
        with pytest.raises(Unused) as caught:
            view.make_rows(run, NOTHING)
        assert caught.value.reason == "no_loss"


def test_tools_travel_as_json_text() -> None:
    (row,) = Sft().make_rows(tool_trajectory(), NOTHING)
    assert row.tools is not None
    assert msgspec.json.decode(row.tools) == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "look something",
                "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
            },
        }
    ]


def test_unknown_parameters_are_refused_with_a_near_match() -> None:
    with pytest.raises(UserError, match=r"x.yaml: unknown key 'lose'; known: loss, rows. Did you mean 'loss'\?"):
        validate(Sft, {"lose": "all"}, "x.yaml")
    with pytest.raises(UserError, match=r"rows: expected 'trajectory' or 'step', got 'steps'. Did you mean 'step'\?"):
        validate(Sft, {"rows": "steps"}, "x.yaml")


@pytest.mark.parametrize("name", VIEWS)
@given(run=records(Trajectory))
def test_every_view_keeps_the_contract(name: str, run: Trajectory) -> None:
    view = VIEWS.load(name)()
    try:
        rows = view.make_rows(run, NOTHING)
    except Unused:
        return
    assert rows
    assert from_arrow(to_arrow(rows, view.record), view.record) == rows
    assert rows == view.make_rows(run, NOTHING)
    assert len({row.row_id for row in rows}) == len(rows)
    for row in rows:
        assert row.view == name
        assert all(message.role == "assistant" for message in row.messages if message.train)
        assert any(message.train for message in row.messages)


def rows_of(view: Sft, run: Trajectory) -> list[SftRow]:
    try:
        return view.make_rows(run, NOTHING)
    except Unused:
        return []


@given(run=records(Trajectory))
def test_steps_and_trajectory_train_the_same_messages(run: Trajectory) -> None:
    whole = [message for row in rows_of(Sft(), run) for message in row.messages if message.train]
    steps = [message for row in rows_of(Sft(rows="step"), run) for message in row.messages if message.train]
    assert steps == whole


def test_loss_never_falls_on_observations_that_answer_calls() -> None:
    content = [instruction(), called("f", 1, "a"), seen("result", 1, tool_call_id="a"), said("done", 2)]
    (row,) = Sft().make_rows(trajectory(content=content), NOTHING)
    assert [(message.role, message.train) for message in row.messages[2:]] == [
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]
