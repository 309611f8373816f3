"""Whatever changes what a strategy makes changes its ids, so that two ways of making it never share one."""

from __future__ import annotations

from typing import Any

import pytest

from agentmill.schemas.records.trajectory import Trajectory
from agentmill.synthesis.rollouts.roles import Role
from agentmill.synthesis.rollouts.strategy import Strategy
from agentmill.synthesis.strategies.branch import Branch
from agentmill.synthesis.strategies.imagine import Imagine
from agentmill.synthesis.strategies.inject import Inject
from agentmill.synthesis.strategies.memory import Memory
from agentmill.synthesis.strategies.multi_agent import MultiAgent
from agentmill.synthesis.strategies.revise import Revise
from agentmill.synthesis.strategies.sample import Sample
from agentmill.synthesis.strategies.simulated_episodes import Simulate
from agentmill.synthesis.strategies.tree_search import TreeSearch
from tests.builders import instruction, seen, trajectory
from tests.ruin_environment import gambler
from tests.synthesis.strategies.exploring import exploration, library

BEST = {"pool": "best", "pool_size": 2}


@pytest.mark.parametrize(
    ("kind", "given", "changed"),
    [
        *((Imagine, {}, each) for each in ({"scaffold": "tools"}, {"check": "world"}, {"mistakes": 1}, {"repairs": 1})),
        *((Imagine, {}, each) for each in ({"shots": 1}, {"max_turns": 3})),
        *((Inject, {}, each) for each in ({"errors": ["omit"]}, {"then": "actor"}, {"max_invalid": 2})),
        (Branch, {"then": "recorded", "turns": "last"}, {"edits": ["insert"]}),
        *((Memory, {}, each) for each in ({"scaffold": "tools"}, {"kind": "reflections"}, {"shots": 1})),
        *((Memory, {}, each) for each in ({"context": "notes"}, {"max_invalid": 2}, {"constrain": "admissible"})),
        *((Simulate, {}, each) for each in ({"scaffold": "tools"}, {"retries": 1}, {"max_chars": 9}, {"max_turns": 3})),
        *((Simulate, {}, each) for each in ({"results": "json"}, {"shots": 1}, {"context": "notes"})),
        *((Revise, BEST, {"aim": each}) for each in ("recombine", "refine")),
        *((Revise, {}, each) for each in ({"scaffold": "tools"}, {"level": "step"}, {"feedback": "self"}, BEST)),
    ],
)
def test_each_parameter_changes_the_id(kind: type[Strategy], given: dict[str, Any], changed: dict[str, Any]) -> None:
    earlier = (trajectory(task_id="t"),) if kind in (Branch, Inject) else ()
    players = {"actor": gambler(0.0), "simulator": gambler(0.0)}
    made = exploration(**players, earlier=earlier, library=library(_run("one"), _run("two")))
    one, other = (kind(**parameters).planned(made) for parameters in (given, {**given, **changed}))
    assert len(one) == len(other) == 1
    assert one != other
    assert one == kind(**given).planned(made)


@pytest.mark.parametrize(
    ("strategy", "role"),
    [
        (Sample(), "actor"),
        (Branch(turns="all"), "teacher"),
        (Revise(feedback="critic", attempts=2), "critic"),
        (TreeSearch(value="critic"), "critic"),
        (Memory(context="notes"), "summarizer"),
        (Simulate(), "simulator"),
        (MultiAgent(roles=[Role(name="planner"), Role(name="doer", acts=True)]), "doer"),
        (MultiAgent(roles=[Role(name="planner"), Role(name="doer", acts=True)]), "actor"),
    ],
)
def test_each_policy_has_a_part_in_the_id_by_its_entry(strategy: Strategy, role: str) -> None:
    """Two models of one name are told apart by what the recipe calls them, wherever they are served."""

    def planned(**entries: str) -> list[str]:
        policies = {name: gambler(0.0) for name in ("actor", role)}
        earlier = (trajectory(task_id="t"),) if isinstance(strategy, Branch) else ()
        made = exploration(library=library(_run("one")), earlier=earlier, entries=entries, **policies)
        return strategy.planned(made)

    one, other = planned(**{role: "a"}), planned(**{role: "b"})
    assert len({*one, *other, *planned()}) == 3 * len(one)
    assert one == planned(**{role: "a", "bystander": "c"})


def _run(name: str) -> Trajectory:
    """A run that serves as an exemplar and holds a reflection."""
    content = [instruction(f"Do {name}."), seen("Go right.", role="critic"), seen("Here.", state_digest="s")]
    return trajectory(name, task_id=name, content=content)
