"""``normalize``: trajectories, from files in a foreign format, here or on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field

from agentmill.pipelines.engine.operation import AnyOperation, Blamed, Result, RowOperation, Unit
from agentmill.pipelines.operators.bounds import Bounds, Rows
from agentmill.pipelines.operators.operator import Inputs, Operator, StepContext
from agentmill.pipelines.serving.models import ModelConfig
from agentmill.pipelines.sources import hub
from agentmill.pipelines.sources.files import RawFile, find, not_read
from agentmill.pipelines.sources.hub import keep_plan, kept_plan
from agentmill.pipelines.sources.planning import GroupBy, plan_parts
from agentmill.pipelines.sources.reading import RawRecord, read_part
from agentmill.schemas.config import UserPath
from agentmill.schemas.dialects import DIALECTS
from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError, near_match
from agentmill.schemas.format import NOT_FINITE, FormatError
from agentmill.schemas.hub import hub_errors
from agentmill.schemas.profiles.fields import ITEM, field_report
from agentmill.schemas.profiles.paths import REMARK, absent, absent_options, option_notes, place_notes
from agentmill.schemas.profiles.private import LEFT, REMOVED
from agentmill.schemas.profiles.profile import Profile, ReadRecord
from agentmill.schemas.records.manifest import Manifest
from agentmill.schemas.records.raw_input import RawPart
from agentmill.schemas.records.record import JsonObject, Record
from agentmill.schemas.records.trajectory import ApiAction, CodeAction, Trajectory
from agentmill.schemas.records.verdict import Dropped

TYPED = "typed_actions"
"""Actions that are calls or code, not messages."""

SHOWN = 5
"""How many names of what was not read a note has."""

_TYPED_ACTIONS = frozenset({ApiAction, CodeAction})

UNTYPED = "trajectories_without_typed_actions"
GUESSED = f"{REMARK}guessed_source"

LARGEST_INPUT_BYTES = 2**20
"""A dropped record that is longer is kept as a reference to its place, and its length."""


class Normalize(Operator, Profile):
    """Trajectories read from files of one data set, as its profile says."""

    primary: ClassVar[str] = ""
    verb: ClassVar[str | None] = "normalize"
    table_roles: ClassVar[Sequence[str]] = ()
    incidental: ClassVar[Sequence[str]] = ("data", "config")

    data: list[UserPath] = Field(
        min_length=1,
        description="files, folders, globs, hf://datasets/ORG/NAME[@REVISION][/PATH]: .jsonl .json .traj .csv .parquet",
    )
    config: str | None = Field(
        default=None, description="which configuration of a data set on the Hub; by default its only or default one"
    )
    whole: bool = Field(default=False, description="a JSON file that is a list is one record, such as a log of events")
    part_mb: float = Field(default=32.0, gt=0, description="size of the raw input that becomes one shard, in MB")

    def writes(self, reads: Mapping[str, Sequence[str]]) -> str:
        """Trajectories, from no table."""
        del reads
        return "Trajectory"

    def pinned(self, revisions: MutableMapping[str, str]) -> Self:
        """The same with every address on the Hub at a commit, that of the run's first start."""
        return self.model_copy(update={"data": [hub.pinned(each, revisions) for each in self.data]})

    def provenance_config(self, context: StepContext) -> JsonObject:
        """As for every stage, with what is read from the Hub: there, a place stands for what is in it."""
        addresses = self._addresses()
        read = {"data": addresses, "config": self.config} if addresses else {}
        return {**super().provenance_config(context), **read}

    def precheck(self, context: StepContext) -> None:
        """Find the files; those on the Hub are not read before it is the stage's turn."""
        if not self._addresses():
            self.seeds(context)
        elif kept_plan(self._decisive()) is None:
            with hub_errors(", ".join(self._addresses())):
                self._files()

    def bounds(self, rows: Mapping[str, Rows], models: Mapping[str, ModelConfig]) -> Bounds:
        """As ``Operator.bounds``: how many records the files hold is not known."""
        del rows, models
        return Bounds(reads=None, rows=Rows())

    def seeds(self, context: StepContext) -> list[Record]:
        """The parts of the files."""
        del context
        parts = self._parts()
        if not parts:
            raise UserError(f"{', '.join(self.data)} holds no records", ErrorCode.NO_RECORDS)
        return list(parts)

    def _parts(self) -> Sequence[RawPart]:
        addresses, size = self._addresses(), int(self.part_mb * 1e6)
        if not addresses:
            return self._planned(size)
        # Kept is only a plan of what never changes: a file here may be written again under the same name.
        lasting = len(addresses) == len(self.data) and all(hub.parse(each).pinned for each in addresses)
        kept = kept_plan(self._decisive()) if lasting else None
        if kept is not None:
            return kept
        with hub_errors(", ".join(addresses)):
            parts = self._planned(size)
        if lasting:
            keep_plan(self._decisive(), parts)
        return parts

    def _planned(self, part_bytes: int) -> list[RawPart]:
        return plan_parts(tuple(self._files()), part_bytes, group_by(self), tuple(self.private))

    def _files(self) -> list[RawFile]:
        if self.config is not None and not self._addresses():
            raise UserError(
                f"config {self.config!r} is given, but none of {', '.join(self.data)} is on the Hub",
                ErrorCode.KEY_NOT_FOR_THIS,
            )
        return find(self.data, self.whole, hub.Selection(self.config, self.split))

    def _decisive(self) -> JsonObject:
        """All that decides the parts of what lies on the Hub."""
        decisive = {"data", "config", "split", "whole", "part_mb", "group", *(["private"] if self.private else [])}
        return self.model_dump(mode="json", include=decisive)

    def _addresses(self) -> list[str]:
        return [each for each in self.data if hub.is_address(each)]

    def notes(self, manifest: Manifest) -> list[str]:
        """What was read as typed actions and guessed, warnings about the profile, and what of a folder was not read."""
        named = place_notes(self.places(), manifest.metrics)
        return [
            *action_notes(manifest),
            *named,
            *option_notes(manifest.metrics),
            *private_notes(self.private, manifest),
            *(not_read_note(folder, names) for folder, names in not_read(self.data).items()),
        ]

    def operation(self, inputs: Inputs, context: StepContext) -> AnyOperation:
        """The reading."""
        del inputs, context
        return Normalization(Profile.model_validate(self.model_dump(include=set(Profile.model_fields))))


class Normalization(RowOperation[RawPart, Trajectory]):
    """The trajectories of the records of one part; a record is an input."""

    blamed: ClassVar[Blamed] = "format"
    # A row is a part of the raw files already, and becomes one shard.
    chunk_rows: ClassVar[int] = 1
    sorts: ClassVar[bool] = False
    many: ClassVar[bool] = True

    def __init__(self, profile: Profile) -> None:
        super().__init__("normalize", RawPart, Trajectory)
        self._profile = profile

    def open(self) -> None:
        """Make the reader."""
        self._reader = self._profile.reader()

    def units(self, record: RawPart) -> Iterator[Unit]:
        """Each raw record of the part by itself, read when it is its turn."""
        return (Unit([input_id(raw.row)], raw) for raw in read_part(record))

    def count(self, record: RawPart) -> int:
        """How many records a part holds."""
        return record.records

    def process(self, record: RawPart, unit: Unit) -> Iterable[Result]:
        """The trajectories of one raw record of the part, and what of its fields became what."""
        raw: RawRecord = unit.data
        try:
            read = self._read(raw)
        except FormatError as error:
            letter = Dropped(
                input_id=unit[0],
                stage=self.name,
                reason=error.reason,
                blamed=self.blamed,
                detail=error.detail.encode(errors="backslashreplace").decode(),
                input=self._context(raw, record),
            )
            # A field that only dropped records have is no mistake of the profile.
            return [Result(input_id=unit[0], dropped=letter, measures=self._reader.places_in(raw.data))]
        measures = read.measures
        if raw.not_finite:
            measures[f"{REMARK}{NOT_FINITE}"] = raw.not_finite
        for name, n in read.remarks.items():
            if n:
                measures[f"{REMARK}{name}"] = n
        return [Result(input_id=unit[0], outputs=read.trajectories, measures=measures)]

    def _read(self, raw: RawRecord) -> ReadRecord:
        if raw.fault:
            raise FormatError("unreadable_column", raw.fault)
        try:
            return self._reader.read(raw.data, raw.row, raw.occurrence)
        except RecursionError as error:
            raise FormatError("too_deep", "values are nested deeper than can be read") from error

    def measures(self, output: Trajectory) -> Mapping[str, float]:
        """How the run ended, how long it is, and how many of its actions are calls or code."""
        status = "unknown" if output.outcome is None else output.outcome.status
        typed = len([item for item in output.content if type(item) in _TYPED_ACTIONS])
        return {f"outcome.{status}": 1, "items": len(output.content), TYPED: typed, UNTYPED: int(not typed)}

    def check(self, metrics: Mapping[str, float]) -> None:
        """Refuses a profile that names a field which no record has."""
        found = [*absent(self._profile.places(), metrics), *absent_options(metrics, runs_in(metrics))]
        if found:
            raise UserError(
                f"{'; '.join(found)}\ncorrect that in the profile, or leave it out, and run it again",
                ErrorCode.FIELD_MISSING,
            )

    def summed(self, metrics: Mapping[str, float]) -> Mapping[str, float]:
        """With typed actions per trajectory, and a zero for what was looked for and not found."""
        runs = runs_in(metrics)
        rate = {f"{TYPED}_per_trajectory": round(metrics[TYPED] / runs, 3)} if runs else {}
        none = {GUESSED: 0, **{f"{REMOVED}{path}": 0 for path in self._profile.private}}
        return {**none, **metrics, **rate}

    def _context(self, raw: RawRecord, part: RawPart) -> JsonObject:
        """The record itself, unless it is large or may hold what is not to be stored; and its place."""
        where: JsonObject = {"files": sorted({Path(each.path).name for each in part.slices}), "row": raw.row}
        if self._reader.sensitive:
            return where
        if len(raw.data) > LARGEST_INPUT_BYTES:
            return {**where, "bytes": len(raw.data)}
        return {**where, "raw": raw.data.decode(errors="backslashreplace")}


def runs_in(metrics: Mapping[str, float]) -> float:
    """How many trajectories the metrics are of: each has an outcome, be it ``unknown``."""
    return sum(n for name, n in metrics.items() if name.startswith("outcome."))


def action_notes(manifest: Manifest) -> list[str]:
    """How many actions are calls or code, and how many observations were taken for results by their place alone."""
    runs, metrics = manifest.counts.written, manifest.metrics
    if not runs or TYPED not in metrics:
        return []  # a table without rows, or made before there were these figures
    typed, untyped, guessed = (int(metrics.get(name, 0)) for name in (TYPED, UNTYPED, GUESSED))
    found = f"{typed:,} typed actions (calls and code) in {runs:,} trajectories, {typed / runs:.1f} each"
    notes = [f"{found}; {untyped:,} have none; the source of {guessed:,} turns was guessed"]
    if not typed:
        known = ", ".join(DIALECTS)
        notes.append(
            f"warning: no action was read as a call or code; if texts hold some, set options.dialect ({known})"
        )
    return notes


def not_read_note(folder: str, names: Sequence[str]) -> str:
    """What in a folder was not read, and how to read it."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"not read in {folder}: {', '.join(names[:SHOWN])}{more}; to read them, name them by a path or a glob"


def private_notes(paths: Sequence[str], manifest: Manifest) -> list[str]:
    """A warning for each path that matched nothing, and for each name that is in text which is no JSON."""
    notes = []
    known = [each.field.replace(ITEM, "") for each in field_report(manifest.metrics)]
    known += [path for path in paths if manifest.metrics.get(f"{REMOVED}{path}")]
    for path in paths:
        if manifest.metrics.get(f"{REMOVED}{path}") == 0:
            found = f"private {path!r} matches nothing in {manifest.counts.used} records"
            notes.append(f"warning: {found}.{near_match(path, known)}")
        if left := manifest.metrics.get(f"{LEFT}{path}"):
            found = f"{left:.0f} texts name {path!r} but are no JSON, so they are stored as they are"
            notes.append(f"warning: {found}; if they hold it, make the field of the text private")
    return notes


def group_by(profile: Profile) -> GroupBy | None:
    """How rows make records."""
    return GroupBy(tuple(profile.group.by), profile.group.order) if profile.group is not None else None


def input_id(row: int) -> str:
    """The id of the record whose first row is ``row``."""
    return f"row-{row:09d}"
