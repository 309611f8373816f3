"""Training rows of any kind: their texts, read and changed, and copies of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator
from typing import Any

import msgspec

from agentmill.pipelines.quality import texts_of as trajectory_texts
from agentmill.schemas.record_kinds import RECORD_KINDS
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.trajectory import Trajectory

TOKENS = ("tokens", "chosen_tokens", "rejected_tokens")
"""The fields of rows that hold token ids."""

UNCHANGED = frozenset(
    {"row_id", "trajectory_id", "chosen_id", "rejected_id", "task_id", "environment_id", "split", "view", "role", "id"}
    | {"tool_call_id", "argument_loss"}
)
"""Fields of rows and messages that are ids or marks: other records refer to them."""


def texts_of(row: Record) -> list[str]:
    """All texts of a row, those of ids too; its parameters as JSON, in which publishing finds them."""
    found: list[str] = []

    def note(name: str, text: str) -> str:
        del name
        found.append(text)
        return text

    fields = msgspec.to_builtins(without_tokens(row))
    parameters = fields.pop("view_parameters", {})
    map_texts(fields, note)
    return [*found, msgspec.json.encode(parameters).decode()]


def without_tokens(row: Record) -> Record:
    """``row`` without token ids; ``row`` itself if it has none."""
    held: list[str] = [name for name in TOKENS if getattr(row, name, None)]
    return msgspec.structs.replace(row, **{name: [] for name in held}) if held else row


def map_texts(value: Any, change: Callable[[str, str], str], name: str = "") -> Any:
    """``value`` with each text in it changed; ``change`` gets the name of the field that the text is in, too."""
    if isinstance(value, str):
        return change(name, value)
    if isinstance(value, dict):
        return {key: map_texts(each, change, key) for key, each in value.items()}
    return [map_texts(each, change, name) for each in value] if isinstance(value, list) else value


def texts_to_count(record: Record) -> list[str]:
    """The texts by which tokens are counted: all of a trajectory, as ``quality`` counts; the text of a row.

    Of a row these are the texts of its messages, or its text, without ids, tools and parameters.
    """
    if isinstance(record, Trajectory):
        return list(trajectory_texts(record))
    found: list[str] = []

    def note(name: str, text: str) -> str:
        if name not in UNCHANGED:
            found.append(text)
        return text

    for column in RECORD_KINDS[type(record).__name__].content:
        map_texts(msgspec.to_builtins(getattr(record, column)), note)
    return found


def copies_of(record: Record, number: int, taken: Container[str]) -> Iterator[Record]:
    """A row ``number`` times; the ids of all but the first end in ``~2``, ``~3`` and so on, but for those ``taken``."""
    yield record
    row: Any = record
    ids = (f"{row.row_id}~{copy}" for copy in itertools.count(2))
    free = (row_id for row_id in ids if row_id not in taken)
    yield from (msgspec.structs.replace(row, row_id=row_id) for row_id in itertools.islice(free, number - 1))
