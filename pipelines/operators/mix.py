"""``mix``: one table of training rows from several, or one selection of trajectories, by weights and quotas.

AgentTuning (arXiv:2310.12823) and Agent-R (arXiv:2501.11425) mix 0.2 of agent data with 0.8 of general conversations.
A worker holds ids, numbers and the values of quotas for each row; with a tokenizer it reads one shard at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Literal, Self

import msgspec
from pydantic import Field, model_validator

from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit, key_of
from agentmill.pipelines.mixture import Mixture, Pool, draw, largest, shares
from agentmill.pipelines.operators.bounds import Bounds, least, product
from agentmill.pipelines.operators.bounds import Rows as RowBounds
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.quality import counter
from agentmill.pipelines.operators.quotas import SIDE_ROLES, Quota, QuotaValues, check_quotas
from agentmill.pipelines.operators.row_texts import copies_of, texts_to_count
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, kept_notes
from agentmill.pipelines.quality import Count
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.record_kinds import ANNOTATION_ROLES, TRAINING_ROWS
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Dropped, Selection
from agentmill.schemas.tables import Table, read_columns, read_shard
from agentmill.schemas.views.view import Unused

MIXED, TOKENS = "mixed.", "mixed_tokens."
"""Before the name of a table: how many of its rows, or tokens, are in the mixture, repeats included."""


class Mix(FilterParameters):
    """A mixture of tables by weights and quotas: training rows of one kind, or a selection of trajectories."""

    primary: ClassVar[str] = "from"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("from_", *SIDE_ROLES, *ANNOTATION_ROLES)
    tokenizers: ClassVar[Sequence[str]] = ("tokenizer",)

    from_: TableNames = Field(alias="from", description="tables of training rows of one kind, or of trajectories")
    weights: dict[str, float] | None = Field(
        default=None, description="the share of each table, which sum to 1; null: rows are drawn from all alike"
    )
    size: int | None = Field(
        default=None, ge=1, description="rows (tokens, with a tokenizer) of the mixture; null: as many as there are"
    )
    tokenizer: str | None = Field(
        default=None, description="folder with a tokenizer.json: weights, size and quotas then count tokens"
    )
    quotas: list[Quota] = Field(default=[], description="the most for each value of a field; all hold together")
    repeat: int = Field(default=1, ge=1, le=1000, description="how often a row may come, where a table is too small")
    short: Literal["refuse", "allow"] = Field(
        default="refuse", description="where there are fewer than `size`: an error, or what there is with a warning"
    )
    tasks: TableNames | None = Field(default=None, description="tables of tasks, for quotas by task.FIELD")
    environments: TableNames | None = Field(
        default=None, description="tables of environments, for quotas by environment.FIELD"
    )
    trajectories: TableNames | None = Field(
        default=None, description="tables of the trajectories that rows were made of, for quotas by trajectory.FIELD"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the order in which rows are drawn")
    name: str = Field(default="mix", description="what a selection is called")

    @model_validator(mode="after")
    def _weights_of_tables(self) -> Mix:
        for name in self.weights or ():
            if name not in self.from_:
                raise ValueError(
                    f"`weights` names {name!r}, which is not in `from` ({', '.join(self.from_)})."
                    f"{near_match(name, self.from_)}"
                )
        if self.weights is not None:
            missing = next((name for name in self.from_ if name not in self.weights), None)
            if missing is not None:
                raise ValueError(f"`weights` has no {missing!r}; give each table of `from` its share")
            if not all(weight > 0 for weight in self.weights.values()):
                raise ValueError("a weight of `weights` is 0 or less; leave a table that has no share out of `from`")
            total = math.fsum(self.weights.values())
            if not math.isclose(total, 1, abs_tol=1e-6):
                raise ValueError(f"`weights` sum to {total:g}; expected shares that sum to 1, as {{a: 0.2, b: 0.8}}")
        return self

    @model_validator(mode="after")
    def _shares_of_a_size(self) -> Mix:
        for quota in self.quotas:
            if quota.share is not None and (self.size is None or quota.cap(self.size) < 1):
                needed = "`size`" if self.size is None else f"a `size` above {self.size}, of which it is less than 1"
                raise ValueError(f"`share: {quota.share:g}` of the quota by {quota.by} needs {needed}")
        if self.repeat > 1 and self.weights is None and self.size is None:
            raise ValueError("`repeat` fills up a table that is too small; give `weights` or `size`, or leave it out")
        if self.short == "allow" and self.size is None:
            raise ValueError("`short: allow` needs `size`; without one nothing can fall short of it")
        return self

    def naming_rounds(self, rounds: Mapping[str, Sequence[str]]) -> Self:
        """As ``Operator.naming_rounds``; the rounds of a name share its weight equally."""
        named = super().naming_rounds(rounds)
        if self.weights is None:
            return named
        weights = {
            each: weight / len(rounds.get(name, [name]))
            for name, weight in self.weights.items()
            for each in rounds.get(name, [name])
        }
        return named.model_copy(update={"weights": weights})

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Rows of the same kind; selections, of trajectories."""
        record = expect(reads, "from", "Trajectory", *TRAINING_ROWS)
        if record == "Trajectory":
            self.check_filter_needs(reads)
            if self.repeat > 1:
                raise UserError(
                    "`repeat` goes with training rows: a selection keeps a trajectory or does not\n"
                    "make rows of the trajectories first, and mix these",
                    ErrorCode.KEY_NOT_FOR_THIS,
                )
        else:
            given = next((key for key in (*ANNOTATION_ROLES, "where", "name") if key in self.model_fields_set), None)
            if given is not None:
                raise UserError(
                    f"`{given}` goes with trajectories, and `from` holds {record} records\n"
                    "filter the trajectories in the step that makes rows of them",
                    ErrorCode.KEY_NOT_FOR_THIS,
                )
        check_quotas(self.quotas, record, reads)
        return "Selection" if record == "Trajectory" else record

    def bounds(self, rows: Mapping[str, RowBounds], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: each row as often as it may come, but no more than ``size``, in rows or tokens."""
        del models
        read = rows["from"].n
        return Bounds(reads=read, rows=RowBounds(n=least(product(read, self.repeat), self.size)))

    def check_rows(self, rows: Mapping[str, RowBounds]) -> None:
        """As ``Operator.check_rows``, for ``size`` in rows."""
        there = product(rows["from"].n, self.repeat)
        if there is not None and self.size is not None and self.tokenizer is None and there < self.size:
            self._refuse_short(f"{self.size:,} rows, and at most {there:,} come in")

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` for a table without rows that has a share, and for more rows than there are.

        Where all rows of all tables are taken, an empty one changes nothing, and is warned of.
        """
        counts = [table.manifest.counts.written for table in tables_of(inputs, "from")]
        empty = [name for name, count in zip(self.from_, counts, strict=False) if not count]
        if empty and self.short == "refuse" and (self.weights is not None or self.size is not None):
            raise UserError(
                f"mix: {', '.join(empty)} holds no rows, so there is nothing of it to mix\n"
                "leave the table out of `from`, or see why its step made nothing",
                ErrorCode.NO_RECORDS,
            )
        if counts and self.tokenizer is None:
            self.check_short([self.repeat * count for count in counts])

    def targets(self) -> list[int] | None:
        """The size of each table, in the order of ``from``, or of all together; ``None`` without a ``size``."""
        if self.size is None:
            return None
        return [self.size] if self.weights is None else list(shares(self.ordered_weights(), self.size).values())

    def ordered_weights(self) -> dict[str, float]:
        """The weights in the order of ``from``."""
        return {name: (self.weights or {})[name] for name in self.from_}

    def check_short(self, there: Sequence[int]) -> None:
        """Raises ``UserError`` where less is there, by table, than ``size`` asks for."""
        for missing in self.missing(there):
            self._refuse_short(missing)

    def _refuse_short(self, missing: str) -> None:
        if self.short == "refuse":
            raise UserError(
                f"mix: `size: {self.size}` asks for {missing}\nlower `size`, raise `repeat` or a quota, give"
                " `short: allow`, or leave `size` out for all there is with these weights",
                ErrorCode.ROWS_TOO_FEW,
            )

    def missing(self, there: Sequence[int]) -> Iterator[str]:
        """What ``size`` asks for and is not there, in words; ``there`` is the size that each table has, or all."""
        targets = self.targets() or []
        held = there if len(targets) == len(there) else [sum(there)]
        names = self.from_ if self.weights is not None else ["all tables"]
        unit = "rows" if self.tokenizer is None else "tokens"
        for name, target, found in zip(names, targets, held, strict=False):
            if found < target:
                # Under several quotas it depends on the order of the rows how many fit.
                how = "were found under the quotas with this `seed`" if len(self.quotas) > 1 else "are there"
                yield f"{target:,} {unit} of {name}, and {found:,} {how}"

    def notes(self, manifest: Manifest) -> list[str]:
        """The share of each table, and warnings where there are too few rows, or none."""
        before = MIXED if self.tokenizer is None else TOKENS
        sizes = [int(manifest.metrics.get(f"{before}{name}", 0)) for name in self.from_]
        total, unit = sum(sizes), "rows" if self.tokenizer is None else "tokens"
        parts = (f"{name} {size:,} ({size / max(total, 1):.1%})" for name, size in zip(self.from_, sizes, strict=True))
        notes = [*super().notes(manifest), f"{total:,} {unit}: {', '.join(parts)}"]
        without = [name for name, size in zip(self.from_, sizes, strict=True) if not size]
        notes += [f"warning: nothing of {name} is in it" for name in without]
        notes += [f"warning: `size: {self.size}` asks for {each}; shares differ" for each in self.missing(sizes)]
        return [*notes, *(kept_notes(manifest) if manifest.record == "Selection" else ())]

    def tables_config(self, inputs: Inputs) -> JsonObject:
        """The folders of the tables that are called otherwise, since inputs are compared by folder."""
        named = zip(self.from_, tables_of(inputs, "from"), strict=True)
        folders = {name: table.folder.name for name, table in named}
        # A table of the same run is called as its folder, but for its round and its route.
        others = {name: folder for name, folder in folders.items() if PurePath(name.partition("@")[0]).name != folder}
        return {"folders": others} if others else {}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The mixture."""
        del context
        self.check_inputs(inputs)
        plan = MixPlan(self, inputs)
        return MixSelections(self.name, plan) if plan.record is Trajectory else MixRows(plan)


class Drawn(msgspec.Struct, frozen=True):
    """What becomes of a row: ``copies`` of it, of ``size`` each, or the ``reason`` for which it is left out."""

    table: str
    size: int
    copies: int = 0
    reason: str = "not_sampled"
    detail: str = ""


class MixPlan:
    """What becomes of each row. Pickles as paths; every worker makes the same plan."""

    def __init__(self, parameters: Mix, inputs: Inputs) -> None:
        self._tables = tables_of(inputs, "from")
        self.record: type[Record] = self._tables[0].record_type if self._tables else Trajectory
        self._parameters = parameters
        self._choice = parameters.choice(inputs) if self.record is Trajectory else None
        self._quotas = [QuotaValues(quota, self.record, inputs) for quota in parameters.quotas]
        self.drawn: dict[str, Drawn] = {}
        """What becomes of each row by its id, once the plan is loaded."""

    def load(self) -> None:
        """Plan the mixture. Raises ``UserError`` for fewer rows than asked for, and for a field that no row has."""
        parameters, pool = self._parameters, Pool()
        self.drawn = {}
        if self._choice is not None:
            self._choice.load()
        for quota in self._quotas:
            quota.load()
        count = None if parameters.tokenizer is None else counter(parameters.tokenizer)
        for number, table in enumerate(self._tables):
            self._read(pool, number, table, count)
        for quota in self._quotas:
            quota.check_found(pool.ids)
        order = pool.order(parameters.seed)
        caps = {number: quota.cap(parameters.size) for number, quota in enumerate(parameters.quotas)}
        targets = parameters.targets()
        if targets is None and parameters.weights is not None:
            mixture = largest(pool, order, parameters.ordered_weights(), caps, parameters.repeat)
        else:
            mixture = draw(pool, order, targets or [math.inf], caps, parameters.repeat)
        parameters.check_short(mixture.sizes)
        self._note(pool, mixture)

    def measures(self, row_id: str) -> dict[str, float]:
        """Rows, tokens and repeats of a row, and the quotas that do not bound it."""
        drawn, measures = self.drawn[row_id], dict[str, float]()
        if drawn.copies:
            measures[f"{MIXED}{drawn.table}"] = drawn.copies
            if self._parameters.tokenizer is not None:
                measures[f"{TOKENS}{drawn.table}"] = drawn.copies * drawn.size
        if drawn.copies > 1:
            measures["repeats"] = drawn.copies - 1
        measures.update({f"without.{quota.by}": 1 for quota in self._quotas if row_id in quota.without})
        return {**measures, **({} if self._choice is None else self._choice.measures(row_id))}

    def _read(self, pool: Pool, number: int, table: Table, count: Count | None) -> None:
        """Add the rows of a table that are chosen at all to the pool."""
        name, key = self._parameters.from_[number], key_of(self.record)
        for path in table.shards():
            stop.check()
            ids = read_columns(path, self.record, [key])[key].to_pylist()
            sizes = [1] * len(ids)
            if count is not None:
                sizes = [sum(count(texts)) for texts in map(texts_to_count, read_shard(path, self.record))]
            values = [quota.values_in(path) for quota in self._quotas]
            for row, (row_id, size) in enumerate(zip(ids, sizes, strict=True)):
                if self._choice is not None:
                    try:
                        self._choice.annotations(row_id)
                    except Unused as error:
                        self.drawn[row_id] = Drawn(name, size, reason=error.reason)
                        continue
                own = [(quota, value) for quota, found in enumerate(values) for value in found[row]]
                pool.add(row_id, number, size, own)

    def _note(self, pool: Pool, mixture: Mixture) -> None:
        same: dict[Drawn, Drawn] = {}
        for row, row_id in enumerate(pool.ids):
            name, size, copies = self._parameters.from_[pool.tables[row]], pool.sizes[row], mixture.copies[row]
            full = mixture.full.get(row)
            drawn = Drawn(name, size, copies)
            if full is not None:
                drawn = Drawn(name, size, reason="quota", detail=f"{self._quotas[full[0]].by}={full[1]}")
            self.drawn[row_id] = same.setdefault(drawn, drawn)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "drawn": {}}


class MixRows(RowOperation[Record, Record]):
    """Each row so often as it was drawn; one that was not is dropped (``not_sampled``, ``quota``)."""

    blamed: ClassVar[Blamed] = "curation"
    chunk_rows: ClassVar[int] = 5_000

    def __init__(self, plan: MixPlan) -> None:
        super().__init__("mix", plan.record, plan.record)
        self._plan = plan

    def open(self) -> None:
        """Load the plan."""
        self._plan.load()

    def process(self, record: Record, unit: Unit) -> Iterable[Result]:
        """The row, or its copies."""
        (input_id,) = unit
        drawn, measures = self._plan.drawn[input_id], self._plan.measures(input_id)
        if drawn.copies:
            copies = copies_of(record, drawn.copies, self._plan.drawn)
            return [Result(input_id=input_id, outputs=list(copies), measures=measures)]
        dropped = Dropped(
            input_id=input_id,
            stage=self.name,
            reason=drawn.reason,
            blamed="curation",
            detail=drawn.detail,
            input={key_of(self.reads): input_id},
        )
        return [Result(input_id=input_id, dropped=dropped, measures=measures)]


class MixSelections(SelectionOperation):
    """One selection per trajectory."""

    def __init__(self, name: str, plan: MixPlan) -> None:
        super().__init__("mix")
        self._selection = name
        self._plan = plan

    def open(self) -> None:
        """Load the plan."""
        self._plan.load()

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        drawn = self._plan.drawn[record.trajectory_id]
        reason = None if drawn.copies else ": ".join(filter(None, (drawn.reason, drawn.detail)))
        selection = Selection(
            trajectory_id=record.trajectory_id, name=self._selection, kept=reason is None, reason=reason
        )
        return [Result(input_id=unit[0], outputs=[selection], measures=self._plan.measures(record.trajectory_id))]
