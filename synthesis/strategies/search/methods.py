"""The orders in which a tree is searched. Each says why it stopped; ``BudgetSpent`` passes through.

``mcts``: Monte-Carlo tree search as in Agent Q (arXiv:2408.07199) and R-MCTS (arXiv:2410.02052). ``best_first``: after
Koh et al., "Tree search for language model agents" (arXiv:2407.01476). ``beam``: turn by turn; with a width of 1 it is
the best of n at each step.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from agentmill.synthesis.strategies.search.search import Search
from agentmill.synthesis.strategies.search.tree import SearchNode, SelectionName, select

ITERATIONS, EXHAUSTED, SOLVED = "iterations", "exhausted", "solved"


async def mcts(search: Search, iterations: int, rule: SelectionName, c: float) -> str:
    """In each iteration: go down to a node that is not expanded, expand it if it has a value, evaluate, back up."""
    for _ in range(iterations):
        node = search.root
        while node.expanded and not node.ended:
            node = select(node, rule, c)
            # Nothing is backed up from there, so it would be the least tried for ever.
            node.entered += node.unscored and not node.visits
        if (node.visits or node.unscored) and not node.ended and await search.expand(node):
            node = select(node, rule, c)
        if node.visits:
            node.backup(search.worth(node))
        else:
            await search.evaluate([node])
        if search.satisfied:
            return SOLVED
    return ITERATIONS


async def best_first(search: Search, iterations: int) -> str:
    """In each iteration: expand the node with the highest value, of equals the one that was made first."""
    frontier: list[tuple[float, int, SearchNode]] = []
    new: Sequence[SearchNode] = [search.root]
    for iteration in range(iterations + 1):
        await search.evaluate(new)
        if search.satisfied:
            return SOLVED
        for node in new:
            if not node.ended:
                # The number decides between equals: nodes cannot be compared, and ties must not depend on chance.
                heapq.heappush(frontier, (-value(node), node.number, node))
        if not frontier:
            return EXHAUSTED
        if iteration < iterations:
            _, _, best = heapq.heappop(frontier)
            new = await search.expand(best)
    return ITERATIONS


async def beam(search: Search, width: int) -> str:
    """Turn by turn: expand all nodes of the beam, and let the ``width`` best of their children be the next one.

    A run that ends takes its place in the beam with it.
    """
    nodes = [search.root]
    while nodes:
        candidates: list[SearchNode] = []
        for node in nodes:
            candidates += await search.expand(node)
        await search.evaluate(candidates)
        if search.satisfied:
            return SOLVED
        candidates.sort(key=lambda node: (-value(node), node.number))
        nodes = [node for node in candidates[:width] if not node.ended]
    return EXHAUSTED


def value(node: SearchNode) -> float:
    """What a node was found to be worth itself, whatever was found below it; without a score, as much as its parent."""
    scored = (each.estimate for each in node.path() if each.estimate is not None)
    return next(scored, 0.0)
