"""``inject``: one wrong turn at a drawn place, the record or an actor after it, and the same again in every run."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest

from agentmill.schemas.config import validate
from agentmill.schemas.records.trajectory import Action, MessageAction, Trajectory
from agentmill.synthesis.policies.policy import PolicyError, PolicySettings
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.strategies.branch import Branch
from agentmill.synthesis.strategies.inject import INJECTED, Inject, Recorded
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.builders import tokens
from tests.errors import user_error
from tests.ruin_environment import RuinEnvironment, gambler, ruin_task
from tests.synthesis.strategies.exploring import commands, exploration, explore, only

WAY = ("right", "left", "right", "right")
"""2, 3, 2, 3, 4: won at turn 4."""


async def won(**fields: Any) -> Trajectory:
    actor = ScriptedPolicy(PolicySettings(policy="scripted", turns=list(WAY)))
    parent = await only(Sample(), exploration(actor=actor))
    assert parent.outcome.status == "success"
    return msgspec.structs.replace(parent, **fields)


async def injected(parent: Trajectory, seed: int = 7, **parameters: Any) -> list[Trajectory]:
    return await explore(Inject(**parameters), exploration(earlier=(parent,), actor=Recorded(), seed=seed))


async def test_one_turn_is_wrong_and_the_record_goes_on() -> None:
    parent = await won()
    found = await injected(parent, k=4, errors=["other_action"])
    assert {each.branch_turn: commands(each) for each in found} == {
        1: ["left", "*left"],  # 1, 0: lost
        2: ["*right", "right"],  # 3, 4: won nevertheless
        3: ["*right", "*left", "left", "*right"],  # 3, 2, 1, 2
        4: ["*right", "*left", "*right", "left"],
    }
    assert {each.branch_turn: each.outcome.status for each in found} == {
        1: "failure",
        2: "success",
        3: "failure",
        4: "failure",
    }
    for each in found:
        assert each.extra[INJECTED] == {"kind": "other_action", "turn": each.branch_turn, "skipped": []}
        assert (each.parent_id, each.task_id) == (parent.trajectory_id, parent.task_id)
        verdict = await CheckOutcome().verify(ruin_task(), each, RuinEnvironment())
        assert verdict.passed is (each.outcome.status == "success")


async def test_a_turn_is_left_out_or_repeated() -> None:
    explored = exploration(earlier=(await won(),), actor=Recorded())
    strategy = Inject(k=8, errors=["omit", "repeat"])
    found, dropped = {}, 0
    for trajectory_id in strategy.planned(explored):
        try:
            [each] = [each async for each in strategy.explore(explored, trajectory_id)]
            found[each.branch_turn, each.extra[INJECTED]["kind"]] = commands(each)
        except PolicyError:
            dropped += 1
    assert found[1, "omit"] == ["left", "*right", "*right"]
    assert found[3, "repeat"] == ["*right", "*left", "left", "*right", "*right"]
    # Leaving out turn 2 and repeating turn 1 before it both come to the same: one of them is drawn.
    assert [found.get((2, kind)) for kind in ("omit", "repeat")].count(["*right", "right"]) == 1
    assert (len(found), dropped) == (3, 5)


async def test_more_than_the_turns_draws_other_errors_and_then_none() -> None:
    explored = exploration(earlier=(await won(),), actor=Recorded())
    strategy = Inject(k=9, errors=["other_action"])
    ids = strategy.planned(explored)
    assert ids[:4] == Inject(k=4, errors=["other_action"]).planned(explored)
    for place, trajectory_id in enumerate(ids):
        if place < 4:
            [_] = [each async for each in strategy.explore(explored, trajectory_id)]
            continue
        with pytest.raises(PolicyError, match="no_error_applies: at turn"):
            [_ async for each in strategy.explore(explored, trajectory_id)]


async def test_the_seed_draws_the_turns() -> None:
    parent = await won()
    turns = [
        tuple(each.branch_turn for each in await injected(parent, seed, k=2, errors=["other_action"]))
        for seed in range(8)
    ]
    assert len(set(turns)) > 3
    assert turns[0] == tuple(each.branch_turn for each in await injected(parent, 0, k=2, errors=["other_action"]))


async def test_an_actor_goes_on_and_the_copied_turns_of_a_branch_stay_right() -> None:
    parent = await won()
    [branch] = await explore(Branch(turns="last"), exploration(earlier=(parent,), actor=gambler(1.0)))
    assert Inject().points(branch) == [4]
    explored = exploration(earlier=(branch,), actor=gambler(1.0))
    [found] = await explore(Inject(then="actor", errors=["other_action"]), explored)
    assert commands(found) == ["*right", "*left", "*right", "left", "right", "right"]
    assert found.outcome.status == "success"


async def test_the_wrong_turn_has_no_tokens_and_no_thought_of_the_right_one() -> None:
    parent = await won()
    content = [
        msgspec.structs.replace(item, tokens=tokens(1), description="Go.") if isinstance(item, Action) else item
        for item in parent.content
    ]
    for each in await injected(msgspec.structs.replace(parent, content=content), k=4, errors=["other_action"]):
        [wrong] = [item for item in each.content if isinstance(item, MessageAction) and item.turn == each.branch_turn]
        assert (wrong.tokens, wrong.description, wrong.context_operation) == (None, None, None)
        after = [item for item in each.content if isinstance(item, Action) and item.turn > wrong.turn]
        assert all(item.tokens is None for item in after)


async def test_the_record_goes_on_beyond_the_limit_of_the_task_and_one_turn_more() -> None:
    parent = await won()
    short = exploration(msgspec.structs.replace(ruin_task(), max_turns=2), earlier=(parent,), actor=Recorded())
    found = await explore(Inject(k=4, errors=["other_action"]), short)
    assert {each.branch_turn for each in found if each.outcome.reason == "max_turns"} == set()
    assert [each.trajectory_id for each in found] == Inject(k=4, errors=["other_action"]).planned(short)
    twice = [each for each in await of_each(Inject(k=4, errors=["repeat"]), short) if each.branch_turn == 3]
    assert commands(twice[0]) == ["*right", "*left", "left", "*right", "*right"]
    limited = await of_each(Inject(k=4, errors=["other_action"], max_turns=2), short)
    assert {each.branch_turn for each in limited} == {1, 2}


async def of_each(strategy: Inject, explored: Any) -> list[Any]:
    """What comes of the pieces that are not dropped."""
    found = []
    for piece in strategy.planned(explored):
        with contextlib.suppress(PolicyError):
            found += [each async for each in strategy.explore(explored, piece)]
    return found


async def test_nothing_to_inject_into() -> None:
    parent = await won()
    assert Inject(k=3).count(msgspec.structs.replace(parent, generation=None)) == 0
    assert Inject(k=3).count(ruin_task()) == 0
    assert Inject(k=3).planned(exploration(earlier=(await won(content=[]),), actor=Recorded())) == []
    with pytest.raises(PolicyError, match="no_model"):
        await Recorded().act(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"errors": ["omit", "omit"]}, ("rule-broken", "omit", "twice")),
        ({"errors": []}, ("invalid-value", "errors")),
        ({"errors": ["typo"]}, ("invalid-value", "errors")),
        ({"scaffold": "tools"}, ("rule-broken", "scaffold")),
        ({"constrain": "admissible"}, ("rule-broken", "constrain", "then: actor")),
        ({"context": "sliding_window"}, ("rule-broken", "context", "then: actor")),
    ],
)
def test_mistakes(given: dict[str, Any], words: tuple[str, ...]) -> None:
    with user_error(*words):
        validate(Inject, given, "inject")
