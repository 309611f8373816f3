"""Training rows: every view of ``schemas.views`` is an operator by its name, with its own parameters."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec
from pydantic import Field, create_model, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, product
from agentmill.pipelines.operators.bounds import Rows as RowBounds
from agentmill.pipelines.operators.lineage import Lineage
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.selection import FilterParameters, TrajectoryFilter, left_out
from agentmill.pipelines.operators.trajectory_index import TrajectoryIndex
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.config import Config
from agentmill.schemas.errors import UserError
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.rows import SftRow
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.views import VIEWS, pairing
from agentmill.schemas.views.pair_view import PairView
from agentmill.schemas.views.tree_view import FamilyView, Made, Relative
from agentmill.schemas.views.unpaired import Unpaired as UnpairedView
from agentmill.schemas.views.view import Unused, View, rows_of

BaseView = View | PairView | FamilyView

TRAIN = "train"
WITHOUT_ARGUMENTS = "rows_without_arguments"
"""The metric of rows in which ``arguments`` of ``sft`` finds no call with arguments."""
ASIDE = "rows_of_split."
"""How the figures begin that count rows of other splits."""


class Rows(FilterParameters):
    """Training rows of trajectories. ``operator_of`` adds the parameters of a view."""

    primary: ClassVar[str] = "from"
    table_roles: ClassVar[Sequence[str]] = ("from_", *ANNOTATION_ROLES)
    view_type: ClassVar[type[BaseView]]

    from_: TableNames = Field(alias="from", description="tables of trajectories")
    as_split: str | None = Field(
        default=None, min_length=1, description="the split of the rows; by default that of their trajectories"
    )

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``; rows that keep split and thoughts are the same as ever."""
        config = super().provenance_config(context)
        kept = {"as_split"} if self.as_split is None else set()
        kept |= {"thoughts", "thoughts_as"} if config.get("thoughts") is None else set()
        return {name: value for name, value in config.items() if name not in kept}

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """The rows of the view, from trajectories."""
        expect(reads, "from", "Trajectory")
        self.check_filter_needs(reads)
        return self.view_type.record.__name__

    def bounds(self, rows: Mapping[str, RowBounds], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: how many pairs there are, or corrected turns, is not known before."""
        del models
        read, per = rows["from"], getattr(self, "rows", None)
        known = {"trajectory": read.n, "step": product(read.n, read.turns)}
        return Bounds(reads=read.n, rows=RowBounds(n=known.get(str(per)) if self.view_type.name in VIEWS else None))

    def notes(self, manifest: Manifest) -> list[str]:
        """Warnings where rows come from tasks that were set aside: who trains on them cannot be evaluated there; and
        of rows in which ``arguments`` has no effect."""
        aside = {name.removeprefix(ASIDE): n for name, n in manifest.metrics.items() if name.startswith(ASIDE)}
        notes, written = super().notes(manifest), manifest.counts.written
        if whole := manifest.metrics.get(WITHOUT_ARGUMENTS):
            notes.append(
                f"warning: {whole:,.0f} of {written:,} rows have no arguments of calls, so `arguments` changes nothing "
                "in them; commands in messages are text. Play with `scaffold: tools`"
            )
        if aside:
            counts = ", ".join(f"{n:,.0f} of {split}" for split, n in sorted(aside.items()))
            notes.append(
                f"warning: of {written:,} rows {counts} are not of split train; a model trained on them "
                "cannot be judged on these tasks. Let the steps before take split: train, unless you mean it"
            )
        return notes

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The rows."""
        del context
        copies = getattr(self, "copied", "none") != "none" or getattr(self, "thoughts", None) is not None
        lineage = Lineage(tables_of(inputs, "from")) if copies else None
        return Export(self.made_view(inputs), self.choice(inputs), self.as_split, lineage)

    def made_view(self, inputs: Inputs) -> Any:
        """The view, with the parameters that this step has of it."""
        del inputs
        return self.view_type(**{name: getattr(self, name) for name in fields_of(self.view_type)})


def fields_of(view_type: type[BaseView]) -> Sequence[str]:
    """The parameters of a view."""
    return list(cast("type[Config]", view_type).model_fields)


@functools.cache
def operator_of(view_type: type[BaseView], base: type[Rows]) -> type[Rows]:
    """The operator of a registered view: its fields are parameters of the step, with those of ``base``."""
    made: type[Rows] = create_model(
        view_type.__name__,
        __base__=cast("tuple[type[Rows], ...]", (base, view_type)),
        __doc__=view_type.__doc__,
        __module__=view_type.__module__,
    )
    made.view_type = view_type
    return made


def in_split(trajectory: Trajectory, split: str | None) -> Trajectory:
    """A trajectory as one of this split, so that its rows are; as it is where none is given."""
    return trajectory if split is None else msgspec.structs.replace(trajectory, split=split)


def set_aside(row: Record) -> Mapping[str, float]:
    """One row of a split other than ``train``, to be counted in the manifest; nothing for other rows."""
    split = getattr(row, "split", None)
    return {} if split in (None, TRAIN) else {f"{ASIDE}{split}": 1}


class Export(RowOperation[Trajectory, Record]):
    """The training rows that a view makes of chosen trajectories; one that gives no row is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self, view: View, choice: TrajectoryFilter, split: str | None = None, lineage: Lineage | None = None
    ) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._split = split
        self._view = view
        self._choice = choice
        self._lineage = lineage

    def open(self) -> None:
        """Load what the choice rests on."""
        self._choice.load()
        if self._lineage is not None:
            self._lineage.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory."""
        (input_id,) = unit
        try:
            annotations = self._choice.annotations(record.trajectory_id)
            if self._lineage is not None:
                annotations = self._choice.with_inherited(record, annotations, self._lineage)
            rows = rows_of(self._view, in_split(record, self._split), annotations)
        except Unused as error:
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, error))]
        measures = self._choice.measures(record.trajectory_id, len(record.content))
        return [Result(input_id=input_id, outputs=rows, measures=measures)]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``, and those in which ``arguments`` has no effect."""
        found = dict(set_aside(output))
        if isinstance(output, SftRow) and output.view_parameters.get("arguments", "trained") != "trained":
            found |= {WITHOUT_ARGUMENTS: float(all(each.argument_loss == "trained" for each in output.messages))}
        return found


class Pairs(Rows):
    """Preference pairs of trajectories: planned over all of them, then made one by one.

    Every worker reads through the tables once and keeps ids, scores and digests; all of them make the same plan. The
    row of a pair is made where its chosen side is worked on, and the other side is fetched.
    """

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The pairs."""
        del context
        contents = TrajectoryIndex(tables_of(inputs, "from"))
        return Pairing(self.made_view(inputs), self.choice(inputs), contents, self.as_split)


class Pairing(RowOperation[Trajectory, Record]):
    """The pairs in which a trajectory is the chosen side. One that is on neither side of any pair is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self, view: PairView, choice: TrajectoryFilter, contents: TrajectoryIndex, split: str | None = None
    ) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._split = split
        self._view = view
        self._choice = choice
        self._contents = contents
        self._pairs: dict[str, list[pairing.Pair]] = {}
        self._lost: dict[str, Exception] = {}

    def open(self) -> None:
        """Plan the pairs of all trajectories. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        self._lost = {}
        plan = pairing.plan(self._candidates(), self._view.rules)
        self._lost.update(pairing.left_out(plan))
        pairs = defaultdict(list)
        for pair in plan.pairs:
            pairs[pair.chosen.trajectory_id].append(pair)
        self._pairs = dict(pairs)

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The pairs that a trajectory wins."""
        (input_id,) = unit
        lost = self._lost.get(record.trajectory_id)
        if isinstance(lost, Unused):
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, lost))]
        if lost is not None:
            raise lost
        pairs = self._pairs.get(record.trajectory_id, ())
        chosen = in_split(record, self._split)
        rows = [self._view.make_row(pair, chosen, self._contents.get(pair.rejected.trajectory_id)) for pair in pairs]
        measures = self._choice.measures(record.trajectory_id, len(record.content))
        return [Result(input_id=input_id, outputs=rows, measures=measures)]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``."""
        return set_aside(output)

    def _candidates(self) -> Iterable[pairing.Candidate]:
        for trajectory in self._contents.scan():
            stop.check()
            try:
                yield from self._view.candidates(trajectory, self._choice.annotations(trajectory.trajectory_id))
            except (UserError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - kept until the turn of the trajectory, where it is attributed
                self._lost[trajectory.trajectory_id] = error


class Families(Rows):
    """Training rows of search trees. A tree is put together once for each chunk that has trajectories of it.

    Every worker reads through the tables once and keeps who descends from whom.
    """

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The rows."""
        del context
        tables = tables_of(inputs, "from")
        contents, lineage = TrajectoryIndex(tables), Lineage(tables)
        return Telling(self.made_view(inputs), self.choice(inputs), contents, lineage, self.as_split)


class Telling(RowOperation[Trajectory, Record]):
    """The rows that a trajectory stands for in its tree. One that is a part of no row is dropped."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(
        self,
        view: FamilyView,
        choice: TrajectoryFilter,
        contents: TrajectoryIndex,
        lineage: Lineage,
        split: str | None = None,
    ) -> None:
        super().__init__(view.name, Trajectory, view.record)
        self._split = split
        self._view = view
        self._choice = choice
        self._contents = contents
        self._lineage = lineage
        self._made: dict[str, Sequence[Record] | Exception] = {}

    def open(self) -> None:
        """Find out who descends from whom. Raises ``UserError`` for tables that cannot be read."""
        self._choice.load()
        self._lineage.load()
        parents = {each.trajectory_id: each.parent_id for each in self._contents.scan()}
        self._roots = {trajectory_id: root(trajectory_id, parents) for trajectory_id in parents}
        self._trees = defaultdict(list)
        for trajectory_id, origin in self._roots.items():
            self._trees[origin].append(trajectory_id)

    def begin_chunk(self, records: Sequence[Trajectory]) -> None:
        """Make the rows of the chunk tree by tree, since its trajectories, sorted by id, mix the trees."""
        self._made = {}
        chunk = defaultdict(list)
        for record in records:
            chunk[self._roots[record.trajectory_id]].append(record.trajectory_id)
        for origin, members in chunk.items():
            stop.check()
            try:
                tree = self._make(origin)
                self._made.update({trajectory_id: tree[trajectory_id] for trajectory_id in members})
            except (UserError, MemoryError):
                raise
            except Exception as error:  # noqa: BLE001 - kept until the turn of each trajectory, where it is attributed
                self._made.update(dict.fromkeys(members, error))

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The rows of a trajectory."""
        (input_id,) = unit
        found = self._made[record.trajectory_id]
        if isinstance(found, Unused):
            return [Result(input_id=input_id, dropped=left_out(input_id, self.name, record, found))]
        if isinstance(found, Exception):
            raise found
        return [Result(input_id=input_id, outputs=list(found), measures=self._choice.measures(record.trajectory_id))]

    def measures(self, output: Record) -> Mapping[str, float]:
        """Rows of splits other than ``train``."""
        return set_aside(output)

    def _make(self, origin: str) -> Made:
        """What becomes of each run of a tree; those that are not chosen are no part of it."""
        made: Made = {}
        family = []
        for trajectory_id in self._trees[origin]:
            try:
                annotations = self._choice.annotations(trajectory_id)
            except Unused as error:
                made[trajectory_id] = error
                continue
            run = self._contents.get(trajectory_id)
            # A step that runs share is judged in one of them.
            inherited = self._choice.with_inherited(run, annotations, self._lineage)
            family.append(Relative(in_split(run, self._split), inherited))
        return {**made, **self._view.make_rows(family)}


def root(trajectory_id: str, parents: Mapping[str, str | None]) -> str:
    """The first ancestor, which may itself be in no table; in a circle, the one whose id comes first."""
    seen = [trajectory_id]
    while (parent := parents.get(seen[-1])) is not None:
        if parent in seen:
            return min(seen[seen.index(parent) :])
        seen.append(parent)
    return seen[-1]


class Unpaired(Rows, UnpairedView):
    """Good and bad continuations of trajectories, or of their steps, with weights of the two classes."""

    view_type: ClassVar[type[BaseView]] = cast("type[BaseView]", UnpairedView)

    balanced: bool = Field(
        default=False, description="count the rows first and weigh the classes so that both weigh the same in total"
    )

    @model_validator(mode="after")
    def _weights_given_or_counted(self) -> Unpaired:
        given = {"desirable_weight", "undesirable_weight"} & self.model_fields_set
        if self.balanced and given:
            raise ValueError(f"`balanced` sets the weights, and so does `{min(given)}`; give one of the two")
        return self

    def made_view(self, inputs: Inputs) -> UnpairedView:
        """The view; its weights are numbers, also where they follow from counts."""
        view: UnpairedView = super().made_view(inputs)
        if not self.balanced:
            return view
        labels = self._labels(view, inputs)
        good, bad = class_weights(labels[True], labels[False])
        return view.model_copy(update={"desirable_weight": good, "undesirable_weight": bad})

    def _labels(self, view: UnpairedView, inputs: Inputs) -> Counter[bool]:
        """How many rows have each label."""
        choice = self.choice(inputs)
        choice.load()
        labels: Counter[bool] = Counter()
        for table in tables_of(inputs, "from"):
            for run in table.rows():
                try:
                    labels.update(row.label for row in rows_of(view, run, choice.annotations(run.trajectory_id)))
                except (UserError, MemoryError):
                    raise
                except Exception:  # noqa: BLE001 - attributed where the rows of the trajectory are made
                    continue
        return labels


def class_weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """Weights of two classes of these sizes under which both weigh the same and rows weigh 1 on average."""
    if not desirable or not undesirable:
        return 1.0, 1.0
    total = desirable + undesirable
    return total / (2 * desirable), total / (2 * undesirable)
