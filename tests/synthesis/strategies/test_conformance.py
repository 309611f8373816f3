"""What holds of every strategy: it keeps to its plan, is the same in every run, and what it records can be replayed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.policies import make_policy
from agentmill.synthesis.policies.policy import PolicySettings
from agentmill.synthesis.rollouts.strategy import Exploration, Strategy
from agentmill.synthesis.strategies import STRATEGIES
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.verifiers.check_outcome import CheckOutcome
from tests.ruin_environment import RuinEnvironment, Sayer, gambler, ruin_task
from tests.synthesis.strategies.exploring import exploration, explore, library, only

PARAMETERS: dict[str, dict[str, Any]] = {
    "branch": {"k": 2},
    "imagine": {"k": 2},
    "inject": {"k": 2, "errors": ["other_action"]},
    "memory": {"k": 2, "held_out": False},
    "multi_agent": {"k": 2, "roles": [{"name": "planner"}, {"name": "actor", "acts": True, "max_actions": 2}]},
    "revise": {"attempts": 2},
    "sample": {"k": 3},
    "simulate": {"k": 2, "held_out": False},
    "tree_search": {"iterations": 3, "branching": 2, "max_turns": 6},
}
"""Small ones; a strategy that needs none has no entry."""

WRITTEN = '{"turns": [{"action": "right", "observation": "So it is."}], "ending": {"status": "success"}}'


def strategy(name: str) -> Strategy:
    """A small instance."""
    made: Strategy = STRATEGIES.load(name)(**PARAMETERS.get(name, {}))
    return made


async def started(name: str, seed: int = 7) -> Exploration:
    """A task with an attempt at it that failed, for strategies that go on from one, or recall it."""
    task = ruin_task(2, 4)
    failed = await only(Sample(), exploration(task, actor=gambler(0.0)))
    actor = Sayer(PolicySettings(policy="sayer", turns=[WRITTEN])) if name == "imagine" else gambler(0.4)
    simulator = make_policy(PolicySettings(policy="expert"))
    given: dict[str, Any] = {"earlier": (failed,), "library": library(failed), "actor": actor, "simulator": simulator}
    made: Exploration = exploration(task, seed=seed, **given)
    return made


@pytest.mark.parametrize("name", sorted(STRATEGIES))
async def test_it_keeps_to_its_plan(name: str) -> None:
    explored, one = await started(name), strategy(name)
    planned = one.planned(explored)
    assert len(set(planned)) == len(planned) == one.count(explored.earlier[0])
    assert one.planned(await started(name)) == planned
    assert not set(one.planned(await started(name, seed=8))) & set(planned)
    found = await explore(one, explored)
    ids = [each.trajectory_id for each in found if isinstance(each, Trajectory)]
    assert len(set(ids)) == len(ids) >= len(planned)
    assert explored.earlier[0].trajectory_id not in ids


@pytest.mark.parametrize("name", sorted(STRATEGIES))
async def test_it_does_the_same_in_every_run_and_after_a_journey(name: str) -> None:
    one = strategy(name)
    first = await explore(one, await started(name))
    assert await explore(one, await started(name)) == first
    assert await explore(pickle.loads(pickle.dumps(one)), await started(name)) == first


@pytest.mark.parametrize("name", sorted(STRATEGIES))
async def test_its_trajectories_can_be_replayed_and_say_how_they_were_made(name: str) -> None:
    explored = await started(name)
    for each in await explore(strategy(name), explored):
        if not isinstance(each, Trajectory):
            continue
        verdict = await CheckOutcome().verify(explored.task, each, RuinEnvironment())
        assert (verdict.status, verdict.reason) == (
            ("unscored", "no_real_state") if name == "simulate" else ("scored", None)
        )
        assert each.outcome.status in ("unknown", "success" if verdict.passed else "failure")
        assert (each.outcome.status == "unknown") == any(item.synthetic for item in each.content)
        assert each.generation is not None
        assert each.generation.strategy == name
        own = [item for item in each.content if item.context_operation is None]
        assert each.branch_turn is None or own[0].turn == each.branch_turn
