"""``sample``: k episodes per task, the real model acting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from pipelines.engine.operation import Operation
from pipelines.stages.acting import Acting
from pipelines.stages.lookup import Lookup
from pipelines.stages.rollout import Rollout, Worlds
from pipelines.stages.stage import Inputs, StageContext, TableNames, expect, tables_of
from schemas.task import EnvironmentSpec
from synthesis.strategies.sample import Sample as SampleStrategy


class Sample(Acting, SampleStrategy):
    """k episodes per task by a policy, crossed with scaffold and constraints."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "environments")

    tasks: TableNames = Field(description="tables of tasks")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The episodes."""
        worlds = Worlds(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec))
        strategy = self.strategy(SampleStrategy)
        return Rollout(self.operator(), strategy, worlds, self.actors(context), self.window_of(context))

    @classmethod
    def operator(cls) -> str:
        """The name that dead letters carry."""
        return "sample"
