"""``step_value``: what each step of a trajectory is worth, from continuations, search trees, groups, or its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.annotations import AnnotationIndex
from agentmill.pipelines.operators.bounds import Bounds, Rows, product
from agentmill.pipelines.operators.lookup import BRANCHES
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, left_out
from agentmill.pipelines.operators.step_estimates import (
    Broadcast,
    Continuations,
    Source,
    StateGroups,
    Trees,
    check_all_kept,
    check_finished,
    check_replaced,
)
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Value
from agentmill.schemas.views.annotations import Criterion
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.step_values import Estimate, ScaleName, Step, steps_of

OWN: Mapping[str, Sequence[str]] = {
    "mc": ("branches", "score"),
    "tree": ("nodes", "mix"),
    "state_group": ("score", "discount", "scale"),
    "broadcast": ("score", "discount"),
}
"""The parameters that each method has."""


class StepValue(FilterParameters):
    """A value for each step of the trajectories of which something is known, with the number of samples behind it."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    table_roles: ClassVar[Sequence[str]] = ("of", "branches", "nodes", *ANNOTATION_ROLES)

    of: TableNames = Field(description="tables of trajectories")
    method: Literal["mc", "tree", "state_group", "broadcast"] = Field(
        description="continuations of branches, the nodes of search trees, steps in the same state, or the run's result"
    )
    branches: TableNames | None = Field(default=None, description="mc: tables of the branches of these trajectories")
    nodes: TableNames | None = Field(default=None, description="tree: tables of the nodes of their trees")
    score: Criterion = Field(default="outcome", description="the result of a run or a branch; not for tree")
    mix: float = Field(
        default=1.0, ge=0, le=1, description="tree: the weight of Q; the rest has the estimate of the node itself"
    )
    discount: float = Field(
        default=1.0, gt=0, le=1, description="state_group, broadcast: a result is worth less the later it comes"
    )
    scale: ScaleName = Field(
        default="std", description="state_group: returns in standard deviations of their group, or as they are"
    )
    name: str = Field(default="step_value", description="what the values are called")

    @model_validator(mode="after")
    def _what_fits(self) -> StepValue:
        for table, method in (("branches", "mc"), ("nodes", "tree")):
            if self.method == method and not getattr(self, table):
                raise ValueError(f"`method: {method}` needs `{table}`")
        for name in sorted({*chain(*OWN.values())} - {*OWN[self.method]}):
            if name in self.model_fields_set and getattr(self, name) is not None:
                methods = " or ".join(method for method, own in OWN.items() if name in own)
                raise ValueError(f"`{name}` goes with `method: {methods}`")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Values, of steps of trajectories."""
        expect(reads, "of", "Trajectory")
        for role, record in (("branches", "Trajectory"), ("nodes", "Node")):
            if role in reads:
                expect(reads, role, record)
        self.check_filter_needs(reads)
        return "Value"

    def annotations(self) -> Sequence[str]:
        """Its values."""
        return [self.name]

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: a value for each turn."""
        del models
        read = rows["of"]
        return Bounds(reads=read.n, rows=Rows(n=product(read.n, read.turns)))

    def check_inputs(self, inputs: Inputs) -> None:
        """See that branches replace a turn, were played to their end and belong to these. Raises ``UserError``."""
        check_finished(tables_of(inputs, "branches"))
        check_replaced(tables_of(inputs, "branches"))
        check_all_kept(tables_of(inputs, "branches"))
        if self.method == "mc":
            BRANCHES.check(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning, too, of branches of other trajectories."""
        return [*super().notes(manifest), *BRANCHES.notes(manifest)]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The values."""
        del context
        self.check_inputs(inputs)
        choice = self.choice(inputs)
        metrics = BRANCHES.metrics(inputs) if self.method == "mc" else {}
        return Valuing(self.name, self.method, choice, self._source(inputs, choice), metrics)

    def _source(self, inputs: Inputs, choice: TrajectoryFilter) -> Source:
        if self.method == "mc":
            paths = [str(path) for table in tables_of(inputs, "branches") for path in table.shards()]
            return Continuations(paths, self.score, AnnotationIndex(inputs))
        if self.method == "tree":
            return Trees(tables_of(inputs, "nodes"), self.mix)
        if self.method == "state_group":
            return StateGroups(TrajectoryIndex(tables_of(inputs, "of")), choice, self.score, self.discount, self.scale)
        return Broadcast(self.score, self.discount)


class Valuing(RowOperation[Trajectory, Value]):
    """The values of the own steps of each trajectory; one without any is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self, name: str, method: str, choice: TrajectoryFilter, source: Source, metrics: Mapping[str, float]
    ) -> None:
        super().__init__("step_value", Trajectory, Value)
        self._called = name
        self._method = method
        self._choice = choice
        self._source = source
        self._metrics = metrics

    def open(self) -> None:
        """Load what the choice and the values rest on."""
        self._choice.load()
        self._source.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The values of the steps of a trajectory."""
        (input_id,) = unit
        steps = steps_of(record)
        try:
            found = self._source.estimates(record, steps, self._choice.annotations(record.trajectory_id))
            values = [self._value(record, step, found[step.item]) for step in steps if step.own and step.item in found]
            if not values:
                raise Unused("no_value", "nothing is known of any step of its own")
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        return [Result(input_id=input_id, outputs=values, measures=self._choice.measures(record.trajectory_id))]

    def measures(self, output: Value) -> Mapping[str, float]:
        """How many samples there were."""
        return {"samples": output.n}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the numbers of branches."""
        return {**metrics, **self._metrics}

    def _value(self, trajectory: Trajectory, step: Step, estimate: Estimate) -> Value:
        return Value(
            trajectory_id=trajectory.trajectory_id,
            name=self._called,
            value=estimate.value,
            estimator=self._method,
            n=estimate.n,
            item=step.item,
        )
