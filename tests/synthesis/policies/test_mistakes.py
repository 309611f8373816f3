"""An expert that errs at a set rate: which turns, what it does there, and that it goes on in every family."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import jsonschema
import pytest

from agentmill.schemas.records.trajectory import Action, ApiAction, MessageAction, Tool, Trajectory
from agentmill.synthesis.environments import ENVIRONMENTS, make
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.mistakes import (
    APPROVAL,
    OBJECTION,
    WORDS,
    any_value,
    changed_call,
    changed_value,
    draws_mistake,
    reviewed,
)
from agentmill.synthesis.policies.policy import Conversation, PolicyError, PolicySettings, Review
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.judge import ANSWERS
from agentmill.synthesis.verifiers.judging import object_schema

FAMILIES = ["babyai", "pddl", "toolbox", "codegym", "interpreter", "search"]
ADD = Tool(
    name="add",
    description="",
    parameters={"type": "object", "properties": {"n": {"type": "integer"}, "unit": {"enum": ["m", "km"]}}},
)
STOP = Tool(name="stop", description="", parameters={"type": "object", "properties": {"n": {"type": "integer"}}})


def expert(mistakes: float | None) -> PolicySettings:
    return PolicySettings(policy="expert", sampling={} if mistakes is None else {"mistakes": mistakes})


def exploring(family: str, mistakes: float | None) -> Exploration:
    """What an expert is given to explore the first example of a family."""
    spec, task = ENVIRONMENTS.load(family).examples()[0]
    return Exploration(
        task=task,
        spec=spec,
        make_environment=lambda: make(spec),
        policies={"actor": make_policy(expert(mistakes))},
        seed=3,
        plans={},
    )


async def played(family: str, mistakes: float | None, scaffold: str = "tools", k: int = 3) -> list[Trajectory]:
    """``k`` episodes of the first example of a family."""
    exploration = exploring(family, mistakes)
    strategy = Sample(k=k, scaffold=scaffold, max_turns=12)  # type: ignore[arg-type]
    ids = strategy.planned(exploration)
    return [each for piece in ids async for each in strategy.explore(exploration, piece)]


def actions(trajectories: Sequence[Trajectory]) -> list[list[Action]]:
    return [[item for item in each.content if isinstance(item, Action)] for each in trajectories]


def test_mistakes_come_at_their_rate_and_those_of_a_lower_rate_are_among_those_of_a_higher_one() -> None:
    low, high = [{seed for seed in range(4_000) if draws_mistake(rate, seed)} for rate in (0.3, 0.6)]
    assert low < high
    assert len(low) / 4_000 == pytest.approx(0.3, abs=0.03)
    assert not any(draws_mistake(0.0, seed) for seed in range(100))
    assert all(draws_mistake(1.0, seed) for seed in range(100))


@pytest.mark.parametrize("family", FAMILIES)
async def test_without_mistakes_it_is_the_expert(family: str) -> None:
    assert actions(await played(family, 0.0, k=1)) == actions(await played(family, None, k=1))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("scaffold", ["text", "tools"])
async def test_it_errs_and_goes_on_in_every_family(family: str, scaffold: str) -> None:
    best = actions(await played(family, None, scaffold, k=1))[0]
    found = await played(family, 0.5, scaffold, k=4)
    assert all(each.outcome.status in ("success", "failure") for each in found)
    assert any(each != best for each in actions(found)), "none of four episodes has a mistake at half of its turns"
    assert actions(found) == actions(await played(family, 0.5, scaffold, k=4)), "the same seeds, the same mistakes"
    assert all(each.generation is not None and each.generation.sampling == {"mistakes": 0.5} for each in found)
    plain = await played(family, None, scaffold, k=1)
    assert found[0].trajectory_id != plain[0].trajectory_id


async def test_a_mistake_where_all_actions_are_listed_is_another_legal_one() -> None:
    (found,) = await played("pddl", 1.0, k=1)
    spec, task = ENVIRONMENTS.load("pddl").examples()[0]
    environment = make(spec)
    environment.reset(task, 0)
    for action in actions([found])[0]:
        assert isinstance(action, ApiAction)
        legal = [each.kwargs for each in environment.admissible() if each.function == action.function]
        assert action.kwargs in legal
        best = environment.expert()
        assert best is not None
        others = [each for each in environment.admissible() if each != best]
        assert (action.function, action.kwargs) != (best.function, best.kwargs) or not others
        environment.step(action)


def test_a_changed_call_is_of_another_tool_or_has_one_other_argument() -> None:
    call = ApiAction(function="add", kwargs={"n": 3, "unit": "m"})
    found = [changed_call(call, [ADD, STOP], random.Random(seed)) for seed in range(40)]
    assert all(each is not None and each != call for each in found)
    others = {each.function for each in found if each is not None}
    assert others == {"add", "stop"}
    assert all(each.kwargs == {"n": 3} for each in found if each is not None and each.function == "stop")
    same = [each.kwargs for each in found if each is not None and each.function == "add"]
    assert {"n": 3, "unit": "km"} in same
    assert all(sum(value != call.kwargs[name] for name, value in kwargs.items()) == 1 for kwargs in same)
    assert changed_call(None, [], random.Random(0)) is None
    assert changed_call(ApiAction(function="stop", kwargs={}), [STOP], random.Random(0)) is None


@pytest.mark.parametrize("value", [0, 2.5, True, "rope", "x", "", None, [1, 2], [], {"a": 1}, {}])
def test_a_changed_value_differs(value: object) -> None:
    assert changed_value(value, {}, random.Random(1)) != value


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "integer"}, int),
        ({"type": ["number", "null"]}, float),
        ({"type": "boolean"}, bool),
        ({"type": "array"}, list),
        ({}, str),
    ],
)
def test_any_value_is_of_its_type(schema: dict[str, object], kind: type) -> None:
    assert isinstance(any_value(schema, random.Random(1)), kind)


async def test_a_question_for_words_is_answered_by_a_stand_in_and_not_by_an_expert() -> None:
    question = Conversation(episode_id="e", system_prompt="Reflect.", content=(), tools=[], seed=1)
    turn = await make_policy(expert(0.3)).act(question)
    assert turn.actions == [MessageAction(content=WORDS)]
    with pytest.raises(PolicyError, match="no_environment"):
        await make_policy(expert(None)).act(question)


async def reviewed_by(mistakes: float | None, scaffold: str = "tools", max_vetoes: int = 20) -> Trajectory:
    """An episode of an actor that errs at every second turn, with an expert as its critic."""
    spec, task = ENVIRONMENTS.load("toolbox").examples()[0]
    exploration = Exploration(
        task=task,
        spec=spec,
        make_environment=lambda: make(spec),
        policies={"actor": make_policy(expert(0.5)), "critic": make_policy(expert(mistakes))},
        seed=3,
        plans={},
    )
    roles = [{"name": "clerk", "acts": True}, {"name": "critic", "veto": "NO"}]
    given = {"roles": roles, "scaffold": scaffold, "max_turns": 12, "max_vetoes": max_vetoes}
    strategy = MultiAgent.model_validate(given)
    [piece] = strategy.planned(exploration)
    [found] = [each async for each in strategy.explore(exploration, piece)]
    return found


@pytest.mark.parametrize("scaffold", ["text", "tools"])
async def test_an_expert_as_a_critic_lets_the_actions_of_the_plan_pass_and_no_others(scaffold: str) -> None:
    best = actions(await played("toolbox", None, scaffold, k=1))[0]
    found = await reviewed_by(None, scaffold)
    done = [item for item in found.content if isinstance(item, Action) and item.role == "actor"]
    prevented = [item for item in found.content if isinstance(item, Action) and item.role == "proposer"]
    assert found.outcome.status == "success"
    assert list(map(what, done)) == list(map(what, best))
    assert prevented
    assert all(item.error for item in prevented)


async def test_a_critic_that_errs_at_every_turn_prevents_the_plan_alone() -> None:
    found = await reviewed_by(1.0, max_vetoes=3)
    first = next(item for item in found.content if isinstance(item, Action) and item.role in ("proposer", "actor"))
    best = actions(await played("toolbox", None, k=1))[0][0]
    assert (what(first) == what(best)) == (first.role == "proposer")


def test_a_reviewer_errs_by_the_other_answer_and_objects_to_nothing_where_there_is_no_plan() -> None:
    environment = make(ENVIRONMENTS.load("pddl").examples()[0][0])
    stop = ApiAction(function="stop", kwargs={"n": 1})
    review, other = Review("NO", (stop,)), Review("NO", (ApiAction(function="stop", kwargs={"n": 2}),))
    answers = [reviewed(each, environment, stop, errs) for each in (review, other) for errs in (False, True)]
    assert answers == [APPROVAL, f"NO {OBJECTION}", f"NO {OBJECTION}", APPROVAL]
    assert reviewed(other, environment, None, False) == APPROVAL


async def test_without_tools_a_stand_in_knows_nothing_and_an_expert_cannot_answer() -> None:
    for mistakes, answer in ((0.3, WORDS), (None, None)):
        exploration = exploring("search", mistakes)
        strategy = Sample(tools="none")
        [piece] = strategy.planned(exploration)
        if answer is None:
            with pytest.raises(PolicyError, match="no_environment"):
                [each async for each in strategy.explore(exploration, piece)]
        else:
            [found] = [each async for each in strategy.explore(exploration, piece)]
            assert [item.content for item in found.content if isinstance(item, MessageAction)] == [answer]


def what(action: Action) -> object:
    """What an action does, whoever proposed it."""
    return (action.function, action.kwargs) if isinstance(action, ApiAction) else action.content


async def test_a_judge_is_answered_by_a_stand_in_with_a_draw_that_fits() -> None:
    steps = {"type": "array", "items": {"type": "integer"}}
    schema = object_schema(reasons={"type": "string"}, verdict={"type": "boolean"}, grade=ANSWERS["1-5"], steps=steps)
    answers = []
    for seed in [*range(40), 0]:
        asked = Conversation(episode_id="e", system_prompt="", content=(), tools=[], answer_schema=schema, seed=seed)
        (action,) = (await make_policy(expert(0.3)).act(asked)).actions
        assert isinstance(action, MessageAction)
        answers.append(json.loads(action.content))
    jsonschema.validate(answers, {"type": "array", "items": schema})
    assert answers[0] == answers[-1]
    assert {each["verdict"] for each in answers} == {True, False}
    assert {each["grade"] for each in answers} == {1, 2, 3, 4, 5}
    assert all(each["steps"] and min(each["steps"]) >= 1 for each in answers)
