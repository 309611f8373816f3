"""Tasks that a model writes for an environment, from seeds: earlier tasks, trajectories with their verdicts, or texts.

After AgentGen (arXiv:2408.00764), PAE (arXiv:2412.13194: personas), WebRL (arXiv:2411.02337: tasks from failures) and
DataEnvGym (arXiv:2410.06215: weak skills). What is written is judged as ``admit`` judges it; faults are fed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from string import Template
from typing import Protocol

import msgspec

from agentmill.schemas.ids import digest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import EnvironmentSpec, Lineage, Task
from agentmill.synthesis.generators.admission import AdmissionLimits, admit_task, rejection, task_digest
from agentmill.synthesis.generators.author import BACKEND, NO_OBJECT, RepairLoop, fault_text, read_object
from agentmill.synthesis.generators.generator import GenerationError
from agentmill.synthesis.policies.policy import Policy
from agentmill.synthesis.prompts import prompt
from agentmill.synthesis.rollouts.delimiting import between

OPERATOR = "propose"


class Unwritten(Exception):
    """What a model wrote is no task; the message is for its author."""


class TaskForm(Protocol):
    """How tasks of one family are written. Raises ``EnvError`` or ``ValueError`` for a broken environment."""

    instructions: str
    """What the JSON object of a task holds, for its author."""

    answer_schema: JsonObject
    """The JSON Schema of that object."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """The form of tasks of ``spec``."""

    def shown(self) -> str:
        """The environment, as its author sees it."""

    def task(self, written: JsonObject, task_id: str, lineage: Lineage) -> Task:
        """The task, not judged yet. Raises ``Unwritten``."""

    def structure(self, task: Task) -> str | None:
        """What ``structure_digest`` of a task that is shown would be, had it been written in this form."""


class TaskSeed(msgspec.Struct, frozen=True, kw_only=True):
    """Material for a task: ``lines`` are JSON objects. A ``task`` must not come again."""

    seed_id: str
    lines: list[JsonObject]
    task: Task | None = None


class TaskBrief(msgspec.Struct, frozen=True, kw_only=True):
    """What one task is made from: material, a persona that asks, and skills that agents lack."""

    seeds: Sequence[TaskSeed] = ()
    persona: str | None = None
    weak: Sequence[str] = ()

    @property
    def wishes(self) -> str:
        """The persona and the skills as sentences for the author."""
        lines = [f"The task is one that this person would have: {self.persona}"] if self.persona else []
        lines += [f"Agents often fail where these skills are needed: {', '.join(self.weak)}."] if self.weak else []
        return "".join(f"{line}\n" for line in lines)

    @property
    def seed_lines(self) -> str:
        """The seeds between delimiters."""
        lines = [line for seed in self.seeds for line in seed.lines]
        return f"\n{between(lines)}\n" if lines else ""


class TaskAuthor:
    """Writes tasks of one environment with ``policy``, with at most ``repairs`` rounds of repair per task.

    Solutions have ``plan_length`` = (least, most) actions.
    """

    def __init__(
        self,
        policy: Policy,
        form: type[TaskForm],
        plan_length: tuple[int, int] = (2, 8),
        repairs: int = 3,
        limits: AdmissionLimits = AdmissionLimits(),
    ) -> None:
        self._policy = policy
        self._form = form
        self._plan_length = plan_length
        self._loop = RepairLoop(policy, prompt("task_system"), prompt("object_repair"), repairs, form.answer_schema)
        self._limits = limits

    async def write(self, spec: EnvironmentSpec, brief: TaskBrief, seed: int) -> Task:
        """A task that is admitted. Raises ``GenerationError`` with all versions and their faults as ``history``, and
        passes on ``PolicyError`` and the ``EnvError`` of a broken environment."""
        try:
            form = self._form(spec)
        except ValueError as error:
            raise GenerationError("broken_environment", str(error)) from error
        who = (self._policy.name, self._policy.model, self._policy.revision)
        task_id = digest(OPERATOR, BACKEND, *who, spec.environment_id, seed)
        least, most = self._plan_length
        request = Template(prompt("task_request")).substitute(
            environment=form.shown(),
            form=form.instructions,
            least=least,
            most=most,
            wishes=brief.wishes,
            material=brief.seed_lines,
        )

        def read(text: str, repairs: int) -> tuple[Task | None, str]:
            try:
                draft = form.task(json_object(text), task_id, self._lineage(brief, seed, repairs))
            except Unwritten as error:
                return None, f"- {error}"
            task, fault = self._judged(draft, spec)
            known = {form.structure(each.task) for each in brief.seeds if each.task is not None} - {None}
            if task is not None and task.structure_digest in known:
                return None, "- this is a task that you were shown, only its names differ; write another one"
            return task, fault

        return await self._loop.write(request, task_id, seed, read)

    def _lineage(self, brief: TaskBrief, seed: int, repairs: int) -> Lineage:
        given = {"persona": brief.persona, "weak": list(brief.weak)}
        notes = {"backend": BACKEND, "model": self._policy.model, "repairs": repairs}
        return Lineage(
            operator=OPERATOR,
            parents=[each.seed_id for each in brief.seeds],
            seed=seed,
            notes={**notes, **{name: value for name, value in given.items() if value}},
        )

    def _judged(self, draft: Task, spec: EnvironmentSpec) -> tuple[Task | None, str]:
        """The task with its gold and its structure, or the first fault that admission finds."""
        report, gold, difficulty = admit_task(draft, spec, self._limits)
        failed = rejection(report)
        if failed is not None:
            return None, fault_text(failed)
        least, most = self._plan_length
        if gold is not None and not least <= len(gold) <= most:
            return None, f"- the solution takes {len(gold)} actions; expected {least} to {most}"
        task = msgspec.structs.replace(draft, gold=gold, difficulty=difficulty)
        return msgspec.structs.replace(task, structure_digest=task_digest(task, spec)), ""


def json_object(text: str) -> JsonObject:
    """The JSON object in an answer. Raises ``Unwritten``."""
    found = read_object(text)
    if found is None:
        raise Unwritten(NO_OBJECT)
    decoded: JsonObject = msgspec.json.decode(found)
    return decoded
