"""``check_outcome``: one verdict per trajectory, by the task's own checker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from pipelines.engine.operation import Blamed, Operation, Result, RowOperation, Unit
from pipelines.stages.lookup import Lookup
from pipelines.stages.stage import Inputs, Stage, StageContext, TableNames, expect, tables_of
from schemas.errors import UserError
from schemas.task import EnvironmentSpec, Task
from schemas.trajectory import Trajectory
from schemas.verdict import Dropped, Verdict
from synthesis.environments import blocks, make
from synthesis.environments.environment import Environment
from synthesis.strategies.apart import CALL_TIMEOUT_S, Listen, WorldTimeout, done_apart, worlds_closed
from synthesis.verifiers import VERIFIERS

HUNG_IN_A_ROW = 8
"""So many worlds that hang one after the other are no accident of single ones."""


class CheckOutcome(Stage):
    """The outcome of each trajectory: its actions replayed, the state they lead to judged by the task's goal."""

    primary: ClassVar[str] = "of"
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments")

    of: TableNames = Field(description="tables of trajectories")
    tasks: TableNames = Field(description="tables of their tasks")
    environments: TableNames = Field(description="tables of the environments of these tasks")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories."""
        expect(reads, "of", "Trajectory")
        expect(reads, "tasks", "Task")
        expect(reads, "environments", "EnvironmentSpec")
        return "Verdict"

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The verdicts."""
        del context
        tasks = Lookup(tables_of(inputs, "tasks"), Task)
        return Verification("check_outcome", tasks, Lookup(tables_of(inputs, "environments"), EnvironmentSpec))


class Verification(RowOperation):
    """The verdicts of a verifier that computes; one that waits for a model belongs into a window."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 2_000

    def __init__(self, verifier: str, tasks: Lookup[Task], environments: Lookup[EnvironmentSpec]) -> None:
        super().__init__(verifier, Trajectory, Verdict)
        self._tasks = tasks
        self._environments = environments
        self._verifier: Any = None
        self._hung = 0

    def open(self) -> None:
        """Load tasks, environments and the verifier."""
        self._tasks.load()
        self._environments.load()
        self._verifier = VERIFIERS.load(self.name)()

    def close(self) -> None:
        """Wait for worlds that were given up and are being closed."""
        asyncio.run(worlds_closed())

    def process(self, record: Any, unit: Unit) -> Iterable[Result]:
        """The verdict on a trajectory; one whose task is unknown is dropped.

        Raises ``UserError`` where world after world hangs: each takes its time, and nothing else goes on meanwhile.
        """
        (input_id,) = unit
        task = self._tasks.get(record.task_id)
        if task is None:
            detail = f"no task {record.task_id!r} in the tables of `tasks`"
            letter = Dropped(input_id=input_id, stage=self.name, reason="no_task", blamed="input", detail=detail)
            return [Result(input_id=input_id, dropped=letter)]
        try:
            verdict = asyncio.run(self._verdict(task, record))
        except WorldTimeout as error:
            self._hung += 1
            if self._hung == HUNG_IN_A_ROW:
                raise UserError(
                    f"{HUNG_IN_A_ROW} replays one after the other did not come back ({error})\n"
                    "see to what these environments need, then run the same command again"
                ) from error
            raise
        self._hung = 0
        return [Result(input_id=input_id, outputs=[verdict])]

    def measures(self, output: Any) -> Mapping[str, float]:
        """Verdicts by what they say."""
        return {output.status: 1, "passed": int(bool(output.passed))}

    async def _verdict(self, task: Task, trajectory: Trajectory) -> Verdict:
        spec = self._environments.get(task.environment_id)
        if spec is None:
            return await self._judged(task, trajectory, None)

        async def judged(listen: Listen) -> Verdict:
            environment = listen(make(spec))
            try:
                return await self._judged(task, trajectory, environment)
            finally:
                environment.close()

        return await (done_apart(judged, CALL_TIMEOUT_S) if blocks(spec) else judged(lambda environment: environment))

    async def _judged(self, task: Task, trajectory: Trajectory, environment: Environment | None) -> Verdict:
        verdict: Verdict = await self._verifier.verify(task, trajectory, environment)
        return verdict
