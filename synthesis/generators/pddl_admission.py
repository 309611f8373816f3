"""Checks of planning environments and tasks: is the domain sound, is its wording, can its tasks be solved."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agentmill.schemas.ids import derive_seed
from agentmill.schemas.records.task import AdmissionCheck, EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.pddl.domain import Domain, PddlError, Problem
from agentmill.synthesis.environments.pddl.grounding import Grounded, ground
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.wording import Call, Misunderstood, Wording
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of, gold_actions
from agentmill.synthesis.generators.pddl_tasks.planning_environment import (
    Neighbourhood,
    PlanningEnvironment,
    aiming_at,
    explore,
)
from agentmill.synthesis.generators.pddl_tasks.scheme import scheme_of
from agentmill.synthesis.generators.pddl_tasks.start import Unsamplable
from agentmill.synthesis.generators.trial import Solution, try_task

PROBE_DEPTH = 30
PROBE_GOAL_LENGTH = 4
MAX_DEFECTS = 3
WALKS = 30
WALK_LENGTH = 60


def environment_checks(
    spec: EnvironmentSpec, limits: PlanLimits, probes: int, probe_states: int
) -> Iterator[AdmissionCheck]:
    """The checks of ``admit_environment``, in order; what follows a failed one must not be asked for."""
    try:
        domain = read_domain(spec.source)
    except PddlError as error:
        yield _failed("syntax", error)
        return
    yield _passed("syntax")
    try:
        wording = Wording(domain, spec.parameters)
    except ValueError as error:
        yield _failed("wording", error)
        return
    yield _passed("wording")
    yield _judged("unused_predicate", _unused_predicates(domain))
    try:
        environment = PlanningEnvironment(spec, domain, scheme_of(spec.parameters), wording)
        samples = [environment.sample(random.Random(derive_seed("probe", number))) for number in range(probes)]
    except (PddlError, Unsamplable) as error:
        yield _failed("no_probe", error)
        return
    yield _passed("no_probe")
    yield _judged("ambiguous_text", (x for problem, grounded in samples for x in _ambiguities(wording, grounded)))
    near = [explore(grounded, PROBE_DEPTH, probe_states) for _, grounded in samples]
    yield _judged("noop_action", (x for part in near for x in _noops(part)))
    yield _judged("unreachable_action", _never_applied(domain, near))
    yield _solvable_probe(environment, [problem for problem, _ in samples], near, limits)


def task_checks(task: Task, spec: EnvironmentSpec, limits: PlanLimits, solution: Solution) -> Iterator[AdmissionCheck]:
    """The checks of ``admit_task`` that are the planner's business; completes ``solution``."""
    try:
        domain = read_domain(spec.source)
        problem = read_problem(str(task.initial_state.get("problem")), domain)
    except PddlError as error:
        yield _failed("syntax", error)
        return
    yield _passed("syntax")
    try:
        grounded = ground(domain, problem)
    except PddlError as error:
        yield _failed("grounding", error)
        return
    yield _passed("grounding")
    yield AdmissionCheck(name="solved_at_start", passed=not grounded.is_goal(grounded.init))
    found = plan(grounded, limits)
    yield AdmissionCheck(name="unsolvable", passed=not found.exhausted, detail=f"{found.expansions} states expanded")
    # A gold that was given is played next, whatever the planner finds in its limits.
    known = found.plan is not None or solution.gold is not None
    yield AdmissionCheck(name="planner_limit", passed=known, detail=f"{found.expansions} states expanded")
    if found.plan is not None:
        solution.gold = solution.gold or gold_actions(domain, grounded, found.plan)
        solution.difficulty = difficulty_of(len(found.plan), found.expansions)


def _unused_predicates(domain: Domain) -> list[str]:
    used = {literal.predicate for action in domain.actions for literal in (*action.precondition, *action.effect)}
    return [predicate.name for predicate in domain.predicates if predicate.name not in used]


def _ambiguities(wording: Wording, grounded: Grounded) -> Iterator[str]:
    """Commands that do not read back to their action alone, and facts that are worded alike."""
    for action in grounded.actions:
        call = Call(action.name, action.arguments)
        command = wording.command(call)
        try:
            meant = wording.read(command)
        except Misunderstood:
            meant = []
        # A list of one: a command that also fits another action is ambiguous.
        if meant != [call]:
            yield f"the command {command!r} means {', '.join(other.action for other in meant) or 'nothing'}"
    unique = Counter(wording.sentence(atom) for atom in (*grounded.atoms, *sorted(grounded.static)))
    yield from (f"two facts read {sentence!r}" for sentence, count in unique.items() if count > 1)


def _noops(near: Neighbourhood) -> Iterator[str]:
    """Legal actions that change nothing."""
    grounded = near.grounded
    for state in near.states:
        for number in grounded.applicable(state):
            if grounded.apply(state, number) == state:
                action = grounded.actions[number]
                yield f"{action.name} {' '.join(action.arguments)} can be done and changes nothing"


def _never_applied(domain: Domain, near: Sequence[Neighbourhood]) -> list[str]:
    """Actions not legal in any state visited; where the states could not all be visited, random walks look further."""
    missing = {action.name for action in domain.actions}
    for part in near:
        for state in part.states:
            missing -= {part.grounded.actions[number].name for number in part.grounded.applicable(state)}
            if not missing:
                return []
    for number, part in enumerate(near):
        missing -= set(_walked(part.grounded, random.Random(number)))
    return sorted(missing)


def _walked(grounded: Grounded, chance: random.Random) -> Iterable[str]:
    for _ in range(WALKS):
        state = grounded.init
        for _ in range(WALK_LENGTH):
            applicable = grounded.applicable(state)
            if not applicable:
                break
            yield from (grounded.actions[number].name for number in applicable)
            state = grounded.apply(state, chance.choice(applicable))


def _solvable_probe(
    environment: PlanningEnvironment, problems: list[Problem], near: Sequence[Neighbourhood], limits: PlanLimits
) -> AdmissionCheck:
    """Some sampled problem gets a goal, and the real environment accepts the planner's plan for it."""
    for number, (problem, part) in enumerate(zip(problems, near, strict=True)):
        atoms = environment.draw_goal(part, PROBE_GOAL_LENGTH, 1, None, random.Random(number))
        task = (
            environment.task("probe", aiming_at(problem, atoms), limits, Lineage(operator="probe")) if atoms else None
        )
        if task is not None:
            checks = list(try_task(task, environment.spec, Solution(task.gold, None)))
            wrong = next((check for check in checks if not check.passed), None)
            detail = f"{wrong.name}: {wrong.detail}" if wrong else f"solved in {len(task.gold or [])} actions"
            return AdmissionCheck(name="unsolvable_probe", passed=wrong is None, detail=detail)
    return AdmissionCheck(name="unsolvable_probe", passed=False, detail="no state has anything new to aim at")


def _passed(name: str) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=True)


def _failed(name: str, error: Exception) -> AdmissionCheck:
    return AdmissionCheck(name=name, passed=False, detail=str(error))


def _judged(name: str, defects: Iterable[str]) -> AdmissionCheck:
    """Failed with the first few different ones of ``defects``."""
    unique: dict[str, None] = {}
    for defect in defects:
        unique[defect] = None
        # The defects come lazily, and there may be thousands.
        if len(unique) == MAX_DEFECTS:
            break
    return AdmissionCheck(name=name, passed=not unique, detail="; ".join(unique))
