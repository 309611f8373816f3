"""The additive heuristic: the sum of what each goal literal would cost if literals could be reached independently.

h_add of Bonet and Geffner, "Planning as heuristic search" (2001), over literals: bit ``2 * i`` stands for atom i being
true and ``2 * i + 1`` for its being false, so that negative preconditions and goals count too.
"""

from __future__ import annotations

import heapq

from agentmill.synthesis.environments.pddl.grounding import Grounded, bits


class AdditiveHeuristic:
    """Callable on states of one grounded problem."""

    def __init__(self, grounded: Grounded) -> None:
        self._n_atoms = len(grounded.atoms)
        self._goal = _literals(grounded.goal_needs, grounded.goal_forbids)
        self._gains = [_literals(action.adds, action.deletes) for action in grounded.actions]
        self._n_needs = [len(_literals(action.needs, action.forbids)) for action in grounded.actions]
        self._needed_by: list[list[int]] = [[] for _ in range(2 * self._n_atoms)]
        self._free = [number for number, n_needs in enumerate(self._n_needs) if n_needs == 0]
        for number, action in enumerate(grounded.actions):
            for literal in _literals(action.needs, action.forbids):
                self._needed_by[literal].append(number)

    def __call__(self, state: int) -> int | None:
        """The estimated number of actions to the goal, or ``None``: the goal cannot be reached."""
        costs: list[int | None] = [None] * (2 * self._n_atoms)
        queue = [(0, 2 * atom if state >> atom & 1 else 2 * atom + 1) for atom in range(self._n_atoms)]
        for _, literal in queue:
            costs[literal] = 0
        missing = self._n_needs.copy()
        action_costs = [1] * len(missing)
        for number in self._free:
            self._reach(number, 1, costs, queue)
        # Only now: before, everything in the queue costs 0 or 1, and the pushes need no order yet.
        heapq.heapify(queue)
        open_goals = set(self._goal)
        while queue and open_goals:
            cost, literal = heapq.heappop(queue)
            # A cheaper way was found after this entry was queued.
            if cost != costs[literal]:
                continue
            open_goals.discard(literal)
            for number in self._needed_by[literal]:
                missing[number] -= 1
                action_costs[number] += cost
                if not missing[number]:
                    self._reach(number, action_costs[number], costs, queue)
        return None if open_goals else sum(costs[literal] or 0 for literal in self._goal)

    def _reach(self, number: int, cost: int, costs: list[int | None], queue: list[tuple[int, int]]) -> None:
        for literal in self._gains[number]:
            known = costs[literal]
            if known is None or cost < known:
                costs[literal] = cost
                heapq.heappush(queue, (cost, literal))


def _literals(positive: int, negative: int) -> list[int]:
    return [2 * bit for bit in bits(positive)] + [2 * bit + 1 for bit in bits(negative)]
