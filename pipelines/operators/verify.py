"""Verification: the verdicts on each trajectory, by a verifier whose parameters the step gives."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar, cast

from pydantic import Field, create_model

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows, mapped, product
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.task import EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Verdict
from agentmill.synthesis.environments import blocks, make
from agentmill.synthesis.rollouts.blocking_env import (
    CALL_TIMEOUT_S,
    EnvTimeout,
    Listen,
    environments_closed,
    run_blocking,
)
from agentmill.synthesis.rollouts.step import simulated
from agentmill.synthesis.verifiers.verifier import Finding, Need, Verifier, findings

R = TypeVar("R", bound=Record)

LABELS = "labels"
"""The side table of a verifier that writes labels."""

HUNG_IN_A_ROW = 8
"""So many environments that hang one after the other are no accident of single ones."""


SIDE_TABLES: Mapping[Need, tuple[str, str]] = {
    "tasks": ("Task", "tables of their tasks"),
    "environments": ("EnvironmentSpec", "tables of the environments of these tasks"),
}
"""The record and the description of each table that a verifier may need."""


SILENT = {"unscored": "unscored", "error": "errors"}
"""The states of a verdict without a score, as messages call them."""


class Verify(Operator):
    """Verdicts on each trajectory. ``operator_of`` adds the parameters of a verifier and the tables that it needs."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = ("of",)
    verifier_type: ClassVar[type[Verifier]]

    of: TableNames = Field(description="tables of trajectories")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories."""
        expect(reads, "of", "Trajectory")
        for need in self.verifier_type.needs:
            expect(reads, need, SIDE_TABLES[need][0])
        return "Verdict"

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: a verdict on the whole, and one on each part."""
        del models
        read = rows["of"].n
        on_steps = rows["of"].turns if getattr(self, "per_step", False) else 0
        verdicts = product(read, mapped(on_steps, lambda n: n + len(self.annotations())))
        return Bounds(reads=read, rows=Rows(n=verdicts), sides={side: Rows() for side in self.sides})

    def annotations(self) -> Sequence[str]:
        """Its verdicts: on the whole, and on what it checks apart."""
        verifier = self.verifier()
        return [verifier.name, *(f"{verifier.name}/{part}" for part in verifier.parts())]

    def parameters(self) -> JsonObject:
        """Those of the verifier."""
        return {name: getattr(self, name) for name in self.verifier_type.model_fields}

    def verifier(self) -> Verifier:
        """The verifier with its parameters."""
        return self.verifier_type(**self.parameters())

    def runs_code(self) -> bool:
        """Whether the verifier does."""
        return self.verifier().runs_code()

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning where verdicts say nothing: whoever asks them drops these trajectories."""
        return unscored_notes(manifest)

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts."""
        del context
        return Verification(
            self.verifier(), self.lookup(inputs, "tasks", Task), self.lookup(inputs, "environments", EnvironmentSpec)
        )

    def lookup(self, inputs: Inputs, need: Need, record_type: type[R]) -> Lookup[R] | None:
        """The tables of a need; ``None`` if the verifier does not have it."""
        return Lookup(tables_of(inputs, need), record_type) if need in self.verifier_type.needs else None


@functools.cache
def operator_of(verifier_type: type[Verifier], base: type[Verify] = Verify) -> type[Verify]:
    """The operator of a verifier: its fields are the parameters of the step, besides the tables that it needs."""
    needs = verifier_type.needs
    taken = {"of", *needs} & verifier_type.model_fields.keys()
    if taken:
        raise TypeError(
            f"{verifier_type.__name__} has the parameters {', '.join(sorted(taken))}, which name tables of its step;"
            " call them otherwise"
        )
    tables: dict[str, Any] = {need: (TableNames, Field(description=SIDE_TABLES[need][1])) for need in needs}
    name = Field(verifier_type.model_fields["name"].default, min_length=1, description="the name of its verdicts")
    made: type[Verify] = create_model(
        verifier_type.__name__,
        __base__=cast("tuple[type[Verify], ...]", (base, verifier_type)),
        __doc__=verifier_type.__doc__,
        __module__=verifier_type.__module__,
        name=(str, name),
        **tables,
    )
    made.verifier_type = verifier_type
    made.table_roles = ("of", *needs)
    made.sides = (LABELS,) if verifier_type.writes_labels else ()
    return made


def no_task(step: str, input_id: str, trajectory: Trajectory) -> Result:
    """A trajectory dropped, whose task is in no table."""
    detail = f"no task {trajectory.task_id!r} in the tables of `tasks`"
    letter = Dropped(input_id=input_id, stage=step, reason="no_task", blamed="input", detail=detail)
    return Result(input_id=input_id, dropped=letter)


def verdict_measures(name: str, verdict: Verdict) -> Mapping[str, float]:
    """Verdicts on the whole by what they say; why others say nothing, where that is a word; parts that failed."""
    if verdict.name != name:
        return {f"failed.{verdict.name.partition('/')[2]}": 1} if verdict.passed is False else {}
    if verdict.item is not None:
        return {}
    why = {f"{verdict.status}.{verdict.reason}": 1} if (verdict.reason or "").isidentifier() else {}
    return {verdict.status: 1, "passed": int(bool(verdict.passed)), **({} if verdict.status == "scored" else why)}


def unscored_notes(manifest: Manifest) -> list[str]:
    """A warning where a table of verdicts has some without a score, with their reasons."""
    counted = {status: manifest.metrics.get(status, 0) for status in SILENT}
    if not any(counted.values()):
        return []
    reasons = {name: n for name, n in manifest.metrics.items() if name.partition(".")[0] in SILENT and "." in name}
    why = ", ".join(f"{name.partition('.')[2]} {n:,.0f}" for name, n in sorted(reasons.items()))
    found = ", ".join(f"{n:,.0f} are {SILENT[status]}" for status, n in counted.items() if n)
    return [f"warning: of {manifest.counts.used:,} verdicts {found}{why and f' ({why})'}"]


class Verification(RowOperation[Trajectory, Verdict]):
    """The verdicts of a verifier that computes; one that waits for a model belongs into a window."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 2_000

    def __init__(
        self, verifier: Verifier, tasks: Lookup[Task] | None, environments: Lookup[EnvironmentSpec] | None
    ) -> None:
        super().__init__(verifier.name, Trajectory, Verdict)
        self._verifier = verifier
        self._tasks = tasks
        self._environments = environments
        self._hung = 0
        self.sides = (LABELS,) if verifier.writes_labels else ()

    def open(self) -> None:
        """Load tasks and environments, as far as the verifier needs them."""
        for table in (self._tasks, self._environments):
            if table is not None:
                table.load()

    def close(self) -> None:
        """Wait for environments that were given up and are being closed."""
        asyncio.run(environments_closed())

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdicts and labels of a trajectory; one whose task is unknown is dropped.

        Raises ``UserError`` where environment after environment hangs: each takes its time, and nothing else goes on
        meanwhile.
        """
        (input_id,) = unit
        task = self._tasks.get(record.task_id) if self._tasks is not None else None
        if task is None and self._tasks is not None:
            return [no_task(self.name, input_id, record)]
        try:
            found = findings(self._verifier, record, asyncio.run(self._verify(task, record)))
        except EnvTimeout as error:
            self._hung += 1
            if self._hung == HUNG_IN_A_ROW:
                raise UserError(
                    f"{HUNG_IN_A_ROW} replays one after the other did not come back ({error})\n"
                    "see to what these environments need, then run the same command again",
                    ErrorCode.REPLAYS_HANG,
                ) from error
            raise
        self._hung = 0
        sides = {LABELS: found.labels} if found.labels else {}
        return [Result(input_id=input_id, outputs=found.verdicts, sides=sides)]

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``verdict_measures``."""
        return verdict_measures(self._verifier.name, output)

    def side_measures(self, output: Any) -> Mapping[str, float]:
        """How many labels there are."""
        del output
        return {"labels": 1}

    async def _verify(self, task: Task | None, trajectory: Trajectory) -> Verdict | Sequence[Finding]:
        spec = self._environments.get(task.environment_id) if task and self._environments else None
        # What a model played has no state in the real environment, which may not even exist.
        if spec is None or simulated(trajectory):
            return await self._verifier.verify(task, trajectory, None)

        async def judged(listen: Listen) -> Verdict | Sequence[Finding]:
            # Made here, since all calls of an environment have to come from one thread.
            environment = listen(make(spec))
            try:
                return await self._verifier.verify(task, trajectory, environment)
            finally:
                environment.close()

        return await (run_blocking(judged, CALL_TIMEOUT_S) if blocks(spec) else judged(lambda environment: environment))
