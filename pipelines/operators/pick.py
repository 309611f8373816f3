"""``pick``: of the trajectories of each task the first, the best, the shortest or the cheapest; the rows stay.

With ``sample`` and any scorer before it this is best-of-n, with ``where: success`` rejection sampling of one per task.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, kept_notes
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.view import Unused

By = Literal["first", "best", "shortest", "cheapest"]


class Pick(FilterParameters):
    """A selection per trajectory: kept are the first k of each task in some order, of those that are chosen at all."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", *ANNOTATION_ROLES)

    of: TableNames = Field(description="tables of trajectories")
    by: By = Field(
        default="best",
        description="by score, by turns, by completion tokens, or the first; equal ones by attempt",
    )
    k: int = Field(default=1, ge=1, description="how many stay per task")
    score: Criterion = Field(
        default="outcome", description="the best by this: passed:NAME is success, verdict:NAME a score (progress)"
    )
    name: str = Field(default="pick", description="what the selection is called")

    @model_validator(mode="after")
    def _a_score_for_the_best(self) -> Pick:
        if self.by != "best" and "score" in self.model_fields_set:
            raise ValueError(
                f"`score: {self.score}` decides which is best; `by: {self.by}` asks no score, so leave it out"
            )
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories."""
        expect(reads, "of", "Trajectory")
        self.check_filter_needs(reads)
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """A warning where nothing is kept, too."""
        return [*super().notes(manifest), *kept_notes(manifest)]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        return Picking(self, self.choice(inputs), TrajectoryIndex(tables_of(inputs, "of")))


class Candidate(msgspec.Struct, frozen=True):
    """A trajectory that may be picked: the lowest ``key`` is, unless it is unknown; ``score`` is what tells."""

    trajectory_id: str
    key: float | None
    score: float | None
    attempt: int


class Picking(RowOperation[Trajectory, Selection]):
    """One selection per trajectory. Every worker reads through the tables once and ranks all of them."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, parameters: Pick, choice: TrajectoryFilter, contents: TrajectoryIndex) -> None:
        super().__init__("pick", Trajectory, Selection)
        self._parameters = parameters
        self._choice = choice
        self._contents = contents
        self._selections: dict[str, Selection] = {}

    def open(self) -> None:
        """Rank the trajectories of each task. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        self._selections = {}
        tasks: dict[str, list[Candidate]] = defaultdict(list)
        for trajectory in self._contents.scan():
            # Reading through the tables may take minutes, in which nothing else notices an interrupt.
            stop.check()
            try:
                annotations = self._choice.annotations(trajectory.trajectory_id)
            except Unused as error:
                self._select(trajectory.trajectory_id, error.reason, None)
                continue
            tasks[trajectory.task_id or trajectory.trajectory_id].append(self._candidate(trajectory, annotations))
        for candidates in tasks.values():
            for rank, each in enumerate(ranked(candidates)):
                reason = None if rank < self._parameters.k else f"not_{self._parameters.by}"
                self._select(each.trajectory_id, "unscored" if each.key is None else reason, each.score)

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        selection, measures = self._selections[record.trajectory_id], self._choice.measures(record.trajectory_id)
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def measures(self, output: Selection) -> Mapping[str, float]:
        """How many were kept."""
        return {"kept": int(output.kept)}

    def _candidate(self, trajectory: Trajectory, annotations: Annotations) -> Candidate:
        name, by = trajectory.trajectory_id, self._parameters.by
        if by == "best":
            found = score(self._parameters.score, trajectory, annotations)
            return Candidate(name, None if found is None else -found, found, trajectory.attempt)
        scores: dict[str, float | None] = {
            "first": 0.0,
            "shortest": float(turns(trajectory)),
            "cheapest": trajectory.usage.completion_tokens,
        }
        return Candidate(name, scores[by], None if by == "first" else scores[by], trajectory.attempt)

    def _select(self, trajectory_id: str, reason: str | None, score: float | None) -> None:
        self._selections[trajectory_id] = Selection(
            trajectory_id=trajectory_id, name=self._parameters.name, kept=reason is None, reason=reason, score=score
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_selections": {}}


def ranked(candidates: Iterable[Candidate]) -> list[Candidate]:
    """The one to be picked first, and so on; whatever their order, and those of which nothing is known last."""
    return sorted(candidates, key=lambda each: (each.key is None, each.key or 0.0, each.attempt, each.trajectory_id))


def turns(trajectory: Trajectory) -> int:
    """How often the agent acted, in what it copied, too."""
    return len({item.turn for item in trajectory.content if isinstance(item, Action) and item.turn > 0})
