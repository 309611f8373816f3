"""``replay``: which trajectories of earlier rounds are trained on again: those in a band, at most so many.

WebRL (arXiv:2411.02337) trains each phase on new trajectories and on earlier ones that the actor finds neither
surprising nor trivial: those with a likelihood from 0.5 to 0.95, at most twice as many as there are new ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.lookup import ids_of
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter, kept_notes
from agentmill.pipelines.operators.step_estimates import note_once
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.conditions import ROUNDING, exceeds, reaches
from agentmill.schemas.ids import random_key
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Action, Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Criterion, score
from agentmill.schemas.views.view import Unused

NEW = "new"
COLUMNS = ("trajectory_id", "outcome", "generation")


class Replay(FilterParameters):
    """A selection per trajectory: kept are the new ones, and of the others the best, at most ``cap`` times as many."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", NEW, *ANNOTATION_ROLES)
    chosen_roles: ClassVar[Sequence[str]] = ("of", NEW)

    of: TableNames = Field(description="tables of trajectories, such as explored@all; new ones may be among them")
    new: TableNames = Field(description="the tables of new trajectories; where and selections hold for these, too")
    cap: float = Field(default=2.0, gt=0, le=1e6, description="at most so many earlier trajectories for each new one")
    rounds: int | None = Field(
        default=None, ge=1, description="only those of so many rounds, counted back from the newest earlier one"
    )
    by: Literal["score", "likelihood"] = Field(
        default="score", description="a score, or the mean probability of a token when it was sampled"
    )
    score: Criterion = Field(default="outcome", description="the score of by: score, for a band and for prefer: score")
    at_least: float | None = Field(default=None, description="the least score of an earlier trajectory")
    at_most: float | None = Field(default=None, description="the highest score of an earlier trajectory")
    prefer: Literal["newest", "score", "random"] = Field(
        default="newest", description="which are kept under the cap; of equal ones those that the seed draws"
    )
    seed: int | None = Field(default=None, ge=0, lt=2**63, description="by default derived from that of the run")
    name: str = Field(default="replay", description="what the selection is called")

    @model_validator(mode="after")
    def _what_goes_together(self) -> Replay:
        if self.at_least is not None and self.at_most is not None and self.at_least > self.at_most:
            raise ValueError(f"no score is at least {self.at_least:g} and at most {self.at_most:g}")
        if self.by == "likelihood" and "score" in self.model_fields_set:
            raise ValueError(f"`score: {self.score}` goes with `by: score`; a likelihood needs no other score")
        given = self.by == "likelihood" or "score" in self.model_fields_set
        if given and not self.asks_score:
            key = "by: likelihood" if self.by == "likelihood" else f"score: {self.score}"
            raise ValueError(f"`{key}` decides nothing; give `at_least`, `at_most` or `prefer: score`, or leave it out")
        return self

    @property
    def asks_score(self) -> bool:
        """Whether a score decides anything."""
        return self.at_least is not None or self.at_most is not None or self.prefer == "score"

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories."""
        for role in self.chosen_roles:
            expect(reads, role, "Trajectory")
        self.check_filter_needs(reads)
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """How many are replayed, and a warning where there is nothing new, so that nothing is."""
        new = int(manifest.metrics.get(NEW, 0))
        replayed = int(manifest.metrics.get("replayed", 0))
        notes = [*super().notes(manifest), f"{replayed:,} earlier trajectories for {new:,} new ones"]
        if not new:
            return [*notes, "warning: there are no new trajectories, so no earlier one is kept"]
        return [*notes, *kept_notes(manifest)]

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``, with the seed that holds."""
        return {**super().provenance_config(context), "seed": self._seed(context)}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        choice = self.choice(inputs)
        choice.load()
        tables = tables_of(inputs, NEW)
        new = New(
            every=frozenset(name for table in tables for name in ids_of(table).to_pylist()),
            chosen=frozenset(chosen_ids(tables, choice)),
        )
        return Replaying(self, choice, tables_of(inputs, "of"), new, self._seed(context))

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed


def chosen_ids(tables: Sequence[Table], choice: TrajectoryFilter) -> Iterator[str]:
    """The ids of the trajectories in ``tables`` that are chosen."""
    for table in tables:
        for trajectory_id in ids_of(table).to_pylist():
            try:
                choice.annotations(trajectory_id)
            except Unused:
                continue
            yield trajectory_id


class New(NamedTuple):
    """The ids of the new trajectories: of all of them, and of those that are chosen."""

    every: frozenset[str]
    chosen: frozenset[str]


class Earlier(NamedTuple):
    """A trajectory that may be replayed; the highest ``rank`` is kept first."""

    trajectory_id: str
    round: int
    score: float | None
    rank: tuple[float, int]


class Replaying(SelectionOperation):
    """One selection per trajectory. Every worker reads through the tables once and keeps ids and numbers."""

    def __init__(
        self, parameters: Replay, choice: TrajectoryFilter, tables: Sequence[Table], new: New, seed: int
    ) -> None:
        super().__init__("replay")
        self._parameters = parameters
        self._choice = choice
        self._paths = [path for table in tables for path in table.shards()]
        self._new = new
        self._seed = seed
        self._selections: dict[str, Selection] = {}

    def open(self) -> None:
        """Decide on all trajectories. Raises ``UserError`` for one that is given twice."""
        self._choice.load()
        self._selections = {}
        given, earlier, newest = self._parameters, list[Earlier](), 0
        for trajectory in self._read():
            name = trajectory.trajectory_id
            if name not in self._new.every:
                newest = max(newest, round_of(trajectory))  # also of one that is not chosen: rounds are counted by time
            try:
                self._choice.annotations(name)
            except Unused as error:
                self._select(name, error.reason)
                continue
            if name in self._new.chosen:
                self._select(name, None)
            else:
                earlier.append(self._candidate(trajectory))
        left = math.floor(given.cap * len(self._new.chosen) + ROUNDING)
        for each in sorted(earlier, key=lambda each: each.rank, reverse=True):
            reason = self._refusal(each, newest) or (None if left else "over_cap")
            left -= reason is None
            self._select(each.trajectory_id, reason, each.score)

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        name = record.trajectory_id
        replayed = self._selections[name].kept and name not in self._new.chosen
        measures = {**self._choice.measures(name), "replayed": int(replayed)}
        return [Result(input_id=unit[0], outputs=[self._selections[name]], measures=measures)]

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With the number of new trajectories."""
        return {**metrics, NEW: len(self._new.chosen)}

    def _read(self) -> Iterator[Trajectory]:
        seen: set[str] = set()
        columns = (*COLUMNS, "content") if self._parameters.by == "likelihood" else COLUMNS
        for path in self._paths:
            for _, trajectory in stream([path], columns):
                stop.check()
                note_once(seen, trajectory.trajectory_id, path)
                yield trajectory

    def _candidate(self, trajectory: Trajectory) -> Earlier:
        given, name = self._parameters, trajectory.trajectory_id
        number = round_of(trajectory)
        found = None
        if given.by == "likelihood":
            found = likelihood(trajectory)
        elif given.asks_score:
            found = score(given.score, trajectory, self._choice.all_annotations(name))
        first = {"newest": float(number), "score": -math.inf if found is None else found, "random": 0.0}[given.prefer]
        return Earlier(name, number, found, (first, random_key(name, self._seed)))

    def _refusal(self, each: Earlier, newest: int) -> str | None:
        """Why an earlier trajectory is not replayed, whatever the cap."""
        given = self._parameters
        if given.rounds is not None and each.round <= newest - given.rounds:
            return "too_old"
        if not given.asks_score:
            return None
        if each.score is None:
            return "unscored"
        if given.at_least is not None and not reaches(each.score, given.at_least):
            return "below_band"
        return "above_band" if given.at_most is not None and exceeds(each.score, given.at_most) else None

    def _select(self, trajectory_id: str, reason: str | None, score: float | None = None) -> None:
        self._selections[trajectory_id] = Selection(
            trajectory_id=trajectory_id, name=self._parameters.name, kept=reason is None, reason=reason, score=score
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_selections": {}}


def round_of(trajectory: Trajectory) -> int:
    """The round that a trajectory is of; of one from elsewhere 0."""
    return trajectory.generation.round if trajectory.generation is not None else 0


def likelihood(trajectory: Trajectory) -> float | None:
    """The geometric mean of the probabilities of its own sampled tokens, from 0 to 1; ``None`` where none is stored.

    They are those of the model that sampled them; 1 / likelihood is the perplexity.
    """
    logprobs = [
        logprob
        for item in trajectory.content
        if isinstance(item, Action) and item.tokens is not None and item.context_operation != "copied"
        for logprob in item.tokens.logprobs
    ]
    return math.exp(math.fsum(logprobs) / len(logprobs)) if logprobs else None
