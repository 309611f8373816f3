"""Policies without a model: an expert's thoughts, and its scores where it stands in for a reward model (acting:
``test_mistakes``)."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.records.rows import Message
from agentmill.schemas.records.trajectory import Action, MessageAction, Trajectory
from agentmill.schemas.views.annotations import NOTHING
from agentmill.schemas.views.sft import Sft
from agentmill.synthesis.environments import ENVIRONMENTS, make
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import PolicySettings, Turn
from agentmill.synthesis.policies.reward_model import scorer_of
from agentmill.synthesis.policies.scripted import thought_of
from agentmill.synthesis.rollouts.scaffold import read
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample


def conversation(answer: str) -> list[Message]:
    return [Message(role="user", content="Go."), Message(role="assistant", content=answer)]


async def test_a_stand_in_draws_a_score_by_what_is_scored() -> None:
    scorer = scorer_of(make_policy(PolicySettings(policy="expert", sampling={"mistakes": 0.3})))
    scores = [await scorer.score("e", conversation(f"step {n}"), None) for n in range(200)]
    values = [each.value for each in scores]
    assert all(0 <= value <= 1 for value in values)
    assert 0.4 < sum(values) / len(values) < 0.6
    assert len({each.rendering for each in scores}) == len(set(values)) == 200
    assert await scorer.score("e", conversation("step 7"), None) == scores[7]
    assert (await scorer.score("other", conversation("step 7"), None)).value != scores[7].value
    assert (await scorer.score("e", conversation("step 7"), "[]")).value != scores[7].value


async def demonstrated(family: str, scaffold: str, *, thinking: bool) -> Trajectory:
    """The first example of a family, solved by an expert."""
    spec, task = ENVIRONMENTS.load(family).examples()[0]
    settings = PolicySettings(policy="expert", sampling={"thoughts": "plan"} if thinking else {})
    exploration = Exploration(
        task=task,
        spec=spec,
        make_environment=lambda: make(spec),
        policies={"actor": make_policy(settings)},
        seed=3,
        plans={},
    )
    strategy = Sample(scaffold=scaffold)  # type: ignore[arg-type]
    (piece,) = strategy.planned(exploration)
    (found,) = [each async for each in strategy.explore(exploration, piece)]
    return found


def acts(trajectory: Trajectory) -> list[Action]:
    return [item for item in trajectory.content if isinstance(item, Action)]


PLAYED = [(family, how) for family in ("pddl", "toolbox", "codegym", "search") for how in ("react", "tools")]
"""Without programs of several lines, of which ``react`` takes the last."""


@pytest.mark.parametrize(("family", "scaffold"), [*PLAYED, ("interpreter", "tools")])
async def test_a_thought_is_the_rest_of_the_plan_and_changes_no_action(family: str, scaffold: str) -> None:
    plain, thinking = [await demonstrated(family, scaffold, thinking=each) for each in (False, True)]
    assert plain.trajectory_id != thinking.trajectory_id
    assert thinking.outcome.status == plain.outcome.status == "success"
    spec, task = ENVIRONMENTS.load(family).examples()[0]
    environment = make(spec)
    assert thinking.generation is not None
    environment.reset(task, thinking.generation.seed)
    commands = []
    for before, action in zip(acts(plain), acts(thinking), strict=True):
        thought = action.description
        assert thought == thought_of(environment)
        assert action == msgspec.structs.replace(before, description=thought)
        best = environment.expert()
        assert best is not None
        commands.append((thought, environment.command(best)))
        environment.step(action)
    environment.close()
    assert [thought.partition("Plan: ")[2] for thought, _ in commands] == [
        f"{'; '.join(command for _, command in commands[place:])}." for place in range(len(commands))
    ]


async def test_a_row_with_thoughts_is_what_the_scaffold_reads_back() -> None:
    trajectory = await demonstrated("pddl", "react", thinking=True)
    (row,) = Sft().make_rows(trajectory, NOTHING)
    written = [message.content or "" for message in row.messages if message.role == "assistant"]
    assert written[0].startswith("Not yet: ")
    for text, action in zip(written, acts(trajectory), strict=True):
        (found,) = read("react", Turn(actions=[MessageAction(content=text)]), []).actions
        assert isinstance(found, MessageAction)
        assert isinstance(action, MessageAction)
        assert (found.description, found.content) == (action.description, action.content)


def test_a_thought_leaves_the_environment_as_it_was() -> None:
    spec, task = ENVIRONMENTS.load("pddl").examples()[0]
    environment = make(spec)
    environment.reset(task, 0)
    state = environment.state_digest()
    unmet = environment.check().evidence["unmet"]
    assert len(unmet) > 1
    assert thought_of(environment).startswith(f"Not yet: {'; '.join(unmet)}. Plan: ")
    assert thought_of(environment) == thought_of(environment)
    assert environment.state_digest() == state
