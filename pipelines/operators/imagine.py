"""``imagine``: runs that a model writes as a whole, what the world answers included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import Blamed, Operation
from agentmill.pipelines.operators.acting import Acting
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.memory import Remembering, Shelf
from agentmill.pipelines.operators.rollout import Worlds
from agentmill.pipelines.operators.selection import SAID, FilterParameters
from agentmill.pipelines.operators.stage import Inputs, StageContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.records.task import EnvironmentSpec
from agentmill.synthesis.rollouts.retrieval import Retrieval
from agentmill.synthesis.strategies.simulate import Imagine as ImagineStrategy

OF_EXAMPLES = (*Retrieval.model_fields, *SAID, "where", "verdict")


class Imagine(FilterParameters, Acting, ImagineStrategy):
    """k runs per task as a model imagines them, each turn held against the rules of the world."""

    primary: ClassVar[str] = "tasks"
    table_roles: ClassVar[Sequence[str]] = ("tasks", "from_", "environments", *SAID)

    policy: str = Field(description="the model that writes the runs: an entry of models, @base or @last")
    tasks: TableNames = Field(description="tables of tasks")
    from_: TableNames | None = Field(
        default=None, alias="from", description="tables of earlier trajectories that the writer is shown as examples"
    )

    @model_validator(mode="after")
    def _examples_from_somewhere(self) -> Imagine:
        given = next((name for name in OF_EXAMPLES if self._differs(name)), None)
        if self.from_ is None and given is not None:
            raise ValueError(f"`{given}` goes with `from`, the tables of earlier runs")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from tasks."""
        expect(reads, "tasks", "Task")
        if "from" in reads:
            expect(reads, "from", "Trajectory")
        self.expect_said(reads)
        return super().writes(reads)

    def operation(self, inputs: Inputs, context: StageContext) -> Operation:
        """The runs."""
        worlds = Worlds(environments=Lookup(tables_of(inputs, "environments"), EnvironmentSpec))
        strategy, runs = self.strategy(ImagineStrategy), TrajectoryIndex(tables_of(inputs, "from"))
        shelf = Shelf(runs, self.choice(inputs), strategy) if self.from_ else None
        return Imagining("imagine", strategy, worlds, self.actors(context), self.window_of(context), shelf)


class Imagining(Remembering):
    """As ``Remembering``; counts what had to be repaired."""

    blamed: ClassVar[Blamed] = "generator"

    def measures(self, output: Any) -> Mapping[str, float]:
        """Runs that were repaired, and the faults of them, too."""
        faults = output.extra.get("repaired", [])
        return {**super().measures(output), "repaired": int(bool(faults)), "faults": len(faults)}
