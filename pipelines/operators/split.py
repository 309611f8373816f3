"""``split``: all trajectories of a task, an environment, a family or a template go into one split; the rows stay.

The step selects the trajectories of one split, ``keep``; its labels, ``NAME/labels``, say the split of each. The same
parameters give the same splits, so a second step with another ``keep``, or a ``filter`` on the labels, selects the
rest. What is kept is compared with the trajectories of the other splits by the index of ``decontaminate``.

Memory of a worker is that of the groups, and of the index of the instructions in the other splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, model_validator

from agentmill.pipelines.benchmark_entries import COLUMNS, entry_of, sample_of
from agentmill.pipelines.canonical_form import form_of, names_in
from agentmill.pipelines.contamination import BenchmarkIndex, Test
from agentmill.pipelines.duplicates import Groups
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.leak_features import Entry, Sample
from agentmill.pipelines.operators.lookup import Lookup
from agentmill.pipelines.operators.operator import Inputs, Name, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter
from agentmill.pipelines.operators.splits import assign_groups
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.task import CONTRAST, EnvironmentSpec, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Label, Selection
from agentmill.schemas.views.view import Unused
from agentmill.synthesis.generators.task_author import OPERATOR as PROPOSE
from agentmill.synthesis.generators.wrapping import OPERATOR as WRAPPED

By = Literal["task", "environment", "family", "template"]
K = TypeVar("K", str, tuple[str, str])
Node = tuple[str, str]
"""What templates are found by: ``form``, ``instruction`` or ``task``, which sort in this order, and which one."""

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


class Grouping:
    """The group of a trajectory. Pickles as paths."""

    def __init__(self, by: By, inputs: Inputs) -> None:
        self._by = by
        self._tasks = Lookup(tables_of(inputs, "tasks"), Task)
        columns = ["family", "lineage"]
        self._environments = Lookup(tables_of(inputs, "environments"), EnvironmentSpec, columns=columns)
        self._variants: dict[str, str] = {}
        self._trees: dict[str, str] = {}
        self._originals: dict[str, str] = {}
        self._templates: dict[Node, Node] = {}

    def load(self) -> None:
        """Load tasks and environments."""
        self._tasks.load()
        self._environments.load()
        self._variants = variants(self._environments.all())
        if self._by == "task":
            self._originals = related(self._tasks.all())

    def observe(self, trajectories: Iterable[Trajectory]) -> None:
        """Find the templates of instructions without skills, from all trajectories that are split.

        Names are masked by what an attempt acts on, so attempts at one instruction may give it several forms; these
        are one template.
        """
        links: set[tuple[Node, Node]] = set()
        for each in trajectories:
            sample = sample_of(each)
            if self._skills(each) or not (nodes := _nodes(sample)):
                continue
            names, asked = names_in(sample.acts), sample.asked[:1]
            if form := [word for text in asked for word in form_of(text, names, keep_numbers=False)]:
                nodes.append(("form", digest("template", form)))
            links.update((nodes[0], node) for node in nodes)
        self._templates = joined(links)

    def link(self, read: Callable[[], Iterable[Trajectory]]) -> None:
        """Find the trees of branches whose own group is not known; ``read`` reads all trajectories that are split.

        A tree is in the group of the trajectory that it begins with, or else a group of its own.
        """
        trees = joined(
            (each.trajectory_id, each.parent_id) for each in read() if each.parent_id and self._own(each) is None
        )
        if not trees:
            return
        owners = {
            trees[each.trajectory_id]: own
            for each in read()
            if each.trajectory_id in trees and (own := self._own(each)) is not None
        }
        self._trees = {name: owners.get(tree, tree) for name, tree in trees.items()}

    def environment_of(self, trajectory: Trajectory) -> str | None:
        """The id of its environment, from its task if it has none itself; of copies that of one of them."""
        environment = self._own_environment_of(trajectory)
        return environment and self._variants.get(environment, environment)

    def _own_environment_of(self, trajectory: Trajectory) -> str | None:
        task = self._tasks.get(trajectory.task_id)
        return trajectory.environment_id or (None if task is None else task.environment_id)

    def of(self, trajectory: Trajectory) -> tuple[str, str] | None:
        """What it is grouped by, and the group; ``None`` if neither that is known nor what it is a branch of."""
        own = self._own(trajectory)
        if own is not None:
            return self._by, own
        tree = self._trees.get(trajectory.trajectory_id)
        return None if tree is None else ("tree", tree)

    def _own(self, trajectory: Trajectory) -> str | None:
        if self._by == "task":
            return self._originals.get(trajectory.task_id or "", trajectory.task_id)
        if self._by == "template":
            return self._template(trajectory)
        if self._by == "environment":
            return self.environment_of(trajectory)
        spec = self._environments.get(self._own_environment_of(trajectory))
        return None if spec is None else spec.family

    def _template(self, trajectory: Trajectory) -> str | None:
        """The skills that the generator gave the task, or else the instruction without its names; if it has none, the
        task."""
        if skills := self._skills(trajectory):
            return ", ".join(sorted(skills))
        return next((self._templates[node][1] for node in _nodes(sample_of(trajectory))), None)

    def _skills(self, trajectory: Trajectory) -> Sequence[str]:
        task = self._tasks.get(trajectory.task_id)
        return task.skills if task is not None else ()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_originals": {}, "_templates": {}, "_variants": {}, "_trees": {}}


def _nodes(sample: Sample) -> list[Node]:
    """What attempts have in common that belong to one template: the instruction, word for word, and the task."""
    asked = [("instruction", digest(text.split())) for text in sample.asked[:1] if text.strip()]
    return asked + ([("task", sample.task_id)] if sample.task_id is not None else [])


def related(tasks: Iterable[Task]) -> dict[str, str]:
    """The group of tasks that were made from one another, named by one of their ids, by the id of each task.

    Variants belong together also where the table lacks the task that they were made from, and what was composed of
    several tasks belongs to all of them. Of the examples that an author was shown, only the first counts: all tasks
    would be one otherwise.
    """
    made_from: dict[str, list[str]] = {}
    for task in tasks:
        lineage = task.lineage
        parents = lineage.parents if lineage is not None else []
        written = lineage is not None and lineage.operator == PROPOSE
        made_from[task.task_id] = parents[:1] if written else parents
    return joined((task_id, each) for task_id, parents in made_from.items() for each in (task_id, *parents))


def variants(environments: Iterable[EnvironmentSpec]) -> dict[str, str]:
    """The group of environments of which one was made of the other, under other words or with other tools, by id."""
    lineages = {each.environment_id: each.lineage for each in environments}
    return joined(
        (environment_id, each)
        for environment_id, lineage in lineages.items()
        if lineage is not None and lineage.operator in (WRAPPED, CONTRAST)
        for each in (environment_id, *lineage.parents)
    )


def joined(links: Iterable[tuple[K, K]]) -> dict[K, K]:
    """The group of everything that is linked, named by its first member in order."""
    known = set(links)
    # The order of the tables must not matter.
    members = sorted({member for link in known for member in link})
    numbers = {member: number for number, member in enumerate(members)}
    groups = Groups(len(members))
    for first, second in known:
        groups.join(numbers[first], numbers[second])
    return {member: members[root] for member, root in zip(members, groups.roots().tolist(), strict=True)}


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
