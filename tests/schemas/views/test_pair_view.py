"""Pair views: what trajectories offer, and which messages the rows of their pairs hold. All keep the contract."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agentmill.schemas.arrow.convert import from_arrow, to_arrow
from agentmill.schemas.config import validate
from agentmill.schemas.records.rows import Message, PreferenceRow
from agentmill.schemas.records.trajectory import AnyItem, Trajectory
from agentmill.schemas.records.verdict import Value
from agentmill.schemas.views import PAIR_VIEWS
from agentmill.schemas.views.annotations import NOTHING, Annotations
from agentmill.schemas.views.pair_view import PairView
from agentmill.schemas.views.pairing import plan
from agentmill.schemas.views.preference import StepPairs, TrajectoryPairs
from agentmill.schemas.views.view import Unused
from tests.builders import agent_message, called, generation, instruction, outcome, seen, tool, trajectory, verdict
from tests.errors import user_error
from tests.schemas.records import records

COPIED: dict[str, Any] = {"context_operation": "copied"}


def run(name: str, *commands: str, good: bool = False, copied: int = 0, **fields: Any) -> Trajectory:
    """A run that says ``commands`` and sees each of them done; the first ``copied`` turns are its parent's."""
    content: list[AnyItem] = [instruction()]
    for turn, command in enumerate(commands, 1):
        mark = COPIED if turn <= copied else {}
        content += [agent_message(command, turn, **mark), seen(f"{command}: done", turn, **mark)]
    values = {"content": content, "outcome": outcome("success" if good else "failure"), **fields}
    return trajectory(name, **values)


def rows_of(view: PairView, *runs: Trajectory, said_of: dict[str, Annotations] | None = None) -> list[PreferenceRow]:
    by_id = {each.trajectory_id: each for each in runs}
    found = []
    for each in runs:
        with suppress(Unused):
            found += view.candidates(each, (said_of or {}).get(each.trajectory_id, NOTHING))
    pairs = plan(found, view.rules).pairs
    return [view.make_row(pair, by_id[pair.chosen.trajectory_id], by_id[pair.rejected.trajectory_id]) for pair in pairs]


def texts(messages: list[Message]) -> list[str]:
    """What is said; with a star where it carries loss."""
    return [f"{message.content}{'*' if message.train else ''}" for message in messages]


OPENING = ["Act by commands.", "Put the ball into the box."]


def test_runs_of_one_task_make_a_pair() -> None:
    (row,) = rows_of(TrajectoryPairs(), run("g", "go", "take", good=True), run("b", "go", "sit"))
    assert texts(row.prompt) == OPENING
    assert texts(row.chosen) == ["go*", "go: done", "take*"]
    assert texts(row.rejected) == ["go*", "go: done", "sit*"]
    assert (row.chosen_id, row.rejected_id, row.chosen_score, row.rejected_score) == ("g", "b", 1.0, 0.0)
    assert (row.chosen_item, row.rejected_item) == (3, 3)
    assert (row.task_id, row.environment_id, row.split, row.weight) == ("task1", "env1", "train", 1.0)
    assert row.view_parameters["min_gap"] == 0.0


def test_the_prompt_of_branches_is_what_they_share() -> None:
    runs = [run("g", "go", "take", "put", good=True), run("b", "go", "take", "sit", "lie", copied=2)]
    (row,) = rows_of(TrajectoryPairs(), *runs)
    assert texts(row.prompt) == [*OPENING, "go", "go: done", "take", "take: done"]
    assert texts(row.chosen) == ["put*"]
    assert texts(row.rejected) == ["sit*", "sit: done", "lie*"]
    assert (row.chosen_item, row.rejected_item) == (5, 5)


def test_what_was_copied_from_another_run_carries_no_loss() -> None:
    (row,) = rows_of(TrajectoryPairs(), run("g", "go", "put", good=True), run("b", "go", "sit", "lie", copied=2))
    assert texts(row.prompt) == [*OPENING, "go", "go: done"]
    assert texts(row.rejected) == ["sit", "sit: done", "lie*"]


def test_the_same_action_with_another_answer_is_where_they_part() -> None:
    worse = run("b", "go", "take", "sit", copied=1)
    content = [*worse.content[:2], seen("locked", 1, **COPIED), *worse.content[3:]]
    (row,) = rows_of(TrajectoryPairs(), run("g", "go", "put", good=True), run("b", content=content))
    assert texts(row.prompt) == OPENING
    assert texts(row.rejected) == ["go", "locked", "take*", "take: done", "sit*"]


@pytest.mark.parametrize(("cut", "kept"), [(None, 4), ("chosen+5", 4), ("chosen+1", 2), ("chosen+0", 1)])
def test_the_rejected_side_is_cut_between_turns(cut: str | None, kept: int) -> None:
    worse = [instruction()]
    for turn in range(1, 5):
        calls = [called("look", turn, f"c{turn}{n}", where=f"{turn}{n}") for n in range(2)]
        worse += [*calls, *(seen("nothing", turn, tool_call_id=call.tool_call_id) for call in calls)]
    runs = [
        run("g", "done", good=True, tools=[tool()]),
        run("b", content=worse, tools=[tool()]),
    ]
    (row,) = rows_of(validate(TrajectoryPairs, {"cut_rejected": cut}, "test"), *runs)
    assert sum(message.train for message in row.rejected) == kept
    assert [message.role for message in row.rejected] == ["assistant", "tool", "tool"] * (kept - 1) + ["assistant"]


def test_a_cut_is_written_as_text() -> None:
    with user_error("invalid-value", "x.yaml", "cut_rejected"):
        validate(TrajectoryPairs, {"cut_rejected": "5"}, "x.yaml")


def test_without_task_the_prompt_tells_the_task() -> None:
    good, bad = run("g", "go", good=True, task_id=None), run("b", "sit", task_id=None)
    assert len(rows_of(TrajectoryPairs(), good, bad)) == 1
    other = run("o", "sit", task_id=None, system_prompt="Be kind.")
    assert rows_of(TrajectoryPairs(), good, other) == []


@pytest.mark.parametrize(
    ("score", "scores"), [("reward", (0.75, 0.5)), ("verdict:rules", (0.9, 0.4)), ("value:mc", (0.8, 0.2))]
)
def test_every_criterion_pairs_runs(score: str, scores: tuple[float, float]) -> None:
    runs = [run("g", "go"), run("b", "sit")]
    graded = [
        trajectory(each.trajectory_id, content=each.content, outcome=type(each.outcome)(reward=reward))
        for each, reward in zip(runs, (0.75, 0.5), strict=True)
    ]
    said_of = {
        name: Annotations(
            verdicts={(None, "rules"): verdict(name, name="rules", score=rule)},
            values={(None, "mc"): Value(trajectory_id=name, name="mc", value=value, estimator="mc", n=5)},
        )
        for name, rule, value in (("g", 0.9, 0.8), ("b", 0.4, 0.2))
    }
    view = TrajectoryPairs(score=score, weight="gap")
    (row,) = rows_of(view, *graded, said_of=said_of)
    assert (row.chosen_score, row.rejected_score) == scores
    assert row.weight == round(scores[0] - scores[1], 9)


def test_one_of_the_system_prompts_per_task() -> None:
    view = TrajectoryPairs(system_prompts=["one", "two", "three"])
    rows = rows_of(view, *(run(f"{n}", f"go {n}", good=n == 0) for n in range(6)))
    assert len(rows) == 5
    assert len({row.prompt[0].content for row in rows}) == 1


def test_steps_at_the_same_point_make_a_pair() -> None:
    (row,) = rows_of(StepPairs(), run("g", "go", "take", "put", good=True), run("b", "go", "sit", "lie"))
    assert texts(row.prompt) == [*OPENING, "go", "go: done"]
    assert (texts(row.chosen), texts(row.rejected)) == (["take*"], ["sit*"])
    assert (row.chosen_item, row.rejected_item) == (3, 3)
    (row,) = rows_of(StepPairs(unit="suffix"), run("g", "go", "take", "put", good=True), run("b", "go", "sit", "lie"))
    assert texts(row.chosen) == ["take*", "take: done", "put*"]
    assert texts(row.rejected) == ["sit*", "sit: done", "lie*"]


def test_the_point_is_told_by_its_messages_and_not_by_its_number() -> None:
    late = [instruction(), agent_message("go", 4), seen("go: done", 4), agent_message("sit", 5)]
    good = run("g", "go", "take", good=True)
    assert [row.chosen_item for row in rows_of(StepPairs(), good, run("b", content=late))] == [3]
    assert [row.chosen_item for row in rows_of(StepPairs(), good, run("b", "run", "sit"))] == [1]


def test_copied_steps_are_compared_in_the_parent_alone() -> None:
    runs = [run("g", "go", "take", good=True), run("b", "go", "sit", copied=1), run("c", "go", "lie", copied=1)]
    rows = rows_of(StepPairs(), *runs)
    assert [(row.chosen_id, row.rejected_id, row.chosen_item) for row in rows] == [("g", "b", 3), ("g", "c", 3)]


def test_the_same_call_written_otherwise_is_no_pair() -> None:
    def call(name: str, good: bool, **arguments: Any) -> Trajectory:
        step = called("move", 1, f"id-{name}", **arguments)
        return run(name, content=[instruction(), step], outcome=outcome("success" if good else "failure"))

    good = call("g", True, to="box", speed=1)
    assert rows_of(StepPairs(), good, call("b", False, speed=1.0, to="box")) == []
    assert len(rows_of(StepPairs(), good, call("b", False, speed=2, to="box"))) == 1


def test_calls_before_the_point_may_have_other_ids() -> None:
    def calls(name: str, last: str, good: bool) -> Trajectory:
        first = [called("move", 1, name, to="box"), seen("there", 1, tool_call_id=name)]
        content = [instruction(), *first, agent_message(last, 2)]
        return run(name, content=content, outcome=outcome("success" if good else "failure"))

    (row,) = rows_of(StepPairs(), calls("g", "take", True), calls("b", "sit", False))
    assert (texts(row.chosen), texts(row.rejected)) == (["take*"], ["sit*"])


def test_values_of_steps_pair_them() -> None:
    runs = [run("g", "go", "take"), run("b", "go", "sit")]
    said_of = {
        name: Annotations(
            values={(item, "mc"): Value(trajectory_id=name, name="mc", value=value, estimator="mc", n=5, item=item)}
        )
        for name, item, value in (("g", 3, 0.8), ("b", 3, 0.4))
    }
    view = StepPairs(score="value:mc", min_gap=0.35, weight="gap")
    (row,) = rows_of(view, *runs, said_of=said_of)
    assert (row.chosen_score, row.rejected_score, row.weight) == (0.8, 0.4, 0.4)
    assert rows_of(StepPairs(score="value:mc", min_gap=0.5), *runs, said_of=said_of) == []


def test_a_verdict_on_the_run_stands_in_for_one_on_the_step() -> None:
    runs = [run("g", "go"), run("b", "sit")]
    said_of = {"g": Annotations(verdicts={(None, "judge"): verdict("g", name="judge", score=0.7)})}
    own = {"b": Annotations(verdicts={(1, "judge"): verdict("b", name="judge", item=1, score=0.9)})}
    (row,) = rows_of(StepPairs(score="verdict:judge"), *runs, said_of={**said_of, **own})
    assert (row.chosen_id, row.chosen_score, row.rejected_score) == ("b", 0.9, 0.7)


def test_the_expert_wins_against_the_own_action() -> None:
    expert = run("e", "go", "take", generation=generation(policy="expert"))
    own = [run("a", "go", "sit", good=True), run("b", "go", "lie")]
    prefer = {"field": "generation.policy", "equals": "expert"}
    view = validate(StepPairs, {"score": None, "prefer": prefer}, "test")
    rows = rows_of(view, expert, *own)
    assert [(row.chosen_id, row.rejected_id, row.chosen_score) for row in rows] == [("e", "a", None), ("e", "b", None)]
    assert rows[0].view_parameters["prefer"] == prefer
    both = rows_of(validate(StepPairs, {"prefer": prefer, "weight": "gap"}, "test"), expert, *own)
    assert [(row.chosen_id, row.rejected_id, row.weight) for row in both] == [
        ("a", "b", 1.0),
        ("e", "a", 1.0),
        ("e", "b", 1.0),
    ]
    gap = {"prefer": prefer, "min_gap": 0.1, "weight": "gap"}
    assert [(row.chosen_id, row.weight) for row in rows_of(validate(StepPairs, gap, "test"), expert, *own)] == [
        ("a", 1.0)
    ]
    better = replace(expert, outcome=own[0].outcome)
    assert [
        (row.chosen_id, row.rejected_id, row.weight)
        for row in rows_of(validate(StepPairs, {**gap, "min_gap": 0.5}, "test"), better, own[1])
    ] == [("e", "b", 1.0)]
    with user_error("rule-broken", "score", "prefer"):
        validate(StepPairs, {"score": None}, "x.yaml")
    with user_error("rule-broken", "min_gap"):
        validate(StepPairs, {"score": None, "prefer": prefer, "min_gap": 0.5}, "x.yaml")


def test_other_tools_are_another_prompt() -> None:
    runs = [run("g", "go", good=True, tools=[tool("move")]), run("b", "sit", tools=[tool("jump")])]
    assert rows_of(StepPairs(), *runs) == []
    assert rows_of(TrajectoryPairs(), *runs) == []


def forms(name: str) -> list[PairView]:
    """A view under parameters that change its rows."""
    other = {"step_pairs": {"unit": "suffix"}, "trajectory_pairs": {"cut_rejected": "chosen+0"}}[name]
    kind = PAIR_VIEWS.load(name)
    return [kind(), kind(**other), kind(tool_format="json")]


commands = st.lists(st.sampled_from(["go", "sit", "take"]), min_size=1, max_size=4)


@pytest.mark.parametrize("name", PAIR_VIEWS)
@given(data=st.data())
def test_every_pair_view_keeps_the_contract(name: str, data: st.DataObject) -> None:
    runs = [
        run(str(number), *said_, good=data.draw(st.booleans()), copied=data.draw(st.integers(0, 3)))
        for number, said_ in enumerate(data.draw(st.lists(commands, max_size=5)))
    ]
    for view in forms(name):
        rows = rows_of(view, *runs)
        assert from_arrow(to_arrow(rows, view.record), view.record) == rows
        assert len({row.row_id for row in rows}) == len(rows)
        assert rows_of(view, *reversed(runs)) == rows
        for row in rows:
            check(row, name)


def check(row: PreferenceRow, name: str) -> None:
    assert row.view == name
    assert not any(message.train for message in row.prompt)
    assert row.chosen != row.rejected
    for side in (row.chosen, row.rejected):
        assert side[-1].train
        assert side[0].role == "assistant"
        assert all(message.role == "assistant" for message in side if message.train)


@pytest.mark.parametrize("name", PAIR_VIEWS)
@given(one=records(Trajectory))
def test_every_record_can_be_a_candidate(name: str, one: Trajectory) -> None:
    view = PAIR_VIEWS.load(name)()
    try:
        found = view.candidates(one, NOTHING)
    except Unused:
        return
    assert found
    assert found == view.candidates(one, NOTHING)
    assert {each.trajectory_id for each in found} == {one.trajectory_id}
    assert all(each.with_loss[-1] == len(each.actions) for each in found)
