"""The table of kinds of records: what it says of a record fits the record."""

from __future__ import annotations

import pytest

from agentmill.pipelines.engine.operation import identity, key_of
from agentmill.schemas.record_kinds import ANNOTATION_ROLES, RECORD_KINDS, RecordKind
from agentmill.schemas.records.verdict import Selection, TaskSelection


@pytest.mark.parametrize("kind", RECORD_KINDS.values(), ids=RECORD_KINDS)
def test_key_and_content_are_columns(kind: RecordKind) -> None:
    columns = set(kind.type.__struct_fields__)
    assert set(kind.content) <= columns
    assert kind.key in columns or (kind.key is None and {"trajectory_id", "item", "name"} <= columns)


def test_annotations_have_roles_of_their_own() -> None:
    assert ANNOTATION_ROLES == {
        "verdicts": "Verdict",
        "labels": "Label",
        "values": "Value",
        "selections": "Selection",
        "quality": "Quality",
    }


def test_selections_are_of_tasks_or_of_trajectories() -> None:
    assert identity(TaskSelection(task_id="t", name="band", kept=True)) == "t"
    assert identity(Selection(trajectory_id="x", name="pick", kept=True)) == "x//pick"
    assert (key_of(TaskSelection), key_of(Selection)) == ("task_id", "trajectory_id")
