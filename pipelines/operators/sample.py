"""``sample``: k episodes per task, the real model acting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field

from agentmill.pipelines.engine.operation import Operation
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.rollout import Rollout, Worlds
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.strategies.sample import Sample as SampleStrategy


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
