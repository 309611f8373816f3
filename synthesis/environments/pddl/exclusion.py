"""Which atoms can never hold together, so that a text need not deny what it already rules out.

Pairs by the fixed point of h^2 (Haslum and Geffner, "Admissible heuristics for optimal planning", 2000) over literals:
bit ``i`` stands for atom i being true, bit ``n_atoms + i`` for its being false, so that negative preconditions count.
What it finds is proven; it does not find every exclusion, and none in problems that are large.
"""

from __future__ import annotations

from agentmill.synthesis.environments.pddl.grounding import Grounded, bits

MOST_PAIRS = 3_000_000
"""Of an atom and an action. With more it would take more than some seconds, for texts that are a little shorter."""


def exclusions(grounded: Grounded) -> tuple[int, ...]:
    """For each atom the mask of the atoms that hold in no reachable state in which it holds."""
    n_atoms = len(grounded.atoms)
    if n_atoms * len(grounded.actions) > MOST_PAIRS:
        # All or nothing: before the fixed point is reached, pairs are left out that do hold together.
        return (0,) * n_atoms
    everything = (1 << n_atoms) - 1

    def literals(true: int, false: int) -> int:
        return true | false << n_atoms

    start = literals(grounded.init, everything & ~grounded.init)
    together = [start if start >> literal & 1 else 0 for literal in range(2 * n_atoms)]
    actions = [
        (literals(a.needs, a.forbids), literals(a.adds, a.deletes), literals(a.deletes, a.adds))
        for a in grounded.actions
    ]
    grown = True
    while grown:
        grown = sum(_spread(together, *action) for action in actions) > 0
    return tuple(everything & ~mask for mask in together[:n_atoms])


def _spread(together: list[int], needs: int, gains: int, losses: int) -> bool:
    """Let an action happen wherever what it needs can hold together; whether that brought a new pair."""
    others = (1 << len(together)) - 1
    for literal in bits(needs):
        others &= together[literal]
    if others & needs != needs:
        return False
    others = gains | (others & ~losses)
    grown = False
    for literal in bits(gains):
        new = others & ~together[literal]
        if new:
            grown = True
            together[literal] |= new
            for other in bits(new):
                together[other] |= 1 << literal
    return grown
