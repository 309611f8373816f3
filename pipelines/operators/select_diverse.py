"""``select_diverse``: a few trajectories that together show what the others have, by coverage or clusters; rows stay.

Small sets that were chosen well may teach as much as large ones (LIMI has 78 rows, arXiv:2509.17567). A worker
holds, in addition to one row group, an id and a sketch of at most ``most_features`` features of each trajectory; with
128 of them 0.6 kB per trajectory while tables are read, and up to 3 kB later. Every worker chooses for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from agentmill.pipelines.diversity import SketchTable
from agentmill.pipelines.engine import stop
from agentmill.pipelines.engine.operation import AnyOperation, Result, Unit
from agentmill.pipelines.operators.bounds import Rows
from agentmill.pipelines.operators.dedup import On, tokens_of
from agentmill.pipelines.operators.diverse_pool import Decisions, Method, Pool
from agentmill.pipelines.operators.lookup import ids_of, read_ids
from agentmill.pipelines.operators.operator import Inputs, StepContext, TableNames, expect, tables_of
from agentmill.pipelines.operators.quotas import LISTS, Quota, QuotaValues, check_quotas
from agentmill.pipelines.operators.selection import FilterParameters, SelectionOperation, TrajectoryFilter, kept_notes
from agentmill.pipelines.operators.trajectory_index import stream
from agentmill.pipelines.quota_counts import QuotaCount
from agentmill.schemas.conditions import Condition
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.ids import digest
from agentmill.schemas.record_kinds import ANNOTATION_ROLES
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import Selection
from agentmill.schemas.tables import Table
from agentmill.schemas.views.annotations import Annotations, Criterion, score
from agentmill.schemas.views.view import Unused

FEATURES: Mapping[On, int] = {"tools": 2, "actions": 1, "text": 3, "states": 1}
"""Tokens of a feature: bigrams of tools, single actions and states, three words in a row."""


class ValueQuota(Quota):
    """How many trajectories of each value of a field are chosen; without a bound, equal shares of ``size``."""

    @model_validator(mode="after")
    def _one_bound(self) -> ValueQuota:
        if self.at_most is not None and self.share is not None:
            raise ValueError(f"the quota by {self.by} has `at_most` and `share`; give one of them")
        if self.is_equal and self.field in LISTS:
            raise ValueError(f"{self.by} has several values, so there are no equal shares; give `at_most` or `share`")
        return self

    @property
    def is_equal(self) -> bool:
        """Whether all values have equal shares."""
        return self.at_most is None and self.share is None


class SelectDiverse(FilterParameters):
    """A selection per trajectory: ``size`` of them are kept, diverse and, with a score, good ones."""

    primary: ClassVar[str] = "of"
    verb: ClassVar[str | None] = "curate"
    table_roles: ClassVar[Sequence[str]] = ("of", "tasks", "environments", *ANNOTATION_ROLES)
    counted: ClassVar[Sequence[str]] = ("size",)

    of: TableNames = Field(description="tables of trajectories")
    tasks: TableNames | None = Field(default=None, description="tables of tasks, for quotas by task.FIELD")
    environments: TableNames | None = Field(
        default=None, description="tables of environments, for quotas by environment.FIELD"
    )
    size: int = Field(ge=1, description="how many are kept")
    short: Literal["refuse", "allow"] = Field(
        default="refuse", description="where fewer than `size` may be kept: an error, or these with a warning"
    )
    features: list[On] = Field(
        default=["tools", "text"],
        min_length=1,
        description="what they differ in: bigrams of tools, actions, three words in a row, states; all weigh alike",
    )
    method: Literal["coverage", "clusters"] = Field(
        default="coverage", description="the most features that others have, too; or the best of each cluster"
    )
    clusters: int | None = Field(default=None, ge=2, description="of method clusters: their number; by default size")
    quotas: list[ValueQuota] = Field(
        default=[], description="the most for each value of a field, or by default equal shares; all hold together"
    )
    score: Criterion | None = Field(
        default=None, description="better ones are preferred by this; unscored ones left out"
    )
    quality_weight: float = Field(
        default=0.5, gt=0, le=1, description="of score: the worst trajectory counts 1 less this, the best one 1"
    )
    accept: list[Condition] = Field(
        default=[], description="those that fulfil all of these are kept first, such as {label: review, equals: accept}"
    )
    accept_ids: Path | None = Field(default=None, description="a file of ids, one a line, that are kept first")
    most_features: int = Field(default=128, ge=8, le=4096, description="features of a trajectory that are looked at")
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="of clusters and the random choice to compare with; by default the run's",
    )
    name: str = Field(default="select_diverse", description="what the selection is called")

    @model_validator(mode="after")
    def _keys_that_count(self) -> SelectDiverse:
        given = self.model_fields_set
        if self.score is None and "quality_weight" in given:
            raise ValueError(f"`quality_weight: {self.quality_weight:g}` needs `score`, by which one is better")
        if self.method != "clusters" and self.clusters is not None:
            raise ValueError(f"`clusters: {self.clusters}` needs `method: clusters`")
        if self.method == "clusters" and (self.clusters or self.size) < 2:
            raise ValueError("`size: 1` makes one cluster of all; give `clusters`, or `method: coverage`")
        for quota in self.quotas:
            if quota.share is not None and quota.cap(self.size) < 1:
                raise ValueError(
                    f"`share: {quota.share:g}` of the quota by {quota.by} is less than 1 of `size: {self.size}`"
                )
        for name, values in (("features", [*self.features]), ("quotas", [each.by for each in self.quotas])):
            twice = next((each for each, times in Counter[str](values).items() if times > 1), None)
            if twice is not None:
                raise ValueError(f"`{name}` has {twice!r} twice; give it once")
        return self

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Selections, of trajectories. Raises ``UserError`` for a quota without its table, and a file without ids."""
        expect(reads, "of", "Trajectory")
        check_quotas(self.quotas, "Trajectory", reads)
        self.check_filter_needs(reads)
        self._accepted_ids()
        return "Selection"

    def annotations(self) -> Sequence[str]:
        """Its selections."""
        return [self.name]

    def check_rows(self, rows: Mapping[str, Rows]) -> None:
        """As ``Operator.check_rows``, for ``size``."""
        if (n := rows["of"].n) is not None:
            self.check_size(n, n)

    def check_inputs(self, inputs: Inputs) -> None:
        """Raises ``UserError`` where there are fewer trajectories than ``size``, or none of an id in ``accept_ids``."""
        tables = tables_of(inputs, "of")
        rows = sum(table.manifest.counts.written for table in tables)
        self.check_size(rows, rows)
        if ids := self._accepted_ids():
            known = {name for table in tables for name in ids_of(table).to_pylist()}
            missing = [each for each in ids if each not in known]
            if missing:
                raise UserError(
                    f"accept_ids: {self.accept_ids} has {len(missing)} ids that no trajectory has, as {missing[0]!r}\n"
                    f"expected ids of trajectories in `of`, one a line.{near_match(missing[0], known)}",
                    ErrorCode.UNKNOWN_NAME,
                )

    def notes(self, manifest: Manifest) -> list[str]:
        """How much is covered, and warnings: nothing new to choose, nothing to compare, accepted ones left out."""
        found = manifest.metrics
        notes = [*super().notes(manifest), *kept_notes(manifest)]
        if found.get("kept"):
            notes.append(
                f"covers {found['coverage']:.1%} of the features, a random choice of as many"
                f" {found['coverage_random']:.1%}"
            )
        if (kept := int(found.get("kept", 0))) < self.size:
            notes.append(f"warning: `size: {self.size}` asks for more than the {kept:,} that may be kept")
        for name, why in WARNINGS.items():
            if found.get(name):
                notes.append(f"warning: {found[name]:,.0f} {why}")
        return notes

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As ``FilterParameters.provenance_config``, with the seed that holds, and ids for the file of them."""
        config = {**super().provenance_config(context), "seed": self._seed(context)}
        if self.short == "refuse":
            del config["short"]  # as in tables that were made before there was a choice
        return {**config, "accept_ids": digest(sorted(self._accepted_ids())) if self.accept_ids else None}

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The selections."""
        values = [QuotaValues(each, Trajectory, inputs, "select_diverse: `quotas`") for each in self.quotas]
        ids = frozenset(self._accepted_ids())
        return Diversification(self, self.choice(inputs), values, tables_of(inputs, "of"), ids, self._seed(context))

    def check_size(self, available: int, rows: int) -> None:
        """Raises ``UserError`` where ``size`` is more than the number of those ``available`` of all ``rows``."""
        if self.size > available and self.short == "refuse":
            of = f" of {rows:,}" if rows != available else ""
            smaller = f"a `size` of at most {available}, or " if available else ""
            raise UserError(
                f"select_diverse: `size: {self.size}` asks for more than the {available:,}{of} trajectories that may be"
                f" chosen\ngive {smaller}`short: allow`, or more trajectories, of which `where`, `selections` and"
                " `score` leave enough",
                ErrorCode.ROWS_TOO_FEW,
            )

    def _seed(self, context: StepContext) -> int:
        return context.seed if self.seed is None else self.seed

    def _accepted_ids(self) -> list[str]:
        return [] if self.accept_ids is None else read_ids(self.accept_ids)


WARNINGS: Mapping[str, str] = {
    "kept_covered": "of those kept add no feature to the others; a smaller `size` covers as much",
    "nothing_to_cover": "trajectories have none of the `features`, and are chosen last",
    "accepted_not_chosen": "accepted trajectories are not kept, since `where` or `selections` excludes them",
}
"""Counts that are warned of."""


class Diversification(SelectionOperation):
    """One selection per trajectory. ``score`` is the share of all features that it adds, by weight."""

    def __init__(
        self,
        parameters: SelectDiverse,
        choice: TrajectoryFilter,
        values: Sequence[QuotaValues],
        tables: Sequence[Table],
        accepted: frozenset[str],
        seed: int,
    ) -> None:
        super().__init__("select_diverse")
        self._parameters = parameters
        self._filter = choice
        self._values = values
        self._shards = [path for table in tables for path in table.shards()]
        self._rows = sum(table.manifest.counts.written for table in tables)
        self._accepted = accepted
        self._seed = seed
        self._decisions = Decisions()

    def open(self) -> None:
        """Choose the trajectories.

        Raises ``UserError`` for tables that cannot be read, for fewer trajectories than are asked for, and for quotas
        of what no trajectory has, or that too few fit into.
        """
        given = self._parameters
        self._filter.load()
        for own in self._values:
            own.load()
        quotas = [QuotaCount(each.by, None if each.is_equal else each.cap(given.size)) for each in given.quotas]
        sketches = SketchTable(self._rows, [FEATURES[kind] for kind in given.features], given.most_features)
        pool = Pool(sketches, quotas)
        self._read(pool)
        given.check_size(len(pool), self._rows)
        if not len(pool):
            return
        if pool.accepted > given.size:
            raise UserError(
                f"select_diverse: {pool.accepted} trajectories are accepted, and `size` is {given.size}\n"
                f"give a `size` of {pool.accepted} or more, or accept fewer",
                ErrorCode.ROWS_TOO_FEW,
            )
        clusters = (given.clusters or given.size) if given.method == "clusters" else None
        weight = 0.0 if given.score is None else given.quality_weight
        self._decisions = pool.choose(min(given.size, len(pool)), Method(clusters, weight, self._seed))
        if (fitting := len(self._decisions.chosen)) < given.size and given.short == "refuse":
            named = ", ".join(each.by for each in given.quotas)
            # What crossing quotas let in depends on what was chosen before: more might fit, also with another size.
            found, most = ("were found to fit", "such as") if len(given.quotas) > 1 else ("fit", "at most")
            smaller = f"a smaller `size`, {most} {fitting}, or " if fitting else ""
            raise UserError(
                f"select_diverse: `size: {given.size}`, and {fitting} of {len(pool):,} trajectories {found} into the"
                f" `quotas` of {named}\ngive {smaller}larger quotas",
                ErrorCode.ROWS_TOO_FEW,
            )

    def process(self, record: Trajectory, unit: Unit) -> Iterable[Result]:
        """The selection of a trajectory."""
        name, measures = record.trajectory_id, dict(self._filter.measures(record.trajectory_id))
        reason, share = None, None
        accepted = self._is_accepted(record, self._filter.all_annotations(name))
        try:
            self._filter.annotations(name)
        except Unused as error:
            reason = error.reason
            measures["accepted_not_chosen"] = int(accepted)
        else:
            reason, share = "unscored", None
            if name in self._decisions:
                reason, share = self._decisions.reason(name), self._decisions.share(name)
                measures |= self._measures(record, reason is None, share, accepted)
        selection = Selection(
            trajectory_id=name, name=self._parameters.name, kept=reason is None, reason=reason, score=share
        )
        return [Result(input_id=unit[0], outputs=[selection], measures=measures)]

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """Shares of features without the digits that adding them up has left."""
        rounded = {name: round(metrics.get(name, 0.0), 6) for name in ("coverage", "coverage_random")}
        return {**metrics, **rounded}

    def _measures(self, record: Trajectory, kept: bool, share: float, accepted: bool) -> dict[str, float]:
        """The figures of a trajectory that may be chosen."""
        found: dict[str, float] = {
            "coverage": share if kept else 0.0,
            "coverage_random": self._decisions.random_shares.get(record.trajectory_id, 0.0),
            "accepted": int(accepted),
            "kept_covered": int(kept and not accepted and not share),
            "nothing_to_cover": int(record.trajectory_id in self._decisions.empty),
        }
        if kept:
            found |= {f"kept.{value}": 1 for value in self._decisions.values.get(record.trajectory_id, ())}
        return {**found, **{f"without.{own.by}": 1 for own in self._values if record.trajectory_id in own.without}}

    def _read(self, pool: Pool) -> None:
        """Take every trajectory that may be chosen into the pool. Raises ``UserError``, as ``open``."""
        given = self._parameters
        for path in self._shards:
            values = [own.values_in(path) for own in self._values]
            for row, trajectory in stream([path], self._columns()):
                stop.check()
                try:
                    annotations = self._filter.annotations(trajectory.trajectory_id)
                except Unused:
                    continue
                accepted = self._is_accepted(trajectory, annotations)
                found = None if given.score is None else score(given.score, trajectory, annotations)
                if given.score is not None and found is None and not accepted:
                    continue
                tokens = [tokens_of(kind, trajectory) for kind in given.features]
                pool.add(trajectory.trajectory_id, tokens, found, [own[row] for own in values], accepted)
        for own in self._values:
            own.check_found(pool.ids)

    def _is_accepted(self, trajectory: Trajectory, annotations: Annotations) -> bool:
        conditions = self._parameters.accept
        fulfilled = bool(conditions) and all(each.holds(trajectory, annotations) for each in conditions)
        return fulfilled or trajectory.trajectory_id in self._accepted

    def _columns(self) -> list[str]:
        fields = [each.field.partition(".")[0] for each in self._parameters.accept if each.field is not None]
        return list(dict.fromkeys(["trajectory_id", "content", "system_prompt", "outcome", *fields]))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decisions": Decisions()}
