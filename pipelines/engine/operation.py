"""The contract of an operation: what a stage does with one record, apart from tables, Beam and failures.

An operation pickles to workers, so it holds parameters only; what it needs to work (models, side tables) it makes when
it is opened. Each input of a stage has an id. Most records are one input; a record may also be several (the attempts
at a task), or none (a task of another split). Every input ends in exactly one ``Result``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

import msgspec

from agentmill.schemas.record_kinds import KEYS
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.verdict import Dropped, Label, Node, Verdict

Blamed = Literal["environment", "policy", "verifier", "generator", "format", "input", "curation"]
In = TypeVar("In", bound=Record)
Out = TypeVar("Out", bound=Record)


class Unit(tuple[str, ...]):
    """Ids of inputs that are worked on together.

    ``data`` is what ``Operation.units`` has found out about them, so that ``process`` need not do it again.
    """

    data: Any

    def __new__(cls, ids: Iterable[str], data: Any = None) -> Self:
        """A unit of these ids."""
        unit = super().__new__(cls, ids)
        unit.data = data
        return unit


SIDES: Mapping[str, type[Record]] = {"nodes": Node, "labels": Label, "verdicts": Verdict}
"""Tables that an operation may write besides its own. ``NAME/SIDE`` is their folder, and what later steps call them."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one input: it was used, and gave ``outputs``, or it was ``dropped``.

    ``sides`` are what it gave to side tables, by the table they go to. ``measures`` are figures of the input that
    are summed over the table, with those of its outputs.
    """

    input_id: str
    outputs: list[Any] = []
    sides: Mapping[str, list[Any]] = {}
    dropped: Dropped | None = None
    measures: Mapping[str, float] = {}


class Operation(Generic[In, Out]):
    """What one stage does, sub-classed as ``RowOperation`` or ``AsyncOperation``.

    ``reads`` and ``writes`` are the record types of its primary input and of its output. Besides, it may write
    ``sides``, entries of ``SIDES``; a ``UniqueOperation`` has none.
    """

    sides: Sequence[str] = ()

    blamed: ClassVar[Blamed] = "input"
    """Who is at fault when ``process`` raises an exception that names nobody."""

    chunk_rows: ClassVar[int] = 20_000
    """Most rows of one input chunk, which becomes one output shard."""

    sorts: ClassVar[bool] = True
    """Whether the rows of a shard are sorted by id, or are in the order of the input."""

    many: ClassVar[bool] = False
    """Whether a record may be several inputs, or none, so that inputs are counted by ``count``, not by rows."""

    def __init__(self, name: str, reads: type[In], writes: type[Out]) -> None:
        self.name = name
        self.reads = reads
        self.writes = writes

    def units(self, record: In) -> Iterable[Unit]:
        """The inputs that ``record`` is, grouped by what is worked on together; read once, in this order."""
        return [Unit([identity(record)])]

    def count(self, record: In) -> int:
        """How many inputs ``record`` is, known before the operation is opened; for progress only."""
        del record
        return 1

    def measures(self, output: Out) -> Mapping[str, float]:
        """Figures of an output that are summed over the table and go into its manifest."""
        del output
        return {}

    def side_measures(self, output: Any) -> Mapping[str, float]:
        """The same of a row of one of the ``sides``."""
        del output
        return {}

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """The figures of the manifest, from their sums over the table: rates, and zeros that mean something."""
        return metrics

    def check(self, metrics: Mapping[str, float]) -> None:
        """Raises ``UserError`` if the figures show that the parameters fit none of the inputs.

        Called with the sums over the table before its manifest is written; there is no table then.
        """
        del metrics


class RowOperation(Operation[In, Out]):
    """An operation that computes: one record at a time, in the worker's own thread."""

    def open(self) -> None:
        """Make what is needed to work. Called once per worker, before all else. Raises ``UserError``."""

    def close(self) -> None:
        """Free what ``open`` made."""

    def begin_chunk(self, records: Sequence[In]) -> None:
        """Look at the records of a chunk before ``process`` gets them, for what is cheaper done for all together."""
        del records

    def process(self, record: In, unit: Unit) -> Iterable[Result]:
        """One result for each id of ``unit``. An exception drops all of them; a ``UserError`` ends the stage."""
        raise NotImplementedError


class UniqueOperation(RowOperation[In, Out]):
    """An operation whose outputs must differ in ``unique_key`` over the whole table: the first one stays.

    Each input gives at most one output, which has the id of the input.
    """

    def unique_key(self, output: Out) -> str | None:
        """Equal for outputs of which only one may stay; ``None`` for an output that is never a duplicate."""
        raise NotImplementedError


class AsyncOperation(Operation[In, Out]):
    """An operation that waits (for models): at most ``window`` inputs per worker are in flight, over all its chunks.

    All its methods that are coroutines are called in one event loop. What has ended is journalled, so it is
    not done again when a killed stage goes on.
    """

    blamed: ClassVar[Blamed] = "policy"
    chunk_rows: ClassVar[int] = 250
    """Fewer than where it computes: a chunk is work for one worker, and its results stay in memory until it is done."""

    def __init__(self, name: str, reads: type[In], writes: type[Out], window: int) -> None:
        super().__init__(name, reads, writes)
        self.window = window

    async def open(self) -> None:
        """As ``RowOperation.open``."""

    async def close(self) -> None:
        """Free what ``open`` made; nothing is in flight any more."""

    def exhausted(self) -> str | None:
        """Why nothing new may start, in words; the stage then ends when what is in flight has.

        Called by the thread that feeds the window, once the operation is open.
        """
        return None

    async def process(self, record: In, unit: Unit) -> Iterable[Result]:
        """As ``RowOperation.process``."""
        raise NotImplementedError

    def dropped_measures(self, unit: Unit) -> Mapping[str, float]:
        """Figures of a unit whose ``process`` raised an exception, to be summed with those of its table.

        Called by the thread that feeds the window.
        """
        del unit
        return {}


AnyOperation = Operation[Any, Any]
"""An operation for the engine, which does not look into records."""


def identity(record: Record) -> str:
    """The id of a record; of an annotation its trajectory id, item and name."""
    key = KEYS[type(record)]
    if key is not None:
        return str(getattr(record, key))
    annotation: Any = record
    # Padded with zeros, so that ids sort as the numbers do.
    item = "" if annotation.item is None else f"{annotation.item:06d}"
    return f"{annotation.trajectory_id}/{item}/{annotation.name}"


def key_of(record_type: type[Record]) -> str:
    """The column with the id of a record; of an annotation that of its trajectory."""
    return KEYS[record_type] or "trajectory_id"
