"""What holds of every view of search trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views import FAMILY_VIEWS
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.tree_view import Families, Line, Made, Relative
from agentmill.schemas.views.view import Unused, parameters_of
from tests.builders import verdict
from tests.schemas.records import records
from tests.schemas.views.trees import made, run

lines = st.lists(st.tuples(st.lists(st.sampled_from("abc"), max_size=4), st.booleans(), st.integers(0, 3)), max_size=6)


def rows_of(found: Any) -> list[SftRow]:
    return [row for each in found.values() if not isinstance(each, Unused) for row in each]


@pytest.mark.parametrize("name", FAMILY_VIEWS)
@given(drawn=lines)
def test_every_family_view_keeps_the_contract(name: str, drawn: Any) -> None:
    view = FAMILY_VIEWS.load(name)()
    runs = [
        run(str(number), *commands, good=good, copied=copied) for number, (commands, good, copied) in enumerate(drawn)
    ]
    found = made(view, *runs)
    assert set(found) == {each.trajectory_id for each in runs}
    rows = rows_of(found)
    assert {row.row_id for row in rows_of(made(view, *reversed(runs)))} == {row.row_id for row in rows}
    assert len({row.row_id for row in rows}) == len(rows)
    assert from_arrow(to_arrow(rows, SftRow), SftRow) == rows
    for row in rows:
        assert (row.view, row.view_parameters) == (name, parameters_of(view))
        assert row.messages[-1].train
        assert {message.role for message in row.messages if message.train} == {"assistant"}
        assert [message.role for message in row.messages] == ["user", "assistant"] * (len(row.messages) // 2)


class Reached(Families):
    """Which runs reached the goal."""

    def rows_of(self, good: Sequence[Line], bad: Sequence[Line]) -> Made:
        return {**{each.name: [] for each in good}, **{each.name: Unused("failed", "") for each in bad}}


def test_a_run_reaches_the_goal_but_for_rounding() -> None:
    runs = {"sum": run("sum", "a"), "less": run("less", "a")}
    verdicts = {"sum": verdict(name="v", score=0.1 + 0.7), "less": verdict(name="v", score=0.79)}
    found = Reached(score="verdict:v", threshold=0.8).make_rows(
        [Relative(each, Annotations(verdicts={(None, "v"): verdicts[name]})) for name, each in runs.items()]
    )
    assert [name for name, each in found.items() if not isinstance(each, Unused)] == ["sum"]


@pytest.mark.parametrize("name", FAMILY_VIEWS)
@given(family=st.lists(records(Trajectory), max_size=3, unique_by=lambda run: run.trajectory_id))
def test_every_record_can_be_in_a_family(name: str, family: list[Trajectory]) -> None:
    view = FAMILY_VIEWS.load(name)()
    found = view.make_rows([Relative(each, NOTHING) for each in family])
    assert set(found) == {each.trajectory_id for each in family}
