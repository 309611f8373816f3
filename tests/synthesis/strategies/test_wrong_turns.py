"""Wrong turns: what each kind of error is, and that a draw never does what was recorded."""

from __future__ import annotations

import random
from typing import Any

import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import AnyAction, ApiAction, CodeAction, MessageAction, Trajectory
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.policies.scripted import ExpertPolicy, ScriptedPolicy
from agentmill.synthesis.rollouts.step import replay
from agentmill.synthesis.strategies.branch import history, recorded_turns
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.wrong_turns import (
    ERROR_KINDS,
    TRIES,
    ErrorKind,
    Moment,
    WrongTurn,
    _rewritten,
    draw,
)
from tests.ruin_environment import RuinEnvironment, ruin_task
from tests.synthesis.environments.examples import WAREHOUSE_TASK, warehouse
from tests.synthesis.strategies.exploring import exploration, only

WAY = ("right", "left", "right", "right")
"""2, 3, 2, 3, 4: won at turn 4."""


async def moment(turn: int, *, environment: Any = RuinEnvironment, task: Task | None = None, **sample: Any) -> Moment:
    """The state before a turn of a success."""
    task = task or ruin_task()
    settings = PolicySettings(policy="scripted", turns=list(WAY))
    actor = ScriptedPolicy(settings) if environment is RuinEnvironment else ExpertPolicy(settings)
    parent = await only(Sample(**sample), exploration(task, actor=actor, world=environment))
    return before(parent, task, environment(), turn)


def before(parent: Trajectory, task: Task, live: Any, turn: int) -> Moment:
    live.reset(task, 0)
    replay(live, history(parent, turn))
    return Moment(live, parent, recorded_turns(parent), turn)


def every(found: Moment, *kinds: ErrorKind, seed: int = 0, most: int = 99) -> list[WrongTurn]:
    drawn = []
    while len(drawn) < most and (wrong := draw(found, kinds or ERROR_KINDS, len(drawn), seed)[0]) is not None:
        drawn.append(wrong)
    return drawn


def texts(turns: list[WrongTurn]) -> list[tuple[str, list[str], int]]:
    return [(each.kind, [getattr(action, "content", "") for action in each.actions], each.after) for each in turns]


@pytest.mark.parametrize(
    ("turn", "kind", "wanted"),
    [
        (1, "other_action", [("other_action", ["left"], 1)]),
        (2, "other_action", [("other_action", ["right"], 2)]),
        (1, "omit", [("omit", ["left"], 2)]),
        (3, "omit", []),  # turn 4 does the same: the turn after it would be the first that differs
        (4, "omit", []),
        (1, "repeat", []),
        (2, "repeat", [("repeat", ["right"], 1)]),
        (4, "repeat", []),
        (2, "early_end", [("early_end", ["right"], 4)]),
        (1, "early_end", []),  # what ends the episode later does not end it here
        (3, "early_end", []),
        (1, "argument", []),
    ],
)
async def test_each_kind_where_there_are_two_commands(turn: int, kind: ErrorKind, wanted: list[Any]) -> None:
    found = await moment(turn)
    assert texts(every(found, kind)) == wanted


async def test_the_state_is_as_it_was_after_a_draw() -> None:
    found = await moment(2)
    before = found._environment.state_digest()
    draw(found, ERROR_KINDS, 0, 3)
    assert found._environment.state_digest() == before == "number-3"


async def test_kinds_that_do_not_apply_are_named_and_another_is_drawn() -> None:
    found = await moment(1)
    for seed in range(6):
        wrong, skipped = draw(found, ["repeat", "argument", "omit"], 0, seed)
        assert wrong is not None
        assert wrong.kind == "omit"
        assert set(skipped) <= {"repeat", "argument"}
    assert any(draw(found, ["repeat", "argument", "omit"], 0, seed)[1] for seed in range(6))
    none, skipped = draw(found, ["repeat", "argument"], 0, 0)
    assert none is None
    assert sorted(skipped) == ["argument", "repeat"]


async def test_all_draws_of_a_turn_differ_and_depend_on_the_seed() -> None:
    found = await moment(3, environment=warehouse, task=WAREHOUSE_TASK)
    drawn = every(found, most=9)
    deeds = [str(each.actions) for each in drawn]
    assert len(set(deeds)) == len(deeds) == 9
    assert {each.kind for each in drawn} >= {"other_action", "argument", "omit"}
    assert [str(each.actions) for each in every(found, most=4)] == deeds[:4]
    assert [str(each.actions) for each in every(found, seed=1, most=9)] != deeds


@pytest.mark.parametrize("scaffold", ["text", "tools"])
async def test_an_argument_becomes_another_value_and_nothing_else_changes(scaffold: str) -> None:
    found = await moment(2, environment=warehouse, task=WAREHOUSE_TASK, scaffold=scaffold)
    own = found.call_of(found.actions[0])
    assert own is not None
    drawn = every(found, "argument")
    assert drawn
    for wrong in drawn:
        assert isinstance(wrong.actions[0], ApiAction if scaffold == "tools" else MessageAction)
        [other] = wrong.actions
        call = found.call_of(other)
        if call is None:  # a command that is not legal here
            continue
        assert call.function == own.function
        assert sum(call.kwargs[name] != own.kwargs[name] for name in own.kwargs) == 1


@pytest.mark.parametrize(
    ("action", "wanted"),
    [
        (CodeAction(language="python", content="submit(3)"), ["submit(15)"]),
        (MessageAction(content="read('a.txt', 3)"), ["read('b.txt', 3)", "read('a.txt', 15)"]),
    ],
)
async def test_numbers_and_texts_in_code_and_commands_are_arguments(action: AnyAction, wanted: list[str]) -> None:
    found = await moment(1)
    known = [CodeAction(language="python", content="f(15)"), MessageAction(content="read('b.txt')")]
    found.actions, found.recorded = [action], {1: [action], **{turn: [each] for turn, each in enumerate(known, 2)}}
    assert sorted(text for _, (text,), _ in texts(every(found, "argument"))) == sorted(wanted)


async def test_few_of_many_numbers_are_written_out() -> None:
    found = await moment(1)
    code = CodeAction(language="python", content=f"x = {list(range(1_000, 3_000))}")
    found.actions, found.recorded = [code], {1: [code]}
    assert len(_rewritten(found, code, random.Random(0))) == 4 * TRIES
