"""``check_outcome`` replays what was done and believes nothing else."""

from __future__ import annotations

import msgspec
import pytest

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import ApiAction, MessageAction, Outcome, Trajectory
from agentmill.schemas.records.verdict import Verdict
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.policies.policy import Conversation, PolicySettings, Turn
from agentmill.synthesis.policies.scripted import ScriptedPolicy
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.counter_environment import SPEC, CounterEnvironment, counting_task


async def lived(task: Task, *turns: str, policy: ScriptedPolicy | None = None, **parameters: object) -> Trajectory:
    actor = policy or ScriptedPolicy(PolicySettings(policy="scripted", turns=list(turns)))
    explored = Exploration(task=task, spec=SPEC, make_environment=CounterEnvironment, policies={"actor": actor}, seed=1)
    strategy = Sample(**parameters)
    [piece] = strategy.planned(explored)
    [trajectory] = [one async for one in strategy.explore(explored, piece)]
    return trajectory


async def judged(task: Task, trajectory: Trajectory) -> Verdict:
    return await CheckOutcome().verify(task, trajectory, CounterEnvironment())


@pytest.mark.parametrize(
    ("turns", "passed", "score", "number"),
    [
        (["add 2", "add 2"], True, 1.0, 4),
        (["add 2", "wrong", "add 1", "add 1"], True, 1.0, 4),
        (["add 2", "add 1", "add 2"], False, 0.75, 5),
        (["add 2", "x", "x"], False, 0.5, 2),
    ],
)
async def test_success_failure_and_truncation_are_scored(
    turns: list[str], passed: bool, score: float, number: int
) -> None:
    task = counting_task(4)
    trajectory = await lived(task, *turns, max_turns=len(turns))
    verdict = await judged(task, trajectory)
    assert (verdict.name, verdict.status, verdict.judge) == ("check_outcome", "scored", "environment")
    assert (verdict.passed, verdict.score) == (passed, score)
    assert verdict.evidence == {"number": number, "state_digest": f"number-{number}"}
    assert verdict.trajectory_id == trajectory.trajectory_id


async def test_a_claimed_outcome_is_not_believed() -> None:
    task = counting_task()
    trajectory = await lived(task, "add 1", max_turns=1)
    boasting = msgspec.structs.replace(trajectory, outcome=Outcome(status="success", reward=1.0, terminated=True))
    assert (await judged(task, boasting)).passed is False


async def test_a_changed_action_is_found_at_its_step() -> None:
    task = counting_task(4)
    trajectory = await lived(task, "add 2", "add 2")
    content = [*trajectory.content[:2], MessageAction(content="add 1", turn=1), *trajectory.content[3:]]
    verdict = await judged(task, msgspec.structs.replace(trajectory, content=content))
    assert (verdict.status, verdict.reason, verdict.passed, verdict.score) == ("error", "state_differs", None, None)
    assert verdict.evidence == {"item": 3, "recorded": "number-2", "replayed": "number-1"}


async def test_a_world_that_starts_elsewhere_is_found_at_once() -> None:
    trajectory = await lived(counting_task(4), "add 2", "add 2")
    verdict = await judged(counting_task(4, drift=1), trajectory)
    assert verdict.evidence == {"item": 1, "recorded": "number-0", "replayed": "number-1"}


async def test_parallel_calls_are_replayed_as_far_as_they_were_carried_out() -> None:
    def thrice(conversation: Conversation) -> Turn:
        bad = ApiAction(function="add", kwargs={}, raw_arguments="nonsense")
        return Turn(actions=[bad, *[ApiAction(function="add", kwargs={"amount": 2})] * 2])

    task = counting_task(2)
    policy = ScriptedPolicy(PolicySettings(policy="scripted"), thrice)
    verdict = await judged(task, await lived(task, policy=policy, scaffold="tools"))
    assert (verdict.status, verdict.passed, verdict.score) == ("scored", True, 1.0)


async def test_nothing_is_said_where_nothing_can_be_replayed() -> None:
    task = counting_task()
    trajectory = await lived(task, "add 1", max_turns=1)
    without = await CheckOutcome().verify(task, trajectory)
    assert (without.status, without.reason, without.score) == ("unscored", "no_environment", None)
    ingested = await judged(task, msgspec.structs.replace(trajectory, generation=None))
    assert (ingested.status, ingested.reason) == ("unscored", "not_generated")
    answer = await judged(counting_task(0), await lived(counting_task(0), "0", tools="none"))
    assert (answer.status, answer.reason, answer.passed) == ("unscored", "closed_book", None)


async def test_a_world_that_breaks_on_replay_is_named() -> None:
    trajectory = await lived(counting_task(), "add 2", "add 1")
    with pytest.raises(EnvError, match="the gears are stuck"):
        await judged(counting_task(break_at=2), trajectory)
