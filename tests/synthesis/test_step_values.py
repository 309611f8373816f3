"""Values of steps worked out by hand."""

from __future__ import annotations

import statistics

import msgspec
import pytest

from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.synthesis.step_values import Estimate, Group, Step, continued, returns, searched, steps_of
from agentmill.synthesis.strategies.branch import Branch
from agentmill.synthesis.strategies.sample import Sample
from tests.ruin_environment import gambler, ruin_task
from tests.synthesis.strategies.exploring import exploration, only


def step(turn: int, reward: float = 0.0) -> Step:
    return Step(turn=turn, item=10 * turn, state="s", reward=reward, own=True)


THREE = [step(1), step(2), step(3)]


async def test_steps_have_the_state_they_were_taken_in() -> None:
    run = await only(Sample(), exploration(ruin_task(2, 3), actor=gambler(1.0)))
    [found] = steps_of(run)
    assert (found.turn, found.state, found.reward, found.own) == (1, "number-2", 1.0, True)
    assert isinstance(run.content[found.item], MessageAction)


async def test_copied_steps_are_not_own() -> None:
    lost = await only(Sample(), exploration(ruin_task(3, 9), actor=gambler(0.0)))
    again = await only(Branch(turns="last"), exploration(ruin_task(3, 9), earlier=(lost,), actor=gambler(0.0)))
    assert [found.own for found in steps_of(again)] == [False, False, True]
    assert [found.state for found in steps_of(again)] == ["number-3", "number-2", "number-1"]
    assert steps_of(again)[:2] == [msgspec.structs.replace(each, own=False) for each in steps_of(lost)[:2]]


def test_nothing_is_known_of_a_trajectory_without_actions() -> None:
    assert steps_of(Trajectory(trajectory_id="t", content=[])) == []
    assert returns([], 1.0, 0.5) == []


def test_a_step_is_worth_what_follows_it_and_the_last_one_the_end() -> None:
    results = {1: [0.0] * 7, 2: [1.0, 0.0, 0.0, 1.0], 3: [1.0]}
    assert continued(THREE, results, 0.25) == {10: Estimate(0.5, 4), 20: Estimate(1.0, 1), 30: Estimate(0.25, 1)}
    assert continued(THREE, {2: [1.0]}, None) == {10: Estimate(1.0, 1)}


def node(turn: int, q: float | None, visits: int = 3, **extra: float) -> Node:
    return Node(
        node_id=f"n{turn}", tree_id="t", parent_id=None, trajectory_id="r", turn=turn, q=q, visits=visits, extra=extra
    )


@pytest.mark.parametrize(("mix", "values"), [(1.0, {10: 0.5, 30: 0.9}), (0.25, {10: 0.25 * 0.5 + 0.75 * 0.1})])
def test_a_node_is_worth_its_q_mixed_with_its_own_estimate(mix: float, values: dict[int, float]) -> None:
    nodes = [node(0, 0.7), node(1, 0.5, estimate=0.1), node(2, None), node(3, 0.9)]
    found = searched(THREE, nodes, mix)
    assert {item: each.value for item, each in found.items()} == pytest.approx(values)
    assert {each.n for each in found.values()} == {3}


def test_returns_are_discounted_results_or_rewards() -> None:
    assert returns(THREE, 0.8, 0.5) == [0.2, 0.4, 0.8]
    assert returns([step(1, 1.0), step(2), step(3, 4.0)], None, 0.5) == [2.0, 2.0, 4.0]


def test_an_advantage_is_told_from_the_others_in_the_same_state() -> None:
    values, group = [1.0, 0.0, 0.0, 1.0, 4.0], Group()
    for value in values:
        group.add(value)
    found = [group.advantage(value, "std") for value in values]
    mean, deviation = statistics.mean(values), statistics.pstdev(values)
    assert [each and each.value for each in found] == pytest.approx([(v - mean) / deviation for v in values])
    assert group.advantage(4.0, "none") == Estimate(pytest.approx(4.0 - mean), 5)
    backwards = Group()
    for value in reversed(values):
        backwards.add(value)
    assert [backwards.advantage(value, "std") for value in values] == found
    equal = Group()
    equal.add(0.1)
    assert equal.advantage(0.1, "std") is None
    equal.add(0.1)
    assert equal.advantage(0.1, "std") == Estimate(0.0, 2)
