"""Planning tasks in a sequence: the goals of the later ones are reached from the state where the earlier ones end.

The whole begins as its first part, and in its end the goals of all parts must hold.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence

import msgspec

from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import AnyAction
from agentmill.synthesis.environments.pddl.domain import Literal, PddlError, Problem
from agentmill.synthesis.environments.pddl.grounding import ground
from agentmill.synthesis.environments.pddl.planner import plan
from agentmill.synthesis.environments.pddl.reader import read_domain, read_problem
from agentmill.synthesis.environments.pddl.structure import task_structure
from agentmill.synthesis.environments.pddl.wording import Wording
from agentmill.synthesis.environments.pddl.writer import problem_text
from agentmill.synthesis.generators.admission import TASK_LIMITS
from agentmill.synthesis.generators.composition import Draft, How
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.generators.pddl_tasks.difficulty import gold_actions
from agentmill.synthesis.generators.pddl_tasks.planning_environment import starting_at


class PddlComposer:
    """As ``Composer``, for family ``pddl``. Raises ``ValueError`` for a domain or a wording that cannot be used."""

    def __init__(self, spec: EnvironmentSpec, tasks: Sequence[Task]) -> None:
        try:
            self._domain = read_domain(spec.source)
        except PddlError as error:
            raise ValueError(str(error)) from error
        self._wording = Wording(self._domain, spec.parameters)
        self._tasks = tasks
        self._problems: dict[str, Problem] = {}
        for task in tasks:
            with contextlib.suppress(PddlError):
                self._problems[task.task_id] = read_problem(str(task.initial_state.get("problem")), self._domain)

    def unfit(self, task: Task) -> str | None:
        """A task whose problem cannot be read is no part."""
        return None if task.task_id in self._problems else "broken_problem"

    def next_parts(self, how: How, chosen: Sequence[Task]) -> Sequence[Task]:
        """Any: whether goals go together is seen when they are planned for."""
        del how, chosen
        return self._tasks

    def compose(self, how: How, parts: Sequence[Task], chance: random.Random) -> Draft:
        """One problem. Raises ``GenerationError`` for goals about objects that the first part does not have
        (``other_objects``), that hold already (``nothing_left``), that cannot be reached while the earlier ones are
        kept (``undone``), or not within the limits (``planner_limit``)."""
        del how, chance
        domain, first = self._domain, self._problems[parts[0].task_id]
        here, goal, gold = first, tuple[Literal, ...](), list[AnyAction]()
        for part in parts:
            added = self._problems[part.task_id]
            _check_objects(added, first)
            goal = tuple(dict.fromkeys([*goal, *added.goal]))
            here = msgspec.structs.replace(here, goal=goal)
            try:
                grounded = ground(domain, here)
            except PddlError as error:
                raise GenerationError("broken_problem", str(error)) from error
            found = plan(grounded, TASK_LIMITS)
            if found.plan is None:
                raise GenerationError("undone" if found.exhausted else "planner_limit", f"at part {part.task_id}")
            if not found.plan:
                raise GenerationError("nothing_left", f"what part {part.task_id} asks for is the case already")
            gold += gold_actions(domain, grounded, found.plan)
            state = grounded.init
            for number in found.plan:
                state = grounded.apply(state, number)
            here = starting_at(here, grounded, state)
        whole = msgspec.structs.replace(first, goal=goal)
        return Draft(
            instruction=self._wording.goal(whole),
            initial_state={"problem": problem_text(whole)},
            goal={},
            gold=gold,
            structure=task_structure(domain, whole),
        )

    def close(self) -> None:
        """Nothing is held."""


def _check_objects(part: Problem, whole: Problem) -> None:
    """Raises ``GenerationError`` where the goal of a part is about objects that the whole does not have."""
    types = {item.name: item.type for item in part.objects}
    held = {item.name: item.type for item in whole.objects}
    missing = [name for each in part.goal for name in each.arguments if types.get(name) != held.get(name)]
    if missing:
        raise GenerationError("other_objects", f"the first part has no {missing[0]} of this kind")
