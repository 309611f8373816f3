"""The states around an initial state, in the order of their distance: where goals of a wanted length are found."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from agentmill.synthesis.environments.pddl.domain import Atom
from agentmill.synthesis.environments.pddl.grounding import Grounded, bits

MAX_STATES = 3_000


class Neighbourhood(msgspec.Struct, frozen=True):
    """States in breadth-first order with their distances from the first; complete up to ``depths[-1] - 1``."""

    grounded: Grounded
    states: list[int]
    depths: list[int]

    def at(self, depth: int) -> list[int]:
        """The states at ``depth``, or at the greatest depth where that is less."""
        wanted = min(depth, self.depths[-1])
        return [state for state, found in zip(self.states, self.depths, strict=True) if found == wanted]

    def distance(self, needs: int, forbids: int = 0) -> int | None:
        """How far the nearest state is in which ``needs`` hold and ``forbids`` do not; ``None`` if none is here."""
        pairs = zip(self.states, self.depths, strict=True)
        return next((depth for state, depth in pairs if state & (needs | forbids) == needs), None)


def explore(grounded: Grounded, max_depth: int, max_states: int = MAX_STATES) -> Neighbourhood:
    """All states within ``max_depth`` actions of the initial one, or the ``max_states`` nearest."""
    depths = {grounded.init: 0}
    queue = [grounded.init]
    for state in queue:
        depth = depths[state] + 1
        if depth > max_depth or len(queue) >= max_states:
            break
        for action in grounded.applicable(state):
            child = grounded.apply(state, action)
            if child not in depths:
                depths[child] = depth
                queue.append(child)
    return Neighbourhood(grounded, queue, list(depths.values()))


def goal_atoms(
    grounded: Grounded, state: int, weights: Mapping[str, float], number: int, chance: random.Random
) -> list[Atom]:
    """Up to ``number`` atoms that hold in ``state`` but not initially, drawn by the weights of their predicates."""
    new = [grounded.atoms[bit] for bit in bits(state & ~grounded.init)]
    # Weighted draw without replacement (Efraimidis and Spirakis, 2006).
    keyed = [(chance.random() ** (1.0 / weights[atom[0]]), atom) for atom in new if weights.get(atom[0], 0.0) > 0]
    chosen = {atom for _, atom in sorted(keyed, reverse=True)[:number]}
    return [atom for atom in new if atom in chosen]


def mask(grounded: Grounded, atoms: list[Atom]) -> int:
    """The atoms as a set of bits."""
    return sum(1 << grounded.index[atom] for atom in atoms)
