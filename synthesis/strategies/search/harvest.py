"""What is left of a search: its runs as trajectories that share their beginnings, and its nodes with their statistics.

The best run through a turn owns it; in all others it is marked as copied, so that views train on it once, and whoever
drops what failed loses nothing that led to a success.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Literal

import msgspec

from schemas.ids import part_id
from schemas.record import JsonObject
from schemas.trajectory import Trajectory, Usage
from schemas.verdict import Node
from synthesis.strategies.asking import total
from synthesis.strategies.branch import history
from synthesis.strategies.search.search import Search
from synthesis.strategies.search.tree import SearchNode

LeafName = Literal["ended", "all"]


def harvest(search: Search, leaves: LeafName, about: JsonObject) -> Iterator[Trajectory | Node]:
    """The runs that ended, or all of them, successes first and the better before the worse; then all nodes.

    ``about`` is what is said of the whole tree; it stands in ``extra`` of the root.
    """
    owners: dict[int, Trajectory] = {}
    wanted = [
        node
        for node in search.nodes
        if not node.children and (node.ended or (leaves == "all" and node.parent is not None))
    ]
    wanted.sort(key=lambda leaf: (not search.checked(leaf).passed, -search.worth(leaf), leaf.number))
    for attempt, leaf in enumerate(wanted):
        run = _run(search, leaf, attempt, owners)
        owners |= {node.number: run for node in leaf.path() if node.number not in owners}
        yield run
    for node in search.nodes:
        yield _record(node, owners.get(node.number), about if node.parent is None else {})


def _run(search: Search, leaf: SearchNode, attempt: int, owners: dict[int, Trajectory]) -> Trajectory:
    """The run that ends in a leaf, with what it shares with the run it branches off from marked as copied."""
    own = [node for node in leaf.path() if node.number not in owners]
    reason = leaf.reason if leaf.ended else "search_ended"
    lived = leaf.episode.trajectory(reason, search.checked(leaf))
    run = msgspec.structs.replace(
        lived,
        trajectory_id=part_id(lived.trajectory_id, str(attempt)),
        attempt=attempt,
        usage=functools.reduce(total, (node.episode.usage for node in own), Usage()),
    )
    fork = own[-1].parent
    if fork is None:
        return run
    branch_turn = fork.episode.turn + 1
    copied = history(lived, branch_turn)
    return msgspec.structs.replace(
        run,
        parent_id=owners[fork.number].trajectory_id,
        branch_turn=branch_turn,
        content=[*copied, *lived.content[len(copied) :]],
    )


def _record(node: SearchNode, owner: Trajectory | None, about: JsonObject) -> Node:
    tree_id = node.episode.plan.trajectory_id
    said = {
        "draws": node.draws or None,
        "estimate": node.estimate,
        "reason": node.reason,
        "unscored": node.unscored or None,
    }
    return Node(
        node_id=_node_id(tree_id, node),
        tree_id=tree_id,
        parent_id=None if node.parent is None else _node_id(tree_id, node.parent),
        trajectory_id=None if owner is None else owner.trajectory_id,
        turn=node.episode.turn,
        visits=node.visits,
        q=node.q,
        prior=node.prior,
        state_digest=node.state_digest,
        terminal=node.ended,
        extra={**{name: value for name, value in said.items() if value is not None}, **about},
    )


def _node_id(tree_id: str, node: SearchNode) -> str:
    """Sorted by id, the nodes of a tree stand in the order they were made."""
    return f"{tree_id}-{node.number:06d}"
