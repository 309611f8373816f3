"""``split``: all trajectories of a task, an environment, a family or a template go into one split; the rows stay.

The step selects the trajectories of one split, ``keep``; its labels, ``NAME/labels``, say the split of each. The same
parameters give the same splits, so a second step with another ``keep``, or a ``filter`` on the labels, selects the
rest. What is kept is compared with the trajectories of the other splits by the index of ``decontaminate``.

Memory of a worker is that of the groups, and of the index of the instructions in the other splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentmill.pipelines.benchmark_entries import COLUMNS, entry_of, sample_of
from agentmill.pipelines.contamination import BenchmarkIndex, Test
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.leak_features import Entry
from agentmill.pipelines.operators.operator import Inputs, Name, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter
from agentmill.pipelines.operators.split_groups import By, Grouping
from agentmill.pipelines.operators.splits import assign_groups
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Selection
from agentmill.schemas.views.view import Unused

LABELS = "labels"
LABELLER = "split"
ROWS = "split."
LEAKS = "leaks."
"""Before the name of a split: its trajectories; before what is shared: those kept that share it with another split."""

ENVIRONMENT = "environment"
"""What is shared that no trajectory is left out for."""

NEAR: Mapping[Test, float] = {"task": 1.0, "instruction": 0.8}
"""What is compared between splits, and from which share on it is reported."""

COMMON = 10
"""A run of words that comes with more different instructions is no sign of a leak, as in ``decontaminate``."""

MISSED = 0.05
"""A share that is missed by more is a warning."""


class Split(FilterParameters):
    """A selection per trajectory: kept if it is in one split; tasks, environments, families or templates stay whole."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments", *ANNOTATION_ROLES)
    sides: ClassVar[Sequence[str]] = (LABELS,)

    of: TableNames = Field(description="tables of trajectories")
    tasks: TableNames | None = Field(
        default=None, description="tables of their tasks: a variant goes with what it was made from; skills"
    )
    environments: TableNames | None = Field(
        default=None, description="tables of their environments, for by: family or environment"
    )
    by: By = Field(default="task", description="what stays together")
    shares: dict[Name, Annotated[float, Field(gt=0, lt=1)]] = Field(
        default={"train": 0.9, "test": 0.1}, min_length=2, description="the splits and their shares of trajectories"
    )
    keep: str = Field(default="train", description="the split that is selected")
    leaks: Literal["report", "drop", "off"] = Field(
        default="report", description="a task or instruction of another split: counted, left out, or not looked for"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the order of groups; steps with one seed agree")
    name: str = Field(default="split", min_length=1, description="what the selection and the labels are called")

    @model_validator(mode="after")
    def _whole(self) -> Split:
        if abs(sum(self.shares.values()) - 1) > 1e-6:
            raise ValueError(f"`shares` add up to {sum(self.shares.values()):g}, expected 1")
        if self.keep not in self.shares:
            raise ValueError(
                f"`keep: {self.keep}` is none of `shares` ({', '.join(self.shares)})."
                f"{near_match(self.keep, self.shares)}"
            )
        if self.environments and self.by not in ("family", "environment"):
            raise ValueError(
                f"`environments` gives families and copies; `by: {self.by}` needs neither, so leave it out"
            )
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories."""
        expect(reads, "of", "Trajectory")
        for role, record in (("tasks", "Task"), ("environments", "EnvironmentSpec")):
            if role in reads:
                expect(reads, role, record)
        if self.by == "family" and not self.environments:
            raise UserError("`by: family` needs `environments`, which tell families", ErrorCode.NEEDS_ANOTHER_KEY)
        self.check_filter_needs(reads)
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections and labels."""
        return [self.name]

    def notes(self, manifest: Manifest) -> list[str]:
        """The sizes of the splits, and warnings for missed shares, leaks, and trajectories that are in no group."""
        found = manifest.metrics
        sizes = {name: found.get(f"{ROWS}{name}", 0) for name in self.shares}
        total = sum(sizes.values())
        if not total:
            return super().notes(manifest)
        notes = [*super().notes(manifest), ", ".join(f"{name} {n:,.0f}" for name, n in sizes.items())]
        missed = {name: n / total for name, n in sizes.items() if abs(n / total - self.shares[name]) > MISSED}
        if missed:
            given = ", ".join(
                f"{name} has {share:.0%} instead of {self.shares[name]:.0%}" for name, share in missed.items()
            )
            notes.append(f"warning: {given}: groups by {self.by} are too large to be divided better")
        leaks = {name.removeprefix(LEAKS): n for name, n in found.items() if name.startswith(LEAKS)}
        if environments := leaks.pop(ENVIRONMENT, 0):
            notes.append(
                f"warning: {environments:,.0f} trajectories of {self.keep} are in environments of other splits,"
                " for which none is left out; `by: environment` keeps each environment in one split"
            )
        if leaks:
            given = ", ".join(f"{kind} {n:,.0f}" for kind, n in sorted(leaks.items()))
            done = "; they are left out" if self.leaks == "drop" else ""
            notes.append(f"warning: trajectories of {self.keep} share with other splits: {given}{done}")
        if alone := found.get("without_group"):
            notes.append(f"warning: {alone:,.0f} trajectories have no known {self.by}; each is a group of its own")
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        del context
        return Splitting(self, inputs, self.choice(inputs))


class Splitting(SelectionOperation):
    """One selection per trajectory, and a label with its split. ``score`` is what of a leak was found."""

    sides = (LABELS,)

    def __init__(self, parameters: Split, inputs: Inputs, choice: TrajectoryFilter) -> None:
        super().__init__("split")
        self._parameters = parameters
        self._choice = choice
        self._grouping = Grouping(parameters.by, inputs)
        self._shards = [path for table in tables_of(inputs, "of") for path in table.shards()]
        self._splits: dict[str, str] = {}
        self._environments: set[str] = set()
        self._index: BenchmarkIndex | None = None

    def open(self) -> None:
        """Assign the groups. Raises ``UserError`` for tables that cannot be read, and where a split is empty."""
        self._choice.load()
        self._grouping.load()
        by_content = self._parameters.by == "template"
        if by_content:
            self._grouping.observe(self._chosen())
        if any(each.parent_id for each in self._chosen(content=False)):
            self._grouping.link(partial(self._chosen, content=by_content))
        sizes = Counter(self._group(each)[0] for each in self._chosen(content=by_content))
        self._splits = assign_groups(sizes, self._parameters.shares, self._parameters.seed) if sizes else {}
        if self._parameters.leaks == "off":
            return
        entries: dict[str, Entry] = {}
        for each in self._chosen():
            split = self._splits[self._group(each)[0]]
            if split != self._parameters.keep:
                entry = entry_of(split, each)
                # Attempts at one task are one entry.
                entries.setdefault(digest(entry.task_id, entry.instruction), entry)
                if (environment := self._grouping.environment_of(each)) is not None:
                    self._environments.add(environment)
        ordered = sorted(entries.values(), key=lambda each: (each.benchmark, each.entry_id))
        index = BenchmarkIndex(ordered, NEAR, COMMON)
        for each in self._chosen():
            index.observe(sample_of(each))
        index.close()
        self._index = index

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory, and its split."""
        measures = dict(self._choice.measures(record.trajectory_id))
        try:
            self._choice.annotations(record.trajectory_id)
        except Unused as error:
            selection = self._selection(record, error.reason, None)
            return [Result(input_id=unit[0], outputs=[selection], measures=measures)]
        group, what = self._group(record)
        split = self._splits[group]
        measures |= {f"{ROWS}{split}": 1, **({} if what else {"without_group": 1})}
        kept = split == self._parameters.keep
        reason, share = self._leak(record, measures) if kept else (f"split: {split}", None)
        label = Label(
            trajectory_id=record.trajectory_id,
            name=self._parameters.name,
            value=split,
            labeller=LABELLER,
            reason=f"{what} {group}" if what else None,
        )
        selection = self._selection(record, reason, share)
        return [Result(input_id=unit[0], outputs=[selection], sides={LABELS: [label]}, measures=measures)]

    def _leak(self, record: Trajectory, measures: dict[str, float]) -> tuple[str | None, float | None]:
        """Why a trajectory of the kept split is left out, and the share; notes in ``measures`` what it shares."""
        if self._index is None:
            return None, None
        if self._grouping.environment_of(record) in self._environments:
            measures[f"{LEAKS}{ENVIRONMENT}"] = 1
        matches = self._index.match(sample_of(record))
        for match in matches:
            measures[f"{LEAKS}{match.test}"] = 1
        if not matches or self._parameters.leaks != "drop":
            return None, None
        first = matches[0]
        entry = self._index.entries[first.entry]
        return f"leaks: {entry.benchmark}/{entry.entry_id}, {first.test} {first.score:.2f}", first.score

    def _selection(self, record: Trajectory, reason: str | None, share: float | None) -> Selection:
        name = self._parameters.name
        return Selection(trajectory_id=record.trajectory_id, name=name, kept=reason is None, reason=reason, score=share)

    def _group(self, record: Trajectory) -> tuple[str, str | None]:
        """The group of a trajectory, and what it is grouped by; otherwise it is one by itself."""
        found = self._grouping.of(record)
        return (record.trajectory_id, None) if found is None else (found[1], found[0])

    def _chosen(self, content: bool = True) -> Iterator[Trajectory]:
        columns = [name for name in (*COLUMNS, "environment_id", "parent_id") if content or name != "content"]
        for _, trajectory in stream(self._shards, columns):
            stop.check()
            try:
                self._choice.annotations(trajectory.trajectory_id)
            except Unused:
                continue
            yield trajectory

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_splits": {}, "_index": None}
