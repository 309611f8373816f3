"""``admit``: what of the proposed environments or tasks stays. The rest is kept as dead letters with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, TypeVar

import msgspec
from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, UniqueOperation, Unit
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import (
    Inputs,
    Operator,
    StepContext,
    TableNames,
    expect,
    order_config,
    tables_of,
)
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.task import AdmissionReport, EnvironmentSpec, Task
from agentmill.schemas.records.verdict import Dropped
from agentmill.synthesis.environments.environment import EnvError
from agentmill.synthesis.generators.admission import (
    AdmissionLimits,
    admit_environment,
    admit_task,
    environment_digest,
    rejection,
    task_digest,
)


class Admit(Operator):
    """A gate for environments and tasks: sound, solvable, not solved by doing nothing, not a near-duplicate."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "synthesize"
    defaults_taken: ClassVar[Sequence[str]] = ("environments",)
    table_roles: ClassVar[Sequence[str]] = ("of", "environments")

    of: TableNames = Field(description="tables of proposed environments, or of proposed tasks")
    environments: TableNames | None = Field(default=None, description="tables of the environments of proposed tasks")
    max_expansions: int = Field(default=30_000, ge=1, description="states that the planner may expand per task")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """What it reads: environments or tasks."""
        record = expect(reads, "of", "EnvironmentSpec", "Task")
        if record == "Task" and not self.environments:
            raise UserError("admit needs `environments` to judge tasks", ErrorCode.NEEDS_ANOTHER_KEY)
        if record == "EnvironmentSpec" and self.environments:
            raise UserError(
                "admit takes no `environments` to judge environments; leave it out", ErrorCode.KEY_NOT_FOR_THIS
            )
        return record

    def tables_config(self, inputs: Inputs) -> JsonObject:
        """The order of the tables: of two near-duplicates the one of the earlier table stays."""
        return order_config(inputs["of"])

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The gate for what the tables of ``of`` hold."""
        del context
        default = AdmissionLimits()
        # A bound that the user gives holds for both searches.
        optimal = min(self.max_expansions, default.plan.optimal_expansions)
        plan = msgspec.structs.replace(default.plan, max_expansions=self.max_expansions, optimal_expansions=optimal)
        limits = msgspec.structs.replace(default, plan=plan)
        if inputs["of"][0].record_type is EnvironmentSpec:
            return EnvironmentGate(limits)
        return TaskGate(limits, Lookup(tables_of(inputs, "environments"), EnvironmentSpec))


R = TypeVar("R", bound=EnvironmentSpec | Task)


class Gate(UniqueOperation[R, R]):
    """Admission of one record; what is admitted carries its report."""

    blamed: ClassVar[Blamed] = "generator"
    chunk_rows: ClassVar[int] = 100

    def __init__(self, record_type: type[R], limits: AdmissionLimits) -> None:
        super().__init__("admit", record_type, record_type)
        self._limits = limits

    def unique_key(self, output: R) -> str | None:
        """Environments and tasks that differ in names only are duplicates."""
        return output.structure_digest

    def judged(self, unit: Unit, report: AdmissionReport, admitted: R) -> Iterable[Result]:
        """``admitted``, or a dead letter with the check that failed as its reason."""
        failed = rejection(report)
        if failed is None:
            return [Result(input_id=unit[0], outputs=[admitted])]
        letter = Dropped(
            input_id=unit[0], stage=self.name, reason=failed.name, blamed=self.blamed, detail=failed.detail
        )
        return [Result(input_id=unit[0], dropped=letter)]


class EnvironmentGate(Gate[EnvironmentSpec]):
    """Admission of environments, each of which may take a second."""

    chunk_rows: ClassVar[int] = 10

    def __init__(self, limits: AdmissionLimits) -> None:
        super().__init__(EnvironmentSpec, limits)

    def process(self, record: EnvironmentSpec, unit: Unit) -> Iterable[Result]:
        """The environment with its report and its structure."""
        report = admit_environment(record, self._limits)
        digest = environment_digest(record)
        return self.judged(unit, report, msgspec.structs.replace(record, admission=report, structure_digest=digest))


class TaskGate(Gate[Task]):
    """Admission of tasks."""

    def __init__(self, limits: AdmissionLimits, environments: Lookup[EnvironmentSpec]) -> None:
        super().__init__(Task, limits)
        self._environments = environments

    def open(self) -> None:
        """Load the environments."""
        self._environments.load()

    def process(self, record: Task, unit: Unit) -> Iterable[Result]:
        """The task with its report, its structure, a gold solution and its difficulty."""
        spec = self._environments.get(record.environment_id)
        if spec is None:
            raise EnvError(f"no environment {record.environment_id!r} in the tables of `environments`")
        report, gold, difficulty = admit_task(record, spec, self._limits)
        admitted = msgspec.structs.replace(
            record,
            admission=report,
            gold=gold if gold is not None else record.gold,
            difficulty=difficulty if difficulty is not None else record.difficulty,
            structure_digest=task_digest(record, spec),
        )
        return self.judged(unit, report, admitted)
