"""What the operators share that verify and label trajectories by other trajectories: by branches, or by attempts.

Each writes verdicts as its table and labels as ``NAME/labels``, and keeps the contract of verifiers. Every worker reads
the other trajectories for itself, and keeps scores and digests of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, mapped, product
from agentmill.pipelines.operators.bounds import Rows as RowBounds
from agentmill.pipelines.operators.lookup import Relation
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, left_out
from agentmill.pipelines.operators.verify import LABELS, unscored_notes, verdict_measures
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Verdict
from agentmill.schemas.views.annotations import Annotations
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.verifiers.verifier import Finding, findings

ROLES: Sequence[str] = tuple(ANNOTATION_ROLES)
"""The roles of the tables that choose trajectories and score the others."""


class Source(Protocol):
    """What a labeller knows of other trajectories. Pickles as parameters and paths; each worker loads it once."""

    def load(self) -> None:
        """Read the other trajectories. Raises ``UserError`` for what cannot be used."""

    def findings(self, trajectory: Trajectory, annotations: Annotations) -> Sequence[Finding]:
        """A verdict on the whole, verdicts on steps, and labels."""


class Labeller(FilterParameters):
    """Verdicts on trajectories and labels of their steps, by other trajectories."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "verify"
    sides: ClassVar[Sequence[str]] = (LABELS,)
    writes_labels: ClassVar[bool] = True
    relation: ClassVar[Relation]

    of: TableNames = Field(description="tables of trajectories")
    name: str = Field(min_length=1, description="the name of its verdicts and labels")

    def parts(self) -> Sequence[str]:
        """What has labels of its own, called ``NAME/PART``."""
        return ()

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Verdicts, on trajectories."""
        for role in ("of", self.relation.role):
            expect(reads, role, "Trajectory")
        self.check_filter_needs(reads)
        return "Verdict"

    def bounds(self, rows: Mapping[str, RowBounds], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: a verdict on the whole and on each turn."""
        del models
        read = rows["of"]
        return Bounds(reads=read.n, rows=RowBounds(n=product(read.n, mapped(read.turns, lambda n: n + 1))))

    def annotations(self) -> Sequence[str]:
        """Its verdicts."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for other trajectories that all belong elsewhere."""
        self.relation.check(inputs)

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings, too, where verdicts say nothing, and where other trajectories belong to none that is read."""
        return [*super().notes(manifest), *unscored_notes(manifest), *self.relation.notes(manifest)]

    def source(self, inputs: Inputs) -> Source:
        """What it knows of the other trajectories."""
        raise NotImplementedError

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The verdicts and labels."""
        del context
        self.check_inputs(inputs)
        return Labelling(self, self.choice(inputs), self.source(inputs), self.relation.metrics(inputs))

    def new_verdict(self, trajectory: Trajectory, **fields: Any) -> Verdict:
        """A verdict; unscored unless ``fields`` say otherwise."""
        values: JsonObject = {"status": "unscored", "judge": self.relation.role, **fields}
        return Verdict(trajectory_id=trajectory.trajectory_id, name=self.name, **values)

    def new_label(self, trajectory: Trajectory, value: str, item: int | None, part: str | None = None) -> Label:
        """A label of an item, or of the whole."""
        name = self.name if part is None else f"{self.name}/{part}"
        return Label(
            trajectory_id=trajectory.trajectory_id, name=name, value=value, labeller=self.relation.role, item=item
        )


class Labelling(RowOperation[Trajectory, Verdict]):
    """The verdicts and labels of each trajectory that is chosen; the others are dropped."""

    blamed: ClassVar[Blamed] = "verifier"
    chunk_rows: ClassVar[int] = 5_000
    sides = (LABELS,)

    def __init__(
        self, parameters: Labeller, choice: TrajectoryFilter, source: Source, metrics: Mapping[str, float]
    ) -> None:
        super().__init__(parameters.name, Trajectory, Verdict)
        self._parameters = parameters
        self._choice = choice
        self._source = source
        self._metrics = metrics

    def open(self) -> None:
        """Load what the choice and the labels rest on."""
        self._choice.load()
        self._source.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The verdicts and labels of a trajectory. Raises ``VerifierError`` for what breaks the contract."""
        (input_id,) = unit
        try:
            annotations = self._choice.annotations(record.trajectory_id)
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        found = findings(self._parameters, record, self._source.findings(record, annotations))
        sides = {LABELS: found.labels} if found.labels else {}
        measures = self._choice.measures(record.trajectory_id)
        return [Result(input_id=input_id, outputs=found.verdicts, sides=sides, measures=measures)]

    def measures(self, output: Verdict) -> Mapping[str, float]:
        """As ``verdict_measures``, with how many branches the verdict on the whole rests on."""
        used = output.evidence.get("branches") if output.item is None else None
        counted = {} if used is None else {"branches_used": used}
        return {**verdict_measures(self._parameters.name, output), **counted}

    def side_measures(self, output: Label) -> Mapping[str, float]:
        """Labels, in all and by value."""
        return {"labels": 1, f"labels.{output.value}": 1}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the numbers of other trajectories."""
        return {**metrics, **self._metrics}
