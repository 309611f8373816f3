"""One planning environment as the task generator sees it: how problems are sampled, goals chosen and tasks written
down.

Goals of a wanted length are found among the states around an initial one, in the order of their distance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.pddl.domain import Atom, Domain, Literal, Problem
from agentmill.synthesis.environments.pddl.grounding import Grounded, bits, ground
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from agentmill.synthesis.environments.pddl.reader import read_domain
from agentmill.synthesis.environments.pddl.structure import task_structure
from agentmill.synthesis.environments.pddl.wording import Wording
from agentmill.synthesis.environments.pddl.writer import problem_text
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of, gold_actions
from agentmill.synthesis.generators.pddl_tasks.scheme import EXAMPLE_DETOUR, ProblemScheme, scheme_of

MAX_STATES = 3_000
GOAL_SIZES = (1, 2, 3)
GOAL_SIZE_WEIGHTS = (3, 5, 2)
GOAL_DRAWS = 8

SPARE_TURNS = 4
"""An agent may take twice the plan's length and this many turns more."""


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
    # The queue grows while it is walked through, which makes the search breadth-first.
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
    # In the order of declaration, so that the instruction does not depend on the order of the draw.
    return [atom for atom in new if atom in chosen]


def mask(grounded: Grounded, atoms: list[Atom]) -> int:
    """The atoms as a set of bits."""
    return sum(1 << grounded.index[atom] for atom in atoms)


class PlanningEnvironment(msgspec.Struct, frozen=True):
    """A spec of family ``pddl``, read."""

    spec: EnvironmentSpec
    domain: Domain
    scheme: ProblemScheme
    wording: Wording

    def sample(self, chance: random.Random, least: Mapping[str, int] | None = None) -> tuple[Problem, Grounded]:
        """A problem without a goal. Raises ``Unsamplable`` or ``PddlError``.

        From an example the initial state is what a few random steps make of the example's.
        """
        problem = self.scheme.sample(self.domain, chance, least)
        grounded = ground(self.domain, problem)
        if self.scheme.example is None:
            return problem, grounded
        state = grounded.init
        for _ in range(chance.randrange(EXAMPLE_DETOUR)):
            applicable = grounded.applicable(state)
            if applicable:
                state = grounded.apply(state, chance.choice(applicable))
        # Grounded again below: another start reaches other atoms and actions.
        problem = starting_at(problem, grounded, state)
        return problem, ground(self.domain, problem)

    def draw_goal(
        self, near: Neighbourhood, length: int, least: int, size: int | None, chance: random.Random
    ) -> list[Atom] | None:
        """Atoms whose nearest state is ``length`` actions away or, failing that, at least ``least`` and at most
        ``length``; ``None`` where no draw gave any."""
        best: list[Atom] = []
        best_distance = 0
        states = near.at(length)
        for _ in range(GOAL_DRAWS):
            number = size or chance.choices(GOAL_SIZES, GOAL_SIZE_WEIGHTS)[0]
            weights = self.scheme.weights(self.domain)
            atoms = goal_atoms(near.grounded, chance.choice(states), weights, number, chance)
            distance = near.distance(mask(near.grounded, atoms)) or 0
            if best_distance < distance <= length:
                best, best_distance = atoms, distance
            if best_distance == length:
                break
        return best if best_distance >= least else None

    def task(self, task_id: str, problem: Problem, limits: PlanLimits, lineage: Lineage) -> Task | None:
        """The task of ``problem``, with instruction, gold plan, difficulty and digest; ``None`` without a plan."""
        grounded = ground(self.domain, problem)
        found = plan(grounded, limits)
        # Also an empty plan, since a task that is solved at its start is none.
        if not found.plan:
            return None
        notes = self.spec.lineage.notes if self.spec.lineage else {}
        return Task(
            task_id=task_id,
            environment_id=self.spec.environment_id,
            instruction=self.wording.goal(problem),
            initial_state={"problem": problem_text(problem)},
            gold=gold_actions(self.domain, grounded, found.plan),
            difficulty=difficulty_of(len(found.plan), found.expansions),
            skills=list(notes.get("parts", [])),
            max_turns=2 * len(found.plan) + SPARE_TURNS,
            structure_digest=task_structure(self.domain, problem),
            lineage=lineage,
        )


def read_environment(spec: EnvironmentSpec) -> PlanningEnvironment:
    """Raises ``PddlError`` for a domain or a scheme, ``ValueError`` for a wording that cannot be used."""
    domain = read_domain(spec.source)
    return PlanningEnvironment(spec, domain, scheme_of(spec.parameters), Wording(domain, spec.parameters))


def aiming_at(problem: Problem, atoms: list[Atom]) -> Problem:
    """``problem`` with the goal that all ``atoms`` hold."""
    return msgspec.structs.replace(problem, goal=tuple(Literal(atom[0], atom[1:]) for atom in atoms))


def starting_at(problem: Problem, grounded: Grounded, state: int) -> Problem:
    """``problem`` with ``state`` as its initial state, facts in their old order as far as they still hold."""
    held = {grounded.atoms[bit]: None for bit in bits(state)}
    kept = [atom for atom in problem.init if atom in grounded.static or atom in held]
    return msgspec.structs.replace(problem, init=tuple(dict.fromkeys([*kept, *held])))
