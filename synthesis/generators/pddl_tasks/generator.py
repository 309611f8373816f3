"""Tasks for planning environments, proposed and evolved without a model; every one is solvable by its making.

A problem is sampled by the environment's own rules or from its example, the states around it are listed by distance,
and the goal is a part of what is new in one of them, so that the plan's length is known before the task is made.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import msgspec

from agentmill.schemas.ids import derive_seed, digest
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.pddl.domain import PddlError
from agentmill.synthesis.environments.pddl.grounding import ground
from agentmill.synthesis.environments.pddl.planner import PlanLimits, plan
from agentmill.synthesis.environments.pddl.reader import read_problem
from agentmill.synthesis.generators.generator import (
    GenerationError,
    check_direction,
    different_tasks,
    is_on_side,
    plan_range,
)
from agentmill.synthesis.generators.pddl_tasks.evolution import METHODS, Parent
from agentmill.synthesis.generators.pddl_tasks.planning_environment import (
    PlanningEnvironment,
    aiming_at,
    explore,
    read_environment,
)
from agentmill.synthesis.generators.pddl_tasks.start import Unsamplable

TRIES = 8
"""How often a task is drawn anew before it is given up."""


class PddlTaskGenerator:
    """Proposes planning tasks whose plans are ``plan_length`` = (least, most) actions long, and evolves tasks."""

    def __init__(self, plan_length: tuple[int, int] = (2, 8), limits: PlanLimits = PlanLimits()) -> None:
        self._least, self._most = plan_range(plan_length)
        self._limits = limits

    async def propose(self, spec: EnvironmentSpec, n: int, seed: int) -> AsyncIterator[Task | GenerationError]:
        """``n`` tasks or failures, no two tasks of the same structure; one failure for a spec that cannot be read."""
        try:
            environment = read_environment(spec)
        except (PddlError, ValueError) as error:
            yield GenerationError("broken_environment", str(error))
            return
        seen: set[str | None] = set()

        def proposal(number: int) -> Task | GenerationError:
            return self._proposal(environment, derive_seed("propose", spec.environment_id, seed, number), seen)

        for each in different_tasks(proposal, n, f"a plan of {self._least} to {self._most} actions", TRIES):
            yield each

    async def evolve(
        self, spec: EnvironmentSpec, parent: Task, direction: str, n: int, seed: int
    ) -> AsyncIterator[Task | GenerationError]:
        """``n`` variants or failures; plans are shorter than the parent's, longer, or (``other``) as long."""
        check_direction("pddl", direction)
        try:
            environment = read_environment(spec)
            origin = self._origin(environment, parent)
        except (PddlError, ValueError) as error:
            yield GenerationError("broken_parent", str(error))
            return
        seen = {parent.structure_digest}
        for number in range(n):
            variant_seed = derive_seed("evolve", parent.task_id, direction, seed, number)
            yield self._variant(environment, origin, direction, variant_seed, seen)

    def _proposal(self, environment: PlanningEnvironment, seed: int, seen: set[str | None]) -> Task | GenerationError:
        task_id = digest("propose", environment.spec.environment_id, seed)
        for attempt in range(TRIES):
            chance = random.Random(derive_seed(seed, attempt))
            try:
                problem, grounded = environment.sample(chance)
            except (Unsamplable, PddlError):
                continue
            near = explore(grounded, self._most)
            atoms = environment.draw_goal(near, chance.randint(self._least, self._most), self._least, None, chance)
            if atoms:
                lineage = Lineage(operator="propose", seed=seed)
                task = environment.task(task_id, aiming_at(problem, atoms), self._limits, lineage)
                if task is not None and task.structure_digest not in seen:
                    seen.add(task.structure_digest)
                    return task
        wanted = f"a plan of {self._least} to {self._most} actions"
        return GenerationError("no_new_task", f"no new task with {wanted} in {TRIES} tries")

    def _origin(self, environment: PlanningEnvironment, task: Task) -> Parent:
        """Raises ``PddlError`` for a task that is broken or for which no plan is found within the limits."""
        problem = read_problem(str(task.initial_state.get("problem")), environment.domain)
        grounded = ground(environment.domain, problem)
        found = plan(grounded, self._limits).plan
        if found is None:
            raise PddlError(f"no plan found for task {task.task_id}")
        return Parent(task, problem, grounded, found)

    def _variant(
        self, environment: PlanningEnvironment, parent: Parent, direction: str, seed: int, seen: set[str | None]
    ) -> Task | GenerationError:
        """Methods take turns, in an order that the seed decides, until one gives a new task on the right side."""
        task_id = digest("evolve", parent.task.task_id, direction, seed)
        methods = random.Random(seed).sample(METHODS[direction], len(METHODS[direction]))
        for attempt in range(TRIES):
            method = methods[attempt % len(methods)]
            problem = method(environment, parent, random.Random(derive_seed(seed, attempt)))
            if problem is None:
                continue
            notes = {"direction": direction, "method": method.__name__}
            lineage = Lineage(operator="evolve", parents=[parent.task.task_id], seed=seed, notes=notes)
            task = environment.task(task_id, problem, self._limits, lineage)
            if (
                task is not None
                and is_on_side(len(task.gold or []), len(parent.plan), direction)
                and task.structure_digest not in seen
            ):
                seen.add(task.structure_digest)
                return msgspec.structs.replace(task, split=parent.task.split)
        detail = f"no new {direction} variant of a task of {len(parent.plan)} actions in {TRIES} tries"
        return GenerationError(f"no_{direction}_task", detail)
