"""The profile of a data set: a few lines that say how its records are to be read, and no code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import Field, JsonValue, field_validator, model_validator

from agentmill.schemas.config import Config, validate
from agentmill.schemas.errors import near_match
from agentmill.schemas.format import NOT_FINITE, Decoded, FormatError, Origin, Reader, Remarks, decode_counted
from agentmill.schemas.formats import FORMATS
from agentmill.schemas.messages.conversation import WEIGHT
from agentmill.schemas.messages.parts import number_of
from agentmill.schemas.profiles.fields import MessageFields, at, join, last_at, measured, renamed_fields
from agentmill.schemas.profiles.paths import UNREAD, Place, measured_places
from agentmill.schemas.profiles.private import PrivateFields
from agentmill.schemas.records.record import JsonObject
from agentmill.schemas.records.trajectory import Outcome, OutcomeStatus, Trajectory


class OutcomeField(Config):
    """How a record says whether its run succeeded; of several runs in a record, the first."""

    field: str = Field(description="path of the field")
    success: list[JsonValue] = Field(default=[True], description="its values in runs that succeeded")
    failure: list[JsonValue] = Field(default=[False], description="its values in runs that failed")
    success_from: float | None = Field(default=None, description="or else: the least number that is a success")
    reward: str | None = Field(default=None, description="path of a number that is the reward of the run")

    def read(self, rows: Sequence[Any], known: Outcome | None) -> Outcome:
        """The outcome that the last of ``rows`` with a value has, on top of what the format has read."""
        known = known or Outcome()
        reward = last_at(rows, self.reward) if self.reward is not None else None
        value = _number(reward)
        # Data sets also have rewards that are true or false.
        number = number_of(int(value) if isinstance(value, bool) else value)
        number = known.reward if number is None else number
        status = self._status(last_at(rows, self.field))
        return msgspec.structs.replace(known, status=status or known.status, reward=number)

    def _status(self, value: JsonValue) -> OutcomeStatus | None:
        if self.success_from is not None:
            number = _number(value)
            if number is None:
                return None
            return "success" if number >= self.success_from else "failure"
        # A boolean equals 0 or 1 in Python, and is something else here.
        same = [each for each in self.success if each == value and type(each) is type(value)]
        if same:
            return "success"
        return "failure" if any(each == value and type(each) is type(value) for each in self.failure) else None


def _number(value: JsonValue) -> float | None:
    """``value`` if it is a number or the text of one: cells of CSV and decimals of Parquet are texts."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) else None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


class Group(Config):
    """Several rows are one record: those with equal values at ``by``."""

    by: list[str] = Field(min_length=1, description="paths of the fields that rows of one run share")
    order: str | None = Field(default=None, description="path of the number that orders them; by default their place")
    join: str | None = Field(
        default=None, description="the list that their record has all members of; by default it is the list of rows"
    )


class ReadRecord(msgspec.Struct, frozen=True, gc=False):
    """The runs of one record, and what of its fields went where (see ``fields.measured``)."""

    trajectories: list[Trajectory]
    measures: dict[str, int]
    remarks: Remarks


class Profile(Config):
    """How the records of one data set are read."""

    dataset: str = Field(description="name of the data set, as it goes into ids and provenance")
    split: str | None = Field(default=None, description="its split")
    licence: str | None = Field(default=None, description="its licence, an SPDX id")
    format: str = Field(description="the format of its records")
    options: JsonObject = Field(default={}, description="options of the format, such as the dialect of its texts")
    group: Group | None = Field(default=None, description="which rows are one record; by default each is one")
    rename: dict[str, str] = Field(default={}, description="fields of the record, and what the format calls them")
    messages: MessageFields | None = Field(default=None, description="where chat messages lie that have other names")
    private: list[str] = Field(
        default=[],
        description="fields that are never stored: a path (user.email, events.*.token), or a name, wherever it is",
    )
    task_id: str | None = Field(default=None, description="path of the field that names the task")
    environment_id: str | None = Field(default=None, description="path of the field that names the environment")
    outcome: OutcomeField | None = Field(default=None, description="where a record has the outcome of its trajectory")

    @field_validator("format")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in FORMATS:
            raise ValueError(f"unknown format {name!r}; known: {', '.join(FORMATS)}.{near_match(name, FORMATS)}")
        return name

    @field_validator("private")
    @classmethod
    def _paths(cls, private: list[str]) -> list[str]:
        PrivateFields(private)
        return private

    @model_validator(mode="after")
    def _stored_fields_are_not_private(self) -> Profile:
        outcome = self.outcome
        stored = {
            "task_id": self.task_id,
            "environment_id": self.environment_id,
            "outcome.field": outcome.field if outcome else None,
            "outcome.reward": outcome.reward if outcome else None,
        }
        for setting, path in stored.items():
            if path in self.private:
                raise ValueError(f"`{setting}: {path}` is to be stored, and `private` names it; leave out one of them")
        return self

    @model_validator(mode="after")
    def _messages_of_one_record(self) -> Profile:
        if self.messages is not None and self.group is not None and self.group.join is None:
            raise ValueError("`messages` needs one record, and `group` makes a list of rows; name `group.join`")
        return self

    def places(self) -> list[Place]:
        """The fields of records that it names, except for those without which no record can be read at all."""
        group, outcome, messages = self.group, self.outcome, self.messages
        found: list[tuple[str, str | None]] = [
            ("task_id", self.task_id),
            ("environment_id", self.environment_id),
            ("outcome.field", outcome.field if outcome else None),
            ("outcome.reward", outcome.reward if outcome else None),
            *(("group.by", path) for path in (group.by if group else ())),
            ("group.order", group.order if group else None),
        ]
        places = [Place(setting, (path,)) for setting, path in found if path is not None]
        places += [Place("rename", (name,)) for name in self.rename]
        if messages is not None:
            given = next((old for old, new in self.rename.items() if new == messages.of), messages.of)
            places += [
                Place("messages.role", (messages.role,), given),
                Place("messages.content", (*messages.content,), given),
            ]
            places += [Place("messages.train", (messages.train,), given)] if messages.train is not None else []
        return places

    def reader(self) -> ProfileReader:
        """What reads the records. Raises ``UserError`` for options that the format does not have."""
        return ProfileReader(self, validate(FORMATS.load(self.format), self.options, f"options of {self.format}"))


class ProfileReader:
    """Reads records as a profile describes."""

    def __init__(self, profile: Profile, reader: Reader) -> None:
        self._profile = profile
        self._reader = reader
        self._private = PrivateFields(profile.private)
        self.sensitive = bool(profile.private) or getattr(reader, "personal", False)
        """Whether a record may hold what is not to be stored."""
        self._places = profile.places()
        self._group_places = [place for place in self._places if place.setting.startswith("group.")]
        self._own_places = [place for place in self._places if place not in self._group_places]
        self._status = f"{UNREAD}{Place('outcome.field', (profile.outcome.field,)).label}" if profile.outcome else ""
        self._placing = (profile.task_id, profile.environment_id, profile.outcome) != (None, None, None)

    def read(self, raw: bytes, row: int, occurrence: int) -> ReadRecord:
        """The runs of the record at ``row``. Raises ``FormatError``."""
        profile = self._profile
        origin = Origin(profile.dataset, profile.split, row, profile.licence, occurrence)
        document, not_finite = decode_counted(raw)
        removed: dict[str, int] = {}
        if document == [] and profile.group is not None:
            raise FormatError("blank", "the row is empty")
        # Rows are grouped by what they hold before private fields are removed.
        grouping = measured_places(self._group_places, document) if isinstance(document, list) else {}
        if profile.private:
            document, removed = self._private.remove(document)
            # Provenance takes its digest from these bytes, so private fields leave no trace in it.
            raw = msgspec.json.encode(document)
        try:
            read = self._reader.read(Decoded(raw, self._shaped(document)), origin)
        except FormatError as error:
            if isinstance(document, list) and profile.group is not None and profile.group.join is None:
                hint = "`group` makes a list of rows; `group.join` names the list in them that goes into one record"
                raise FormatError(error.reason, f"{error.detail}; {hint}") from error
            raise
        rows = document if profile.group is not None else [document]
        runs = [read.trajectory, *read.others]
        if not any(run.content for run in runs):
            raise FormatError("empty", "the record holds no message, call or observation")
        if self._placing:
            # The outcome of a record is not that of its branches, sub-agents and rejected answers.
            runs = [self._placed(run, rows, main=run is read.trajectory) for run in runs]
        measures = {**measured(document, read.trajectory.extra, read.losses), **removed}
        measures |= {**grouping, **measured_places(self._own_places, rows)}
        if self._status and runs[0].outcome is not None and runs[0].outcome.status == "unknown":
            measures[self._status] = 1
        remarks = read.remarks + Remarks({NOT_FINITE: not_finite}) if not_finite else read.remarks
        return ReadRecord(runs, measures, remarks)

    def places_in(self, raw: bytes) -> dict[str, int]:
        """Which fields that the profile names are in a record that could not be read."""
        try:
            document = decode_counted(raw)[0]
        except FormatError:
            return {}
        grouped = self._profile.group is not None and isinstance(document, list) and document
        return measured_places(self._places, document if grouped else [document])

    def _shaped(self, document: Any) -> Any:
        """The record as its format has it; ``document`` itself if it is so already."""
        profile = self._profile
        if profile.group is not None and profile.group.join is not None:
            document = join(document, profile.group.join)
        if profile.rename and isinstance(document, list) and profile.group is not None:
            return [self._renamed(row) for row in document]
        if not isinstance(document, dict):
            return document
        document = self._renamed(document)
        if profile.messages is None:
            return document
        return profile.messages.apply(document, getattr(self._reader, "flag", WEIGHT))

    def _renamed(self, row: Any) -> Any:
        return renamed_fields(row, self._profile.rename) if self._profile.rename and isinstance(row, dict) else row

    def _placed(self, run: Trajectory, rows: Sequence[Any], main: bool) -> Trajectory:
        """The run with what the profile says of it, where the format does not."""
        profile = self._profile
        known: dict[str, Any] = {}
        for name in ("task_id", "environment_id"):
            path = getattr(profile, name)
            value = at(rows[0], path) if path is not None else None
            if value is not None and getattr(run, name) is None:
                known[name] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if profile.outcome is not None and main:
            known["outcome"] = profile.outcome.read(rows, run.outcome)
        return msgspec.structs.replace(run, **known) if known else run
