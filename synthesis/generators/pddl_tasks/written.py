"""Planning tasks as a model writes them: a PDDL problem. The instruction is worded from its goal."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.environments.pddl.domain import PddlError
from agentmill.synthesis.environments.pddl.grounding import ground
from agentmill.synthesis.environments.pddl.reader import read_problem
from agentmill.synthesis.generators.admission import TASK_LIMITS, task_digest
from agentmill.synthesis.generators.pddl_tasks.planning_environment import read_environment
from agentmill.synthesis.generators.task_author import Unwritten
from agentmill.synthesis.prompts import prompt


class Written(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON object of a task."""

    problem: str


class PddlTaskForm:
    """Raises ``ValueError`` for a domain, a scheme or a wording that cannot be used."""

    instructions: ClassVar[str] = prompt("task_pddl")
    answer_schema: ClassVar[JsonObject] = msgspec.json.schema_components([Written])[1]["Written"]

    def __init__(self, spec: EnvironmentSpec) -> None:
        try:
            self._environment = read_environment(spec)
        except PddlError as error:
            raise ValueError(str(error)) from error

    def shown(self) -> str:
        """The domain, and its example problem where it has one."""
        example = self._environment.scheme.example
        return "\n\n".join([self._environment.spec.source, *([example] if example else [])])

    def task(self, written: JsonObject, task_id: str, lineage: Lineage) -> Task:
        """The task with the planner's solution."""
        try:
            problem = read_problem(msgspec.convert(written, Written).problem, self._environment.domain)
            grounded = ground(self._environment.domain, problem)
            if grounded.is_goal(grounded.init):
                raise Unwritten("solved at start: the goal holds before anything is done")
            task = self._environment.task(task_id, problem, TASK_LIMITS, lineage)
        except (msgspec.ValidationError, PddlError) as error:
            raise Unwritten(str(error)) from error
        if task is None:
            raise Unwritten("unsolvable: the planner finds no plan that reaches the goal")
        return task

    def structure(self, task: Task) -> str | None:
        """As ``TaskForm.structure``: the same whoever wrote the problem."""
        return task_digest(task, self._environment.spec)
