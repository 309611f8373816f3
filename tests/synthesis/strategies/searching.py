"""Searches in worlds whose values are known, for tests."""

from __future__ import annotations

from typing import Any

from agentmill.schemas.records.task import Task
from agentmill.schemas.records.trajectory import MessageAction, Trajectory
from agentmill.schemas.records.verdict import Node
from agentmill.synthesis.rollouts.strategy import Exploration
from agentmill.synthesis.strategies.tree_search import TreeSearch
from tests.decision_environment import (
    SPEC,
    Chooser,
    DecisionEnvironment,
)

DEEP = {
    "a": {"a": {"a": 0.1, "b": 0.4}, "b": {"a": 0.3, "b": 0.2}},
    "b": {"a": {"a": 0.0, "b": 0.9}, "b": {"a": 0.2, "b": 0.1}},
}
"""By chance "a" looks as good as "b" (0.25 and 0.3); the best leaf is "bab"."""


class Found:
    """What a search of one task yields."""

    def __init__(self, found: list[Trajectory | Node]) -> None:
        self.runs = [each for each in found if isinstance(each, Trajectory)]
        self.nodes = [each for each in found if isinstance(each, Node)]
        self.root = self.nodes[0]
        self.places = {node.node_id: str(node.state_digest).removeprefix("at-") for node in self.nodes}
        self.by_place = {self.places[node.node_id]: node for node in self.nodes}

    def q(self, place: str) -> float:
        q = self.by_place[place].q
        assert q is not None
        return q

    def children(self, node: Node) -> list[Node]:
        return [each for each in self.nodes if each.parent_id == node.node_id]


def exploration(task: Task, seed: int = 3, **policies: Any) -> Exploration:
    return Exploration(task=task, spec=SPEC, make_environment=DecisionEnvironment, policies=policies, seed=seed)


async def search(
    task: Task, actor: Any = None, critic: Any = None, seed: int = 3, scorer: Any = None, **parameters: Any
) -> Found:
    helpers = {"critic": critic, "scorer": scorer}
    policies = {"actor": actor or Chooser(), **{role: policy for role, policy in helpers.items() if policy}}
    strategy, explored = TreeSearch(**parameters), exploration(task, seed, **policies)
    [piece] = strategy.planned(explored)
    return Found([each async for each in strategy.explore(explored, piece)])


def moves(run: Trajectory) -> str:
    """The path of a run, what it copied in capitals."""
    return "".join(
        item.content.upper() if item.context_operation else item.content
        for item in run.content
        if isinstance(item, MessageAction)
    )


# --- Monte-Carlo tree search -------------------------------------------------------------------------------------
