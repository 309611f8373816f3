"""``filter``: which trajectories are kept, by conditions on their annotations; the rows stay where they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, cast

from pydantic import BeforeValidator, Field

from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.annotations import COLUMNS, AnnotationIndex, check_annotation_needs, unasked_notes
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext, TableNames, expect
from agentmill.pipelines.operators.selection import SelectionOperation, kept_notes
from agentmill.schemas.conditions import Condition
from agentmill.schemas.errors import nearest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection

ABSENT = "absent."
NEAR = "near."
"""Before the field of a condition: trajectories that lack it, and, with the nearest field after it, have that."""


def in_conditions(given: Any) -> Any:
    """``success`` and ``failure`` as the condition that other steps mean by them."""
    if given in ("success", "failure"):
        return [{"verdict": "check_outcome", "passed": given == "success"}]
    return given


class Filter(Operator):
    """A selection per trajectory: kept if all conditions hold, else dropped for the first that does not."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", *COLUMNS)

    of: TableNames = Field(description="tables of trajectories")
    verdicts: TableNames | None = Field(default=None, description="tables of verdicts on them")
    labels: TableNames | None = Field(default=None, description="tables of labels of them")
    values: TableNames | None = Field(default=None, description="tables of values of them")
    quality: TableNames | None = Field(default=None, description="tables of counts of them, made by quality")
    where: Annotated[list[Condition], BeforeValidator(in_conditions)] = Field(
        min_length=1,
        description="success, failure, or conditions on verdicts, labels and fields, which must all hold",
    )
    name: str = Field(default="filter", description="what the selection is called")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories."""
        expect(reads, "of", "Trajectory")
        for role in COLUMNS:
            if role in reads:
                expect(reads, role, ANNOTATION_ROLES[role])
        check_annotation_needs(self, reads)
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings where nothing is kept, a field of a condition is in no trajectory, or nothing asks a table."""
        return [*unasked_notes(self), *kept_notes(manifest), *absent_notes(self.where, manifest)]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        return Filtering(self.name, self.where, AnnotationIndex(inputs))


class Filtering(SelectionOperation):
    """One selection per trajectory. ``score`` is empty: a condition holds or does not."""

    def __init__(self, selection: str, conditions: Sequence[Condition], index: AnnotationIndex) -> None:
        super().__init__("filter")
        self._selection = selection
        self._conditions = list(conditions)
        self._index = index

    def open(self) -> None:
        """Load verdicts and labels."""
        self._index.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        annotations = self._index.of(record.trajectory_id)
        failed = next((each for each in self._conditions if not each.holds(record, annotations)), None)
        selection = Selection(
            trajectory_id=record.trajectory_id,
            name=self._selection,
            kept=failed is None,
            reason=None if failed is None else str(failed),
        )
        return [Result(input_id=unit[0], outputs=[selection], measures=dict(_absent(self._conditions, record)))]


def absent_notes(conditions: Sequence[Condition], manifest: Manifest) -> list[str]:
    """A warning for each field that no trajectory has, with what may be meant."""
    notes = []
    for path in dict.fromkeys(each.field for each in conditions if each.field is not None):
        if manifest.counts.written and manifest.metrics.get(f"{ABSENT}{path}") == manifest.counts.written:
            start = f"{NEAR}{path} "
            near = {name.removeprefix(start): n for name, n in manifest.metrics.items() if name.startswith(start)}
            hint = f". Did you mean {max(near, key=lambda name: near[name])!r}?" if near else ""
            notes.append(f"warning: `field: {path}` is in none of {manifest.counts.written:,} trajectories{hint}")
    return notes


def _absent(conditions: Sequence[Condition], record: Trajectory) -> Iterator[tuple[str, float]]:
    """A count for each field of the conditions that is in no open mapping of ``record``, and one of the nearest."""
    for path in dict.fromkeys(each.field for each in conditions if each.field is not None):
        names, value = path.split("."), cast(Any, record)
        for place, name in enumerate(names):
            # Fields of records are checked while the run is planned; only an open mapping may lack one.
            if isinstance(value, dict) and name not in value:
                yield f"{ABSENT}{path}", 1
                if (known := nearest(name, map(str, value))) is not None:
                    yield f"{NEAR}{path} {'.'.join([*names[:place], known, *names[place + 1 :]])}", 1
                break
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
