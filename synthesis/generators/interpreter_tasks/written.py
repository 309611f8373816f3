"""Interpreter environments whose author wrote tasks as well: functions with examples of what they give, data, and
tasks.

``spec.parameters`` holds these with ``rules``; ``spec.source`` is the Python that defines the functions.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.schemas.records.trajectory import ApiAction
from agentmill.synthesis.generators.pddl_tasks.difficulty import difficulty_of

SPARE_TURNS = 6


class Example(Record):
    """What a function gives for arguments."""

    arguments: JsonObject
    value: Any


class Function(Record):
    """A function of the environment as the agent reads of it."""

    name: str
    description: str
    examples: list[Example]


class Draft(Record):
    """A task: cells that solve it, and the goal as in ``Task.goal``."""

    instruction: str
    solution: list[str]
    goal: JsonObject


class Written(Record):
    """The author's description of an environment; ``data`` are JSON values by the names that the source uses."""

    functions: list[Function]
    data: JsonObject
    tasks: list[Draft]

    def task(self, number: int, spec: EnvironmentSpec) -> Task:
        """The draft of that number, from 0, as a task of ``spec``."""
        draft = self.tasks[number]
        return Task(
            task_id=digest("propose", spec.environment_id, number),
            environment_id=spec.environment_id,
            instruction=draft.instruction,
            initial_state={"names": self.data},
            goal=draft.goal,
            gold=[ApiAction(function="python", kwargs={"code": code}) for code in draft.solution],
            difficulty=difficulty_of(len(draft.solution), None),
            max_turns=2 * len(draft.solution) + SPARE_TURNS,
            structure_digest=digest(spec.environment_id, draft.instruction),
            lineage=Lineage(operator="propose", notes={"draft": number}),
        )


def is_written(spec: EnvironmentSpec) -> bool:
    """Whether the environment has tasks of its author's."""
    return "tasks" in spec.parameters


def written_of(spec: EnvironmentSpec) -> Written:
    """Raises ``ValueError`` for an environment whose parameters say it otherwise."""
    parts = {name: part for name, part in spec.parameters.items() if name != "rules"}
    return msgspec.convert(parts, Written)
