"""The kinds of records that tables hold: one table of what the pipeline, the viewer and publishing need to know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agentmill.schemas.records.raw_input import RawPart
from agentmill.schemas.records.record import Record
from agentmill.schemas.records.rows import PreferenceRow, PromptRow, ScorerRow, SftRow, TextRow, UnpairedRow
from agentmill.schemas.records.task import EnvironmentSpec, Inspiration, Task
from agentmill.schemas.records.trajectory import Trajectory
from agentmill.schemas.records.verdict import (
    Dropped,
    Image,
    Label,
    Node,
    Quality,
    Selection,
    TaskSelection,
    Value,
    Verdict,
)

ViewKind = Literal["verdict", "label", "value", "selection", "row"]


class RecordKind(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a kind of records.

    Attributes:
        type: the record.
        key: the column with its id; ``None`` for annotations, which have the trajectory id, the item and a name.
        content: the columns that are what a record says, by which publishing finds repeated rows.
        role: how steps name its tables, if it is an annotation of trajectories.
        shown: what the viewer shows it as, with its trajectory.
        trainer: the trainer that takes it, if it is a training row that one takes.
    """

    type: type[Record]
    key: str | None
    content: Sequence[str] = ()
    role: str | None = None
    shown: ViewKind | None = None
    trainer: str | None = None


_KINDS = (
    # Training rows first: publishing shows tables in this order.
    RecordKind(type=SftRow, key="row_id", content=("messages",), shown="row", trainer="sft"),
    RecordKind(type=PreferenceRow, key="row_id", content=("prompt", "chosen", "rejected"), trainer="dpo"),
    RecordKind(type=UnpairedRow, key="row_id", content=("prompt", "completion"), shown="row", trainer="kto"),
    RecordKind(type=ScorerRow, key="row_id", content=("messages", "label", "critique"), trainer="reward"),
    RecordKind(type=PromptRow, key="row_id", content=("prompt",)),
    RecordKind(type=TextRow, key="row_id", content=("text",)),
    RecordKind(type=Trajectory, key="trajectory_id", content=("content",)),
    RecordKind(type=Task, key="task_id", content=("environment_id", "instruction", "initial_state", "goal")),
    RecordKind(type=EnvironmentSpec, key="environment_id", content=("source", "parameters")),
    RecordKind(type=Inspiration, key="inspiration_id", content=("text",)),
    RecordKind(type=Verdict, key=None, role="verdicts", shown="verdict"),
    RecordKind(type=Label, key=None, role="labels", shown="label"),
    RecordKind(type=Value, key=None, role="values", shown="value"),
    RecordKind(type=Selection, key=None, role="selections", shown="selection"),
    RecordKind(type=TaskSelection, key="task_id"),
    RecordKind(type=Node, key="node_id"),
    RecordKind(type=Quality, key="trajectory_id", role="quality"),
    RecordKind(type=Dropped, key="input_id"),
    RecordKind(type=Image, key="sha256"),
)

RECORD_KINDS: Mapping[str, RecordKind] = {kind.type.__name__: kind for kind in _KINDS}
"""All records that a table may hold, by name, in the order in which publishing shows them."""

TRAINING_ROWS: Sequence[str] = [name for name, kind in RECORD_KINDS.items() if kind.key == "row_id"]
"""The records that are training rows."""

ANNOTATION_ROLES: Mapping[str, str] = {kind.role: name for name, kind in RECORD_KINDS.items() if kind.role is not None}
"""The records of annotations, by the role in which steps name their tables."""

KEYS: Mapping[type[Record], str | None] = {RawPart: "part_id", **{kind.type: kind.key for kind in _KINDS}}
"""The columns with ids by record; parts of raw input are planned, and in no table."""
